"""PGDR's prototype-guided disambiguation: separation, re-allocation, momentum pseudo-labels (Eqs. 3 to 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Batch, Context, predict_within
from ipll.disambiguation.base import Disambiguation
from ipll.models.network import Output
from ipll.settings import check, check_choice, setting


@dataclass(frozen=True)
class PgdrSettings:
    beta_start: float = setting(0.8, "momentum of the pseudo-labels in a task's first epoch (Eq. 6)", "paper")
    beta_end: float = setting(0.6, "and in its last; linear in between", "paper")
    empty_set: str = setting(
        "old", "a sample without a new candidate: 'old' (it joins D_old) or 'restore' (it keeps S_i)"
    )
    memory_targets: str = setting("update", "pseudo-labels of memory samples: 'update' or 'freeze'")

    def __post_init__(self) -> None:
        for name in ("beta_start", "beta_end"):
            value = getattr(self, name)
            check(0 <= value <= 1, f"disambiguation.{name}", "be in [0, 1]", value)
        check_choice("disambiguation.empty_set", self.empty_set, ("old", "restore"))
        check_choice("disambiguation.memory_targets", self.memory_targets, ("update", "freeze"))


@FAMILIES["disambiguation"].register("pgdr")
class Pgdr(Disambiguation):
    """Old candidates are settled by prototypes before training, new ones by momentum on the network's predictions.

    The argmax of Eq. 6 runs over the original set S_i, so a label that the re-allocation dropped can come back.
    No sample starts with an empty set: where re-allocation leaves nothing, S_i stays.
    """

    Settings = PgdrSettings
    needs = frozenset({"separation", "prototypes"})
    beta: Tensor  # 0-d, filled in place

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("beta", torch.zeros((), device=ctx.device))

    def first_sets(self) -> Tensor:
        ctx, candidates = self.ctx, super().first_sets()
        if ctx.old == 0:
            return candidates
        features, logits = ctx.embed(ctx.pool.samples[: ctx.pool.incoming])
        judgement = ctx.separation.judge(features, logits, candidates)
        old = judgement.old
        if self.settings.empty_set == "old":
            old = old | ~(candidates & ctx.new_mask).any(dim=1)
        ctx.pool.judged_old.copy_(old)
        placed = candidates & (ctx.prototypes.known | ctx.new_mask)  # c* must be a class that has a prototype
        sets = reallocate(placed, old, judgement.nearest, ctx.new_mask)
        return torch.where(sets.any(dim=1, keepdim=True), sets, candidates)

    def begin_epoch(self) -> None:
        done = self.ctx.epoch / max(self.ctx.epochs - 1, 1)
        self.beta.fill_(self.settings.beta_start + done * (self.settings.beta_end - self.settings.beta_start))

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        z = F.one_hot(predict_within(out["weak"].logits, batch.candidates), p.shape[1]).to(p.dtype)
        updated = self.beta * p + (1 - self.beta) * z
        if self.settings.memory_targets == "freeze":
            updated = torch.where(batch.from_memory[:, None], p, updated)
        return updated, updated


def reallocate(candidates: Tensor, old: Tensor, nearest: Tensor, new_mask: Tensor) -> Tensor:
    """Eq. 4: S'_i = S_i without old classes, and with c*_i for samples judged old -> [n, capacity] bool.

    c*_i is added only where it is a candidate: a sample without any old candidate has none.
    """
    chosen = F.one_hot(nearest, candidates.shape[1]).bool() & old[:, None] & candidates & ~new_mask
    return chosen | (candidates & new_mask)
