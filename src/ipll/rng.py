"""Random numbers: one seed, and a generator of its own for every purpose.

A generator is keyed by (seed, purpose, task, phase, epoch, ...). So changing a method never changes the data, and a
resumed run needs no generator state: it makes the same generator again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, *where: int | str) -> int:
    """-> a 63-bit number that depends on all arguments and on nothing else (not on the process or the platform)."""
    text = "/".join(map(str, (seed, purpose, *where)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key(seed, purpose, *where)))


def torch_generator(seed: int, purpose: str, *where: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(key(seed, purpose, *where))


@contextmanager
def seeded(seed: int, purpose: str, *where: int | str, device: torch.device | str = "cpu") -> Iterator[None]:
    """Inside, PyTorch's global generators, from which layers draw their first weights, depend on all arguments and on
    nothing else, on the CPU and on `device`; afterwards they are as they were."""
    number, gpus = key(seed, purpose, *where), [device] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(number)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(number)
        yield
