"""Reading and writing the state of modules whose buffers may change size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from ipll.errors import RunError

T = TypeVar("T")


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Like load_state_dict, but a buffer may have another size than now: a memory fills up, a task has more samples.

    Parameters and buffers of the same size are filled in place, since others hold on to them.
    """
    expected = module.state_dict()
    if expected.keys() != tensors.keys():
        odd = sorted(expected.keys() ^ tensors.keys())
        raise RunError(f"the checkpoint does not fit the method: {', '.join(odd[:5])}. Was it made by another version?")
    with torch.no_grad():
        for name, tensor in tensors.items():
            owner, _, leaf = name.rpartition(".")
            current = expected[name]
            if current.shape == tensor.shape:
                current.copy_(tensor)
            else:
                setattr(module.get_submodule(owner), leaf, tensor.to(current.device, copy=True))


def part_of(parts: Iterable[object], kind: type[T]) -> T | None:
    """-> the one part of a kind, or None."""
    return next((part for part in parts if isinstance(part, kind)), None)


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Gives `target` the parameters and buffers of `source`; in place where sizes agree."""
    load_tensors(target, source.state_dict())
