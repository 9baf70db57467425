"""Compilation: what is compiled, and with what. Shapes are fixed, so each function is compiled once for each use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from ipll.models.network import Network

T = TypeVar("T")

BACKEND = "inductor"
VARIANTS = 64  # of one function: training, evaluation, a key encoder; PyTorch would give up after 8


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    return torch.compile(function, dynamic=False, backend=BACKEND)


def compile_networks(module: nn.Module, *, every: bool) -> None:
    """Compiles the networks inside `module`; not those whose layers have kernels of their own, unless `every` one.

    Classes yet to come are there and masked: new ones change nothing.
    """
    import torch._dynamo  # slow to import, and not needed without a compiler

    torch._dynamo.config.recompile_limit = VARIANTS
    for part in module.modules():
        if isinstance(part, Network) and (every or not part.fuses()):
            part.compile(dynamic=False, backend=BACKEND)
