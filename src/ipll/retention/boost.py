"""Boost, then compress: a task is learnt by a second network beside the old one, then both become one again.

After FOSTER (Wang et al., ECCV 2022), for soft targets and any disambiguation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipll.component import FAMILIES, Batch, Context, Phase, soft_cross_entropy
from ipll.data.loader import view_names
from ipll.engine.state import copy_state
from ipll.models.network import LinearHead, Network, Output
from ipll.models.norm import hold
from ipll.retention.distillation import Distillation, DistillationSettings
from ipll.settings import check, setting


@dataclass(frozen=True)
class BoostSettings(DistillationSettings):
    auxiliary_weight: float = setting(1.0, "weight of the cross-entropy of the new network alone, while it is trained")
    compress_temperature: float = setting(2.0, "both softmaxes of the compression are taken at this temperature, T")
    compress_weight: float = setting(1.0, "weight of the compression's loss, besides the factor T^2")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("auxiliary_weight", "compress_weight"):
            check(getattr(self, name) >= 0, f"retention.{name}", "not be negative", getattr(self, name))
        check(self.compress_temperature > 0, "retention.compress_temperature", "be positive", self.compress_temperature)


class Pair(nn.Module):
    """The old network, frozen, and a new one that starts from it, under one head over the features of both.

    Only its logits are of both. Features, embedding and weights are the new network's, as parts expect them of a
    network: a disambiguation reads features of its width, PiCO's key encoder follows its weights.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx  # the old network is the teacher: no part of this module, neither trained nor kept with it
        self.new: Network = copy.deepcopy(ctx.network)
        self.head = LinearHead(2 * ctx.network.dim, ctx.capacity).to(ctx.device)  # old features first
        self.heard: list[Tensor] = []  # the old network's features of a step's views, in the order of its passes

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The new network's alone: the head's are trained as Boosting's."""
        return self.new.parameters(recurse)

    @torch.no_grad()
    def begin(self) -> None:
        """The network as it is now joins the old one; the head says at first what the network's own says."""
        network, dim = self.ctx.network, self.ctx.network.dim
        copy_state(network, self.new)
        self.head.weight.zero_()[:, :dim] = network.head.weight
        self.head.bias.copy_(network.head.bias)
        self.head.born.copy_(network.head.born)

    def forward(self, x: Tensor) -> Output:
        with torch.no_grad():
            old = self.ctx.teacher(x).features
        if self.training:
            self.heard.append(old)
        new = self.new(x)
        logits = self.head(torch.cat([old, new.features], dim=1))
        return Output(new.features, logits, logits, new.embedding)


class Boosting(Distillation):
    """In the phase in which the pair is trained: the old network's word on old classes, and the new network alone.

    The old network runs within the pair: what it says there is what is distilled, and it is not asked again.
    """

    def __init__(self, settings: BoostSettings, pair: Pair) -> None:
        super().__init__(settings)
        self.pair = [pair]  # in a list: it belongs to Boost

    def trainable(self) -> Iterator[nn.Parameter]:
        """The head over both networks; the new one is the phase's own."""
        return self.pair[0].head.parameters()

    def before(self, batch: Batch) -> None:
        self.pair[0].heard.clear()

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> None:
        """The first pass is over: the views were heard weak first, and further passes repeat them."""
        heard = torch.cat(self.pair[0].heard)[: len(p) * len(self._asked())]
        logits = self.ctx.correct(self.ctx.teacher.head(heard))
        batch.extra["teacher"] = self._over_old(logits).softmax(dim=1)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        alone = out["weak"].logits.new_zeros(())
        for view in (out[name] for name in ("weak", "strong") if name in out):
            logits = self.pair[0].new.head(view.features)
            alone = alone + soft_cross_entropy(logits + (view.shaped - view.logits).detach(), targets)
        return super().losses(out, targets, batch) | {"alone": alone}

    def weights(self) -> dict[str, float]:
        return super().weights() | {"alone": self.settings.auxiliary_weight}


@FAMILIES["retention"].register("boost")
class Boost(Distillation):
    """From the second task on, two phases.

    First a copy of the network learns the task beside the frozen old one: a head over the features of both, every loss
    of the method, distillation on old classes, and cross-entropy of the new half alone. Pseudo-labels are decided here.
    Then the network itself, which still is the old one, learns what the pair says of each view (soft targets at a
    temperature), in place of cross-entropy; pseudo-labels rest. What is left is one network, as before.
    """

    Settings = BoostSettings
    needs = frozenset({"linear head"})

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.pair = Pair(ctx)
        self.boosting = Boosting(self.settings, self.pair)
        self.boosting.build(ctx)

    def begin_task(self) -> None:
        if self.ctx.old:
            self.pair.begin()

    def begin_epoch(self) -> None:
        hold(self.pair)

    def trainable(self) -> Iterator[nn.Parameter]:
        """None in the main phase: the pair is trained in its own."""
        return iter(())

    def phases(self) -> tuple[Phase, ...]:
        if not self.ctx.old:
            return ()
        parts = tuple(self.boosting if part is self else part for part in self.ctx.parts)
        return (Phase("boost", self.pair, parts, self.ctx.pool.p),)  # type: ignore[arg-type]

    @torch.no_grad()
    def before(self, batch: Batch) -> None:
        if self.ctx.old:
            self.pair.eval()
            views = torch.cat([batch.views[name] for name in view_names(self.ctx.phase)])
            batch.extra["pair"] = self._softened(self.pair(views).logits).softmax(dim=1)

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
