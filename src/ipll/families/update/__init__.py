"""Update rules: how a gradient step is made from a loss that can be asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd as pytorch_sgd

from ipll.component import Component

MEMBERS = ("sgd", "c_flat")


class Update(Component):
    """Base: SGD with momentum over the weights of the phase that is being trained.

    Its arithmetic is PyTorch's. Its `torch.optim.SGD` is not used: the first one that a process makes imports PyTorch's
    compiler, 1.2 s of every command that trains.
    """

    params: list[nn.Parameter]
    velocities: list[Tensor | None]  # of each weight, from its first step on
    lr: float | Tensor

    def begin_phase(self, parameters: Iterable[nn.Parameter], *, momentum: float, weight_decay: float) -> None:
        """From rest; the learning rate is set in each epoch."""
        self.params = list(parameters)
        self.velocities = [None] * len(self.params)
        self.momentum, self.weight_decay = momentum, weight_decay
        first = self.params[0]
        self.lr = torch.zeros((), device=first.device) if first.is_cuda else 0.0  # a captured step must follow it

    def set_lr(self, lr: float) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(lr)
        else:
            self.lr = lr

    def momenta(self) -> dict[int, Tensor]:
        """The whole state: parameter number -> momentum, for parameters that have one by now."""
        return {i: velocity for i, velocity in enumerate(self.velocities) if velocity is not None}

    def set_momenta(self, momenta: Mapping[int, Tensor]) -> None:
        for i, momentum in momenta.items():
            # In the weight's own memory layout: fused kernels refuse any other.
            self.velocities[i] = torch.empty_like(self.params[i]).copy_(momentum)

    def forget_gradients(self) -> None:
        for weight in self.params:
            weight.grad = None

    @torch.no_grad()
    def descend(self) -> None:
        """v <- momentum v + gradient + weight_decay w; w <- w - lr v, of every weight that has a gradient."""
        moved = [i for i, weight in enumerate(self.params) if weight.grad is not None]
        weights: list[Any] = [self.params[i] for i in moved]
        velocities = [self.velocities[i] for i in moved]
        lr: Any = self.lr
        pytorch_sgd(
            weights, [weight.grad for weight in weights], velocities, fused=isinstance(lr, Tensor), lr=lr,
            momentum=self.momentum, weight_decay=self.weight_decay, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        for i, velocity in zip(moved, velocities, strict=True):  # made there in the first step
            self.velocities[i] = velocity

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """One step; `loss` runs the forward pass and may be called several times. -> the first loss, detached."""
        raise NotImplementedError
