"""ER-ACE: replay with an asymmetric cross-entropy (Caccia et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Batch, Component, predict_within
from ipll.networks.network import MASKED, Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class ErAceSettings(Section, name="retention"):
    warm_up: float = setting(
        0.05, "share of a task's epochs in which incoming samples see only classes born in it", within=(0, 1)
    )


@FAMILIES["retention"].register("er-ace")
class ErAce(Component):
    """Incoming samples compete only among current classes, so that they do not push old ones down.

    Current are the classes born in the task and those that the network itself predicts for incoming samples of the
    batch. The union of candidate sets would hold every class, and the mask would do nothing. Memory samples see all
    seen classes. The loss is the sum of both halves' means, with batches of one part incoming, one part memory.
    """

    Settings = ErAceSettings
    needs = frozenset({"memory"})

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy in place of the disambiguation's: the mean of incoming samples plus that of memory's."""
        each = -(targets * out["weak"].shaped.float().log_softmax(dim=1)).sum(dim=1)
        return {"ce": _mean_of(each, ~batch.from_memory) + _mean_of(each, batch.from_memory)}

    def stage(self) -> bool:
        """Is it still warming up? A task that brings no new class has nothing to be warmed up to."""
        return self.ctx.old < self.ctx.seen and self.ctx.epoch < float(self.settings.warm_up) * self.ctx.epochs

    def limit(self, candidates: Tensor, batch: Batch) -> Tensor:
        """While it warms up, pseudo-labels of incoming samples stay among the new candidates, where there are any.

        Incoming samples never push old classes down, so at first an old candidate would win them all.
        """
        if not self.stage():
            return candidates
        fresh = (candidates & self.ctx.new_mask).any(dim=1, keepdim=True) & ~batch.from_memory[:, None]
        return candidates & (self.ctx.new_mask | ~fresh)

    def reshape(self, out: dict[str, Output], targets: Tensor, batch: Batch) -> tuple[dict[str, Output], Tensor]:
        incoming = ~batch.from_memory[:, None]
        predicted = F.one_hot(predict_within(out["weak"].logits.detach(), batch.candidates), targets.shape[1]).bool()
        born = self.ctx.new_mask
        current = born if self.stage() else born | (predicted & incoming).any(dim=0)
        allowed, targets = asymmetric(targets, predicted, current, incoming)
        shaped = {name: o._replace(shaped=torch.where(allowed, o.shaped, MASKED)) for name, o in out.items()}
        return shaped, targets


def _mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values; 0 of none."""
    return (values * chosen).sum() / chosen.sum().clamp_min(1)


def asymmetric(targets: Tensor, predicted: Tensor, current: Tensor, incoming: Tensor) -> tuple[Tensor, Tensor]:
    """-> which classes each sample sees [n, capacity], and its targets, renormalised over them.

    An incoming sample whose target has no weight on a current class sees its predicted class as well, and learns that.
    """
    restricted = targets * current
    weight = restricted.sum(dim=1, keepdim=True)
    outside = weight <= 0
    renormalised = torch.where(outside, predicted.to(targets.dtype), restricted / weight.clamp_min(1e-12))
    allowed = ~incoming | current | (outside & predicted)
    return allowed, torch.where(incoming, renormalised, targets)
