"""PiCO's label disambiguation: prototypes of embeddings teach the classifier (Wang et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Batch, Context, predict_within
from ipll.families.disambiguation import Disambiguation
from ipll.families.embedding import follow, ramp
from ipll.networks.network import Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class PicoSettings(Section, name="disambiguation"):
    start: int = setting(1, "epoch of a task from which targets are updated", "official code", least=0)
    phi_start: float = setting(0.95, "momentum of the targets, as a task starts", "official code", within=(0, 1))
    phi_end: float = setting(0.8, "and at its end", "official code", within=(0, 1))
    prototype_momentum: float = setting(0.99, "of the prototypes, sample by sample", "official code", within=(0, 1))


@FAMILIES["disambiguation"].register("pico")
class Pico(Disambiguation):
    """The candidate whose prototype is nearest to the embedding moves the target, before the loss.

    Prototypes of new classes start at zero, as in the official code; an old class with a positive similarity beats
    them at first. That is the early bias to old classes which the paper's Fig. 2 shows.
    """

    Settings = PicoSettings
    needs = frozenset({"projection"})
    mu: Tensor  # [capacity, width]
    phi: Tensor  # 0-d

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("mu", torch.zeros(ctx.capacity, ctx.network.width, device=ctx.device))
        self.register_buffer("phi", torch.zeros((), device=ctx.device))

    def begin_epoch(self) -> None:
        ctx, settings = self.ctx, self.settings
        self.phi.fill_(ramp(ctx.epoch, ctx.epochs, 0.99, settings.phi_start, settings.phi_end))

    def stage(self) -> bool:
        """Have the targets begun to move?"""
        return self.ctx.epoch >= int(self.settings.start)

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        if not self.stage():
            return p, p
        z = F.one_hot(predict_within(out["weak"].embedding @ self.mu.T, batch.candidates), p.shape[1])
        updated = self.phi * p + (1 - self.phi) * z
        return updated, updated

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        label = predict_within(out["weak"].logits, batch.candidates)
        self.mu.copy_(follow(self.mu, out["weak"].embedding, label, self.settings.prototype_momentum))
