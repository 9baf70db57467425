"""Boost, then compress: a task is learnt by a second network beside the old one, then both become one again.

After FOSTER (Wang et al., ECCV 2022), for soft targets and any disambiguation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipll.batches import view_names
from ipll.component import FAMILIES, ONE, Batch, Component, Context, Phase, soft_cross_entropy
from ipll.engine.state import copy_state
from ipll.families.retention.distillation import Distillation, DistillationSettings
from ipll.networks.network import Output
from ipll.networks.norm import keep_folded
from ipll.settings import setting


@dataclass(frozen=True)
class BoostSettings(DistillationSettings):
    auxiliary_weight: float = setting(
        1.0, "weight of the cross-entropy of the new network alone, while it is trained", least=0
    )
    compress_temperature: float = setting(2.0, "T, the temperature of both softmaxes of the compression", above=0)
    compress_weight: float = setting(1.0, "weight of the compression's loss, besides the factor T^2", least=0)


class Boosting(Distillation):
    """In the phase in which the new network is trained: a head over its features and the old network's, whose logits
    take the place of its own; the old network's word on old classes; and the new network alone.

    The old network is the teacher. It runs beside the new one, once for all that is asked of it.
    """

    Settings = BoostSettings

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.head = type(ctx.network.head)(2 * ctx.network.dim, ctx.capacity).to(ctx.device)  # old features first

    @torch.no_grad()
    def start(self) -> None:
        """The head says at first what the network's own says."""
        own, dim = self.ctx.network.head, self.ctx.network.dim
        self.head.weight.zero_()[:, :dim] = own.weight
        self.head.bias.copy_(own.bias)
        self.head.born.copy_(own.born)

    def logits(self, old: Tensor, new: Tensor) -> Tensor:
        """-> what both networks say together, by their features [n, dim] each."""
        said: Tensor = self.head(torch.cat([old, new], dim=1))
        return said

    @torch.no_grad()
    def before(self, batch: Batch) -> None:
        names = view_names(self.ctx.phase)
        said = self.ctx.teacher(torch.cat([batch.views[name] for name in names]))
        asked = self.ctx.correct(said.logits[: len(batch.rows) * len(self._asked())])  # the weak view comes first
        batch.extra["teacher"] = self._over_old(asked).softmax(dim=1)
        batch.extra |= {f"old {name}": part for name, part in zip(names, said.features.chunk(len(names)), strict=True)}

    def combine(self, out: dict[str, Output], batch: Batch) -> dict[str, Output]:
        both = {name: self.logits(batch.extra[f"old {name}"], view.features) for name, view in out.items()}
        return {name: view._replace(logits=both[name], shaped=both[name]) for name, view in out.items()}

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        alone = out["weak"].logits.new_zeros(())
        for view in (out[name] for name in ("weak", "strong") if name in out):
            logits = self.ctx.phase.network.head(view.features)
            alone = alone + soft_cross_entropy(logits + (view.shaped - view.logits).detach(), targets)
        return super().losses(out, targets, batch) | {"alone": alone}

    def weights(self) -> dict[str, float]:
        return super().weights() | {"alone": self.settings.auxiliary_weight}


@FAMILIES["retention"].register("boost")
class Boost(Component):
    """From the second task on, two phases.

    First a copy of the network learns the task beside the frozen old one: a head over the features of both, every loss
    of the method, distillation on old classes, and cross-entropy of the new half alone. Pseudo-labels are decided here.
    Then the network itself, which still is the old one, learns what the pair says of each view (soft targets at a
    temperature), in place of cross-entropy; pseudo-labels rest. What is left is one network, as before.
    """

    Settings = BoostSettings
    needs = frozenset({ONE})

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.network = copy.deepcopy(ctx.network)  # the new one
        self.boosting = Boosting(self.settings)
        self.boosting.build(ctx)

    def begin_task(self) -> None:
        if self.ctx.old:
            copy_state(self.ctx.network, self.network)
            self.boosting.start()

    def begin_epoch(self) -> None:
        keep_folded(self.network)

    def trainable(self) -> Iterator[nn.Parameter]:
        """None in the main phase: the pair is trained in its own."""
        return iter(())

    def phases(self) -> tuple[Phase, ...]:
        if not self.ctx.old:
            return ()
        parts = tuple(self.boosting if part is self else part for part in self.ctx.parts)
        return (Phase("boost", self.network, parts, self.ctx.pool.p),)

    @torch.no_grad()
    def before(self, batch: Batch) -> None:
        if self.ctx.old:
            self.network.eval()
            views = torch.cat([batch.views[name] for name in view_names(self.ctx.phase)])
            logits = self.boosting.logits(self.ctx.teacher(views).features, self.network(views).features)
            batch.extra["pair"] = self._softened(logits).softmax(dim=1)

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor] | None:
        return (p, p) if self.ctx.old else None

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        if not self.ctx.old:
            return {}
        student = self._softened(torch.cat([out[name].logits for name in view_names(self.ctx.phase)]))
        return {"compress": -(batch.extra["pair"] * student.log_softmax(dim=1)).sum(dim=1).mean()}

    def weights(self) -> dict[str, float]:
        if not self.ctx.old:
            return {}
        factor = self.settings.compress_weight * self.settings.compress_temperature**2
        return dict.fromkeys(("ce", "cr", "cutmix"), 0.0) | {"compress": factor}

    def _softened(self, logits: Tensor) -> Tensor:
        softened: Tensor = logits.float() / self.settings.compress_temperature
        return softened
