"""Update rules: how a gradient step is made from a loss that can be asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from ipll.component import Component

MEMBERS = ("sgd", "c_flat")


class Update(Component):
    """Base: owns the optimiser of the phase that is being trained."""

    optimiser: torch.optim.SGD

    def begin_phase(self, parameters: Iterable[nn.Parameter], *, momentum: float, weight_decay: float) -> None:
        """A fresh optimiser; the learning rate is set in each epoch."""
        weights = list(parameters)
        fused = weights[0].is_cuda
        lr = torch.zeros((), device=weights[0].device) if fused else 0.0  # a tensor: a captured step must follow it
        self.optimiser = torch.optim.SGD(weights, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)

    def set_lr(self, lr: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def momenta(self) -> dict[int, Tensor]:
        """The optimiser's whole state: parameter number -> momentum, for parameters that have one by now."""
        weights = self.optimiser.param_groups[0]["params"]
        state = {i: self.optimiser.state[w].get("momentum_buffer") for i, w in enumerate(weights)}
        return {i: momentum for i, momentum in state.items() if momentum is not None}

    def set_momenta(self, momenta: Mapping[int, Tensor]) -> None:
        weights = self.optimiser.param_groups[0]["params"]
        for i, momentum in momenta.items():
            # In the weight's own memory layout: fused kernels refuse any other.
            self.optimiser.state[weights[i]]["momentum_buffer"] = torch.empty_like(weights[i]).copy_(momentum)

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """One step; `loss` runs the forward pass and may be called several times. -> the first loss, detached."""
        raise NotImplementedError
