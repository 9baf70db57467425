"""ANCL in its BiC variant: an auxiliary network that is free to learn the new task (Kim et al., CVPR 2023)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipll.component import FAMILIES, Batch, Component, Context, Phase
from ipll.engine.state import copy_state
from ipll.families.retention.bic import Bic, BicSettings
from ipll.networks.network import MASKED, Output
from ipll.networks.norm import keep_folded
from ipll.settings import setting


@dataclass(frozen=True)
class AnclSettings(BicSettings):
    auxiliary_weight: float = setting(1.0, "weight of the distillation from the auxiliary network", least=0)


@FAMILIES["retention"].register("ancl")
class Ancl(Bic):
    """From the second task on, a copy of the network first learns the task in a phase of its own, without retention.

    It has soft targets of its own and copies of the disambiguation's and auxiliary losses' state. The main network is
    then distilled towards both: the teacher on old classes, the auxiliary network on those born in the task. The
    authors released no BiC variant; this one follows their LwF variant's loss.
    """

    Settings = AnclSettings
    targets_of_auxiliary: Tensor  # [n, capacity]

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.network = copy.deepcopy(ctx.network)
        self.register_buffer("targets_of_auxiliary", torch.zeros(0, ctx.capacity, device=ctx.device))
        self.companions = nn.ModuleList(copy.deepcopy(part, {id(ctx): ctx}) for part in self._models())

    def _models(self) -> list[Component]:
        """The parts that the auxiliary phase needs copies of: those that were built before this one."""
        return list(self.ctx.parts[: self.ctx.parts.index(self)])

    def begin_task(self) -> None:
        if self.ctx.old:
            copy_state(self.ctx.network, self.network)
            for part, companion in zip(self._models(), self.companions, strict=True):
                copy_state(part, companion)
            self.targets_of_auxiliary = self.ctx.pool.p.clone()

    def begin_epoch(self) -> None:
        keep_folded(self.network)

    def trainable(self) -> Iterator[nn.Parameter]:
        """None in the main phase: the auxiliary network and the companions are trained in their own."""
        return iter(())

    def phases(self) -> tuple[Phase, ...]:
        if not self.ctx.old:
            return ()
        return (Phase("auxiliary", self.network, tuple(self.companions), self.targets_of_auxiliary),)  # type: ignore[arg-type]

    @torch.no_grad()
    def before(self, batch: Batch) -> None:
        super().before(batch)
        if self.ctx.old:
            self.network.eval()
            batch.extra["auxiliary"] = self._over_new(self.network(batch.views["weak"]).logits).softmax(dim=1)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(out, targets, batch)
        if self.ctx.old:
            student = self._over_new(out["weak"].logits).log_softmax(dim=1)
            terms["kd_auxiliary"] = -(batch.extra["auxiliary"] * student).sum(dim=1).mean()
        return terms

    def weights(self) -> dict[str, float]:
        return super().weights() | {"kd_auxiliary": self.settings.auxiliary_weight}

    def _over_new(self, logits: Tensor) -> Tensor:
        return torch.where(self.ctx.new_mask, logits.float() / self.settings.temperature, MASKED)
