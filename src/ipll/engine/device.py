"""Devices, and a description of the machine that a number was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import ipll
from ipll.engine import machine, processes
from ipll.errors import ConfigError
from ipll.settings import check_choice

T = TypeVar("T", bound=nn.Module)


def find_device(name: str) -> torch.device:
    """'auto' -> CUDA where there is one, else the CPU."""
    check_choice("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: PyTorch finds no CUDA device here. Use --device cpu, or install a CUDA build."
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def use_bf16(precision: str, device: torch.device) -> bool:
    """Does the network compute in bf16? 'auto' means: on a GPU that has it. On a CPU it is always float32.

    Some CPUs, or the virtual machines they are lent through, claim bf16 and then die of it.
    """
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not able:
        where = "this GPU has no bf16 arithmetic" if device.type == "cuda" else "bf16 is for GPUs, and this is a CPU"
        raise ConfigError(f"train.precision=bf16: {where}. Use --precision float32.")
    return precision != "float32" and able


def use_compile(choice: str, device: torch.device) -> bool:
    """Is anything compiled? 'auto' means: on a GPU, and there what has no kernels of its own (`compile_networks`)."""
    return choice == "on" or (choice == "auto" and device.type == "cuda")


def use_graphs(choice: str, device: torch.device) -> bool:
    """Are steps captured as CUDA graphs? 'auto' means: on a GPU, by a process alone."""
    if choice == "on" and device.type != "cuda":
        raise ConfigError("train.graphs=on: only a CUDA device has graphs. Use --set train.graphs=auto.")
    return device.type == "cuda" and (choice == "on" or (choice == "auto" and processes.count() == 1))


@contextmanager
def arithmetic(*, deterministic: bool, device: torch.device) -> Iterator[None]:
    """How the device computes inside: repeatable to the bit, or with whatever algorithm is fastest."""
    before = torch.backends.cudnn.benchmark, _determinism()
    if deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = not deterministic
    _set_determinism((deterministic, False))
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        _set_determinism(before[1])


def _determinism() -> tuple[bool, bool]:
    """-> are deterministic algorithms asked for; and where there is none, is that only a warning."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_determinism(wanted: tuple[bool, bool]) -> None:
    """PyTorch's call imports its compiler, which takes a second: only where something changes."""
    if wanted != _determinism():
        torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def channels_last(network: T) -> T:
    """The network with its convolutions' weights laid out channels last, the faster way on CPUs and GPUs alike."""
    for weight in network.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return network


def read_async(tensor: Tensor) -> Callable[[], list[float]]:
    """Asks for the values of a tensor [n] -> a function that waits for them, and for nothing asked for since."""
    if tensor.device.type != "cuda":
        return tensor.tolist
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    on_host.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[float]:
        copied.synchronize()
        values: list[float] = on_host.tolist()
        return values

    return wait


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """PyTorch computes with `count` CPU threads inside; 0 leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe(device: torch.device) -> dict[str, Any]:
    """Versions, hardware and commit, as they stand in environment.json."""
    packages = ("torch", "numpy", "scikit-learn", "safetensors")
    return {
        "ipll": ipll.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "cores": machine.cores(),
        "processes": processes.count(),
    }


def free_memory(device: torch.device) -> int:
    """Bytes that this process could still have: of the GPU's memory, or of the machine's."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # PyTorch keeps what it had
        return torch.cuda.mem_get_info(device)[0] + unused
    return machine.free_memory()


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's memory, or of the process's; 0 on Windows, which does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree that this code runs from, with a '+' where it was changed.

    Without a repository around it (a copy on a cluster, an image), the environment variable IPLL_COMMIT may tell.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return os.environ.get("IPLL_COMMIT")

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("IPLL_COMMIT")
