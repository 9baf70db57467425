"""C-Flat: steps towards flat minima, by four passes over each batch (Bian et al., NeurIPS 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipll.component import FAMILIES
from ipll.families.update.sgd import Sgd
from ipll.settings import Section, setting

Tensors = list[Tensor]


@dataclass(frozen=True)
class CFlatSettings(Section, name="update"):
    rho: float = setting(0.2, "radius of the perturbations", "official code", above=0)
    strength: float = setting(0.2, "lambda: weight of the first-order flatness term", "official code", least=0)


@FAMILIES["update"].register("c-flat")
class CFlat(Sgd):
    """From the second task on: g1 + lambda (g3 - g2), gradients at perturbed weights; the first task is plain SGD.

    g0 at w; g1 at w + rho g0/|g0|; with v = g1 - g0, g2 at w + rho v/|v|, g3 a further rho g2/|g2| away. Batch norm's
    running statistics move only in the first pass. Targets and views are those of the first pass: losses are pure.
    """

    Settings = CFlatSettings

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        if not self.ctx.old:
            return super().step(loss)
        weights: Tensors = [w for w in self.descent.weights if w.requires_grad]
        value, g0 = _gradient(loss, weights)
        with _kept_statistics(self.ctx.phase.network):
            origin = [w.detach().clone() for w in weights]
            _move(weights, g0, self.settings.rho)
            g1 = _gradient(loss, weights)[1]
            _put(weights, origin)
            _move(weights, list(torch._foreach_sub(g1, g0)), self.settings.rho)
            g2 = _gradient(loss, weights)[1]
            _move(weights, g2, self.settings.rho)
            g3 = _gradient(loss, weights)[1]
            _put(weights, origin)
        final = torch._foreach_add(g1, torch._foreach_sub(g3, g2), alpha=self.settings.strength)
        for w, g in zip(weights, final, strict=True):
            w.grad = g
        self.descent.step()
        return value


def _gradient(loss: Callable[[], Tensor], weights: Tensors) -> tuple[Tensor, Tensors]:
    value = loss()
    gradients = torch.autograd.grad(value, weights, allow_unused=True)
    filled = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)]
    return value.detach(), filled


@torch.no_grad()
def _move(weights: Tensors, direction: Tensors, rho: float) -> None:
    """w <- w + rho d/|d|, the norm over all weights together."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(direction)))
    torch._foreach_add_(weights, torch._foreach_mul(direction, rho / (norm + 1e-12)))


@torch.no_grad()
def _put(weights: Tensors, values: Tensors) -> None:
    torch._foreach_copy_(weights, values)


@contextmanager
def _kept_statistics(network: nn.Module) -> Iterator[None]:
    """Batch norm goes on normalising by the batch; its running statistics are as before afterwards."""
    buffers: Tensors = list(network.buffers())
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)
