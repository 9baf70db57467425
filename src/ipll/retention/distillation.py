"""Knowledge distillation: the network keeps saying of old classes what it said at the end of the last task (Eq. 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.component import FAMILIES, Batch, Component
from ipll.models.network import MASKED, Output
from ipll.settings import check, setting

FAMILIES["retention"].register("none")(Component)


@dataclass(frozen=True)
class DistillationSettings:
    weight: float = setting(1.0, "weight of L_kd in the total loss (Eq. 11)", "paper")
    temperature: float = setting(1.0, "both softmaxes are taken at this temperature")
    literal: bool = setting(
        False, "Eq. 10 as written: the new network's softmax runs over all seen classes, not only the old ones"
    )

    def __post_init__(self) -> None:
        check(self.weight >= 0, "retention.weight", "not be negative", self.weight)
        check(self.temperature > 0, "retention.temperature", "be positive", self.temperature)


@FAMILIES["retention"].register("distillation")
class Distillation(Component):
    Settings = DistillationSettings

    @torch.no_grad()
    def before(self, batch: Batch) -> None:
        if self.ctx.old:
            logits = self.ctx.correct(self.ctx.teacher(batch.views["weak"]).logits)
            batch.extra["teacher"] = self._over_old(logits).softmax(dim=1)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        if not self.ctx.old:
            return {}
        logits = out["weak"].logits
        student = logits.float() / self.settings.temperature if self.settings.literal else self._over_old(logits)
        return {"kd": -(batch.extra["teacher"] * student.log_softmax(dim=1)).sum(dim=1).mean()}

    def weights(self) -> dict[str, float]:
        return {"kd": self.settings.weight}

    def _over_old(self, logits: Tensor) -> Tensor:
        return torch.where(self.ctx.old_mask, logits.float() / self.settings.temperature, MASKED)
