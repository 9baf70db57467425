"""Update rules: how a gradient step is made from a loss that can be asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd as pytorch_sgd

from ipll.component import FAMILIES, Component, lacking

MEMBERS = ("sgd", "c_flat")


class Descent:
    """SGD with momentum over some weights, by PyTorch's own arithmetic.

    Not its `torch.optim.SGD`: the first one that a process makes imports PyTorch's compiler, 1.2 s of every command
    that trains.
    """

    def __init__(self, weights: Iterable[nn.Parameter], *, momentum: float, weight_decay: float) -> None:
        self.weights = list(weights)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocities: list[Tensor | None] = [None] * len(self.weights)  # of each weight, from its first step on
        self.fused = self.weights[0].is_cuda
        # A tensor on a GPU: a captured step must follow it.
        self.lr: float | Tensor = torch.zeros((), device=self.weights[0].device) if self.fused else 0.0

    def set_lr(self, lr: float) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(lr)
        else:
            self.lr = lr

    def momenta(self) -> dict[int, Tensor]:
        """The whole state: number of a weight -> its velocity, for those that have one by now."""
        return {i: velocity for i, velocity in enumerate(self.velocities) if velocity is not None}

    def set_momenta(self, momenta: Mapping[int, Tensor]) -> None:
        for i, momentum in momenta.items():
            # In the weight's own memory layout: fused kernels refuse any other.
            self.velocities[i] = torch.empty_like(self.weights[i]).copy_(momentum)

    def forget_gradients(self) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """v <- momentum v + gradient + weight_decay w; w <- w - lr v, of every weight that has a gradient."""
        moved = [i for i, weight in enumerate(self.weights) if weight.grad is not None]
        weights: list[Any] = [self.weights[i] for i in moved]
        velocities, lr = [self.velocities[i] for i in moved], cast(float, self.lr)  # a tensor is taken, too
        pytorch_sgd(
            weights, [weight.grad for weight in weights], velocities, fused=self.fused, lr=lr, momentum=self.momentum,
            weight_decay=self.weight_decay, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        for i, velocity in zip(moved, velocities, strict=True):  # made there in the first step
            self.velocities[i] = velocity


class Update(Component):
    """Base: owns the descent of the phase that is being trained."""

    descent: Descent

    def begin_phase(self, parameters: Iterable[nn.Parameter], *, momentum: float, weight_decay: float) -> None:
        """From rest; the learning rate is set in each epoch."""
        self.descent = Descent(parameters, momentum=momentum, weight_decay=weight_decay)

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """One step; `loss` runs the forward pass and may be called several times. -> the first loss, detached."""
        raise lacking(self, "step")


FAMILIES["update"].base = Update
