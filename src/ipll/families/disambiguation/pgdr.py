"""PGDR's prototype-guided disambiguation: separation, re-allocation, momentum pseudo-labels (Eqs. 3 to 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Batch, Context, lacking, predict_within, uniform_over
from ipll.families.disambiguation import Disambiguation
from ipll.families.disambiguation.robust import HeldOut, Misses, misses_of
from ipll.networks.network import Output
from ipll.settings import Section, check, setting

RAREST = 1e-6  # share of a class that no target has any weight on
LEAST = 1e-3  # samples of a class that a prior finds, at least


@dataclass(frozen=True)
class MomentumSettings(Section, name="disambiguation"):
    beta_start: float = setting(
        0.8, "momentum of the pseudo-labels in a task's first epoch (Eq. 6)", "paper", within=(0, 1)
    )
    beta_end: float = setting(0.6, "and in its last; linear in between", "paper", within=(0, 1))
    soft: bool = setting(False, "z of Eq. 6 is the prediction within S_i, instead of its largest entry alone")
    sharpness: float = setting(1.0, "where z is soft: the power to which the prediction is raised", above=0)
    warm_up: float = setting(
        0.0, "share of a task's epochs in which pseudo-labels stay as they started", least=0, below=1
    )
    memory_targets: str = setting("update", "pseudo-labels of memory samples", choices=("update", "freeze"))

    def __post_init__(self) -> None:
        super().__post_init__()
        sharp = self.soft or self.sharpness == 1
        check(sharp, "disambiguation.sharpness", "be 1 where disambiguation.soft is false", self.sharpness)


class MomentumLabels(Disambiguation):
    """Base: p <- beta p + (1 - beta) z, before the loss (Eq. 6); a member says which candidate z is."""

    Settings = MomentumSettings
    beta: Tensor  # 0-d, filled in place

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("beta", torch.zeros((), device=ctx.device))

    def begin_epoch(self) -> None:
        settings, done = self.settings, self.ctx.epoch / max(self.ctx.epochs - 1, 1)
        warm = self.ctx.epoch < settings.warm_up * self.ctx.epochs
        self.beta.fill_(1.0 if warm else settings.beta_start + done * (settings.beta_end - settings.beta_start))

    def scores(self, out: Output) -> Tensor:
        """-> [n, capacity]; z is the candidate with the highest score."""
        raise lacking(self, "scores")

    def guess(self, out: Mapping[str, Output], batch: Batch) -> Tensor:
        """-> z of Eq. 6 [b, capacity]."""
        scores = self.scores(out["weak"]).float()
        if self.settings.soft:
            scores = scores * float(self.settings.sharpness)
        if (odds := self.ctx.pool.odds) is not None:
            scores = scores + odds[batch.rows]
        if self.settings.soft:
            return scores.masked_fill(~batch.candidates, -torch.inf).softmax(dim=1)
        return F.one_hot(predict_within(scores, batch.candidates), scores.shape[1]).to(scores.dtype)

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        updated = self.beta * p + (1 - self.beta) * self.guess(out, batch)
        if self.settings.memory_targets == "freeze":
            updated = torch.where(batch.from_memory[:, None], p, updated)
        return updated, updated


@dataclass(frozen=True)
class PgdrSettings(MomentumSettings):
    empty_set: str = setting(
        "old", "with no new candidate a sample joins D_old ('old') or keeps S_i ('restore')", choices=("old", "restore")
    )
    adjust: float = setting(
        0.0, "tau; logits gain tau * log(share of their class in the targets) in training; 0: as in the paper", least=0
    )
    prior: float = setting(
        0.0,
        "kappa: a class is expected to have kappa times as many samples as by random candidates, besides those that it "
        "has; 0: no such prior, as in the paper",
        least=0,
    )
    miss_rate: float = setting(
        0.0, "m: expected share of samples whose true label is no candidate; 0: as in the paper", least=0, below=0.5
    )


@FAMILIES["disambiguation"].register("pgdr")
class Pgdr(MomentumLabels):
    """Old candidates are settled by prototypes before training, new ones by momentum on the network's predictions.

    The argmax of Eq. 6 runs over the original set S_i, so a label that the re-allocation dropped can come back.
    No sample starts with an empty set: where re-allocation leaves nothing, S_i stays.

    New classes have many samples and old ones few. With `adjust` (ours, after Menon et al., ICLR 2021) the argmax of
    Eq. 6, cross-entropy and consistency see logits + tau log pi, pi the classes' share of the targets at the start of
    the epoch, memory included; distillation and tests see the logits as they are.

    With `prior` (ours), classes that are often candidates and never settled on do not vanish. n_c is a class's share of
    the targets, r_c what it would have if each sample took a random candidate; as under a Dirichlet prior the class is
    expected to have n_c + kappa r_c of (1 + kappa) n, and z of Eq. 6 sees logits + log of that over n_c.

    With `miss_rate` (ours), the sets of samples whose true label seems to have been missed grow: see robust.py.
    """

    Settings = PgdrSettings
    needs = frozenset({"separation", "prototypes"})
    passing = ("lift",)
    log_prior: Tensor  # [capacity], tau log pi
    lift: Tensor  # [capacity], log of expected over present share; with a prior only

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("log_prior", torch.zeros(ctx.capacity, device=ctx.device))
        if self.settings.prior:
            self.register_buffer("lift", torch.zeros(ctx.capacity, device=ctx.device))
        self.misses = misses_of(ctx, self.settings.miss_rate, soft=self.settings.soft)

    def begin_task(self) -> None:
        super().begin_task()
        self._take_prior(self.ctx.pool.p)
        if looking := self._looking():
            looking.begin_task()

    def begin_epoch(self) -> None:
        super().begin_epoch()
        if held_out := self._held_out():
            held_out.begin_epoch()
        elif misses := self._watching():
            misses.widen()

    def end_epoch(self) -> None:
        if watching := self._held_out() or self._watching():
            watching.end_epoch()
        self._take_prior(self.ctx.phase.p)

    def end_task(self) -> None:
        if looking := self._looking():
            looking.end_task()

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        if misses := self._watching():
            misses.look(batch.rows, self.scores(out["weak"]))

    def _looking(self) -> Misses | HeldOut | None:
        return self.misses if isinstance(self.misses, Misses) else self._held_out()

    def _held_out(self) -> HeldOut | None:
        return self.misses if isinstance(self.misses, HeldOut) and self.misses.wanted else None

    def _watching(self) -> Misses | None:
        """Sets grow by the network that is being learnt, not by one that a part trains beside it."""
        growing = isinstance(self.misses, Misses) and self.ctx.phase.network is self.ctx.network
        return cast(Misses, self.misses) if growing else None

    def _take_prior(self, p: Tensor) -> None:
        """For the coming epoch, by the targets p of the phase. Not in `begin_epoch`, which is called again where a run
        is resumed within it."""
        pool = self.ctx.pool
        if self.settings.adjust:
            mass = (p * ~pool.held_out[:, None]).sum(dim=0)
            self.log_prior.copy_(self.settings.adjust * (mass / mass.sum()).clamp_min(RAREST).log())
        if kappa := self.settings.prior:
            present, chance = p.sum(dim=0), uniform_over(pool.candidates).sum(dim=0)
            expected = (present + kappa * chance) / (1 + kappa)
            self.lift.copy_(torch.where(chance > 0, (expected / present.clamp_min(LEAST)).log(), 0))

    def first_sets(self) -> Tensor:
        ctx, candidates = self.ctx, super().first_sets()
        if ctx.old == 0:
            return candidates
        features, logits = ctx.embed(ctx.pool.samples, slice(ctx.pool.incoming))
        judgement = ctx.separation.judge(features, logits, candidates)
        old = judgement.old
        if self.settings.empty_set == "old":
            old = old | ~(candidates & ctx.new_mask).any(dim=1)
        ctx.pool.judged_old.copy_(old)
        placed = candidates & (ctx.prototypes.known | ctx.new_mask)  # c* must be a class that has a prototype
        sets = reallocate(placed, old, judgement.nearest, ctx.new_mask)
        return torch.where(sets.any(dim=1, keepdim=True), sets, candidates)

    def scores(self, out: Output) -> Tensor:
        return out.logits + self._favour() if self.settings.adjust or self.settings.prior else out.logits

    def _favour(self) -> Tensor | float:
        """-> what z of Eq. 6 sees besides the logits [capacity]."""
        favour = self.log_prior if self.settings.adjust else 0.0
        return favour + self.lift if self.settings.prior else favour

    def guess(self, out: Mapping[str, Output], batch: Batch) -> Tensor:
        if held_out := self._held_out():
            sharpness = float(self.settings.sharpness)
            return held_out.posterior(out["weak"], batch.rows, batch.candidates, self._favour(), sharpness)
        return super().guess(out, batch)

    @property
    def shares(self) -> bool:
        return self._held_out() is not None

    def set_weights(self, rows: slice | Tensor) -> Tensor:
        if held_out := self._held_out():
            return held_out.prior[rows]
        return super().set_weights(rows)

    def reshape(self, out: dict[str, Output], targets: Tensor, batch: Batch) -> tuple[dict[str, Output], Tensor]:
        if self.settings.adjust:
            out = {name: view._replace(shaped=view.shaped + self.log_prior) for name, view in out.items()}
        return out, targets


@FAMILIES["disambiguation"].register("prototype-prediction")
class PrototypePrediction(MomentumLabels):
    """The ablation 'PGDR w PP': z is the candidate with the nearest prototype, and prototypes move every epoch.

    A candidate without a prototype yet counts as farthest. So early in a task old classes are favoured, the bias
    that the paper describes for this variant. Where no candidate has one, the target stays. Use it with
    prototypes.update=epoch.
    """

    needs = frozenset({"prototypes"})

    def scores(self, out: Output) -> Tensor:
        far = torch.finfo(out.features.dtype).max
        return -self.ctx.prototypes.distances(out.features).clamp_max(far)

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        updated, _ = super().targets(p, out, batch)
        placed = (batch.candidates & self.ctx.prototypes.known).any(dim=1, keepdim=True)
        updated = torch.where(placed, updated, p)
        return updated, updated


def reallocate(candidates: Tensor, old: Tensor, nearest: Tensor, new_mask: Tensor) -> Tensor:
    """Eq. 4: S'_i = S_i without old classes, and with c*_i for samples judged old -> [n, capacity] bool.

    c*_i is added only where it is a candidate: a sample without any old candidate has none.
    """
    chosen = F.one_hot(nearest, candidates.shape[1]).bool() & old[:, None] & candidates & ~new_mask
    return chosen | (candidates & new_mask)
