"""WA: weight aligning after distillation (Zhao et al., CVPR 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.component import FAMILIES
from ipll.families.retention.distillation import Distillation, DistillationSettings
from ipll.settings import setting


@dataclass(frozen=True)
class WeightedSettings(DistillationSettings):
    temperature: float = setting(2.0, "temperature of both softmaxes; no factor T^2", "official code", above=0)


class WeightedDistillation(Distillation):
    """Distillation that weighs lambda = old / seen classes, against 1 - lambda for the cross-entropy of every view.

    A task without a new class counts as one with a single new class: with lambda = 1 nothing would be learnt from it.
    """

    Settings = WeightedSettings

    def weights(self) -> dict[str, float]:
        share = min(self.ctx.old, self.ctx.seen - 1) / self.ctx.seen
        return dict.fromkeys(("ce", "cr", "cutmix"), 1 - share) | {"kd": share * super().weights()["kd"]}


@dataclass(frozen=True)
class WaSettings(WeightedSettings):
    align_bias: bool = setting(False, "scale the new classes' biases too; the official code leaves them alone")
    weighting: str = setting(
        "classes",
        "of distillation and cross-entropy: old and new over seen 'classes', or 'one' each, as in C-Flat's code",
        choices=("classes", "one"),
    )


@FAMILIES["retention"].register("wa")
class Wa(WeightedDistillation):
    """After a task, the new classes' weights are scaled to the old ones' mean norm. Old and new go by birth."""

    Settings = WaSettings
    needs = frozenset({"linear head"})  # norms of weights mean nothing to a cosine head

    def weights(self) -> dict[str, float]:
        return Distillation.weights(self) if self.settings.weighting == "one" else super().weights()

    def end_task(self) -> None:
        if self.ctx.old:
            head = self.ctx.network.head
            gamma = alignment(head.weight, self.ctx.old_mask, self.ctx.new_mask)
            factor = torch.where(self.ctx.new_mask, gamma, 1.0)
            head.weight.mul_(factor[:, None])
            if self.settings.align_bias:
                head.bias.mul_(factor)


def alignment(weight: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """gamma: the mean norm of the old classes' rows over that of the new ones'."""
    norms: Tensor = torch.linalg.vector_norm(weight, dim=1)
    return norms[old].mean() / norms[new].mean()
