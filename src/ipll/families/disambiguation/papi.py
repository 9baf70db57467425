"""PaPi's label disambiguation: the linear classifier's soft predictions move the targets (Xia et al., CVPR 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.component import FAMILIES, Batch, Context
from ipll.families.disambiguation import Disambiguation
from ipll.families.embedding import ramp
from ipll.networks.network import Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class PapiSettings(Section, name="disambiguation"):
    momentum_start: float = setting(0.95, "momentum of the targets, as a task starts", "official code", within=(0, 1))
    momentum_end: float = setting(0.8, "and at its end", "official code", within=(0, 1))


@FAMILIES["disambiguation"].register("papi")
class Papi(Disambiguation):
    """s <- w s + (1 - w) f restricted to S_i, before the loss; w is 0.99 in a task's first epoch."""

    Settings = PapiSettings
    momentum: Tensor  # 0-d

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("momentum", torch.zeros((), device=ctx.device))

    def begin_epoch(self) -> None:
        ctx, settings = self.ctx, self.settings
        self.momentum.fill_(ramp(ctx.epoch, ctx.epochs, 0.99, settings.momentum_start, settings.momentum_end))

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        predicted = out["weak"].logits.masked_fill(~batch.candidates, -torch.inf).softmax(dim=1)
        updated = self.momentum * p + (1 - self.momentum) * predicted
        return updated, updated
