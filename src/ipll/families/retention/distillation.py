"""Knowledge distillation: the network keeps saying of old classes what it said at the end of the last task (Eq. 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.batches import view_names
from ipll.component import FAMILIES, Batch, Component
from ipll.networks.network import MASKED, Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class DistillationSettings(Section, name="retention"):
    weight: float = setting(1.0, "weight of L_kd in the total loss (Eq. 11)", "paper", least=0)
    temperature: float = setting(1.0, "temperature of both softmaxes", above=0)
    views: str = setting(
        "weak", "asked of the teacher: the 'weak' view, or 'all' that are trained on", choices=("weak", "all")
    )
    growth: float = setting(0.0, "the weight grows with the classes: times (old / new classes) to this power", least=0)
    literal: bool = setting(
        False, "Eq. 10 as written: the new network's softmax runs over all seen classes, not only the old ones"
    )


@FAMILIES["retention"].register("distillation")
class Distillation(Component):
    Settings = DistillationSettings

    @torch.no_grad()
    def before(self, batch: Batch) -> None:
        if self.ctx.old:
            logits = self.ctx.correct(self.ctx.teacher(torch.cat([batch.views[name] for name in self._asked()])).logits)
            batch.extra["teacher"] = self._over_old(logits).softmax(dim=1)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        if not self.ctx.old:
            return {}
        logits = torch.cat([out[name].logits for name in self._asked()])
        student = logits.float() / self.settings.temperature if self.settings.literal else self._over_old(logits)
        return {"kd": -(batch.extra["teacher"] * student.log_softmax(dim=1)).sum(dim=1).mean()}

    def weights(self) -> dict[str, float]:
        ratio = self.ctx.old / max(self.ctx.seen - self.ctx.old, 1)
        return {"kd": self.settings.weight * ratio**self.settings.growth}

    def _asked(self) -> tuple[str, ...]:
        return view_names(self.ctx.phase) if self.settings.views == "all" else ("weak",)

    def _over_old(self, logits: Tensor) -> Tensor:
        return torch.where(self.ctx.old_mask, logits.float() / self.settings.temperature, MASKED)
