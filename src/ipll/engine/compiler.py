"""Compilation: what is compiled, and with what. Shapes are fixed, so each function is compiled once for each use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

T = TypeVar("T")

BACKEND = "inductor"
VARIANTS = 64  # of one function: training, evaluation, a key encoder; PyTorch would give up after 8


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    _keep_kernels_in_one_place()
    return torch.compile(function, dynamic=False, backend=BACKEND)


def compile_module(module: nn.Module) -> None:
    """Compiles a module's forward pass in place."""
    import torch._dynamo  # slow to import, and not needed without a compiler

    torch._dynamo.config.recompile_limit = VARIANTS
    module.compile(dynamic=False, backend=BACKEND)


def _keep_kernels_in_one_place() -> None:
    """PyTorch's compiler may move Triton's cache in the middle of a run, but not in every run: our own kernels
    (networks/fused.py) would be compiled once for each place. Here it is named at the start: beside the compiler's
    cache where a user has named that, else where Triton has it."""
    beside = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    home = os.environ.get("TRITON_HOME") or Path.home()
    place = Path(beside) / "triton" if beside else Path(home) / ".triton" / "cache"
    os.environ.setdefault("TRITON_CACHE_DIR", str(place))
