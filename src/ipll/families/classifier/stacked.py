"""The linear head and prototypes together, in the shares that held-out candidate sets ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ipll.component import FAMILIES, Context
from ipll.engine.state import part_of
from ipll.families.classifier import Classifier, best_temperature
from ipll.families.classifier.forest import Forest
from ipll.families.disambiguation import Disambiguation
from ipll.families.memory import Memory
from ipll.families.side_by_side import Evidence, Members, evidence, held_out_labels
from ipll.settings import Section, setting

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of prototypes, that are tried
ENOUGH = 10_000  # samples that shares and temperatures are fitted on
HALF = 0.5  # the share from which a forest has its word on labels, too
TINY = 1e-12  # probability


@dataclass(frozen=True)
class StackedSettings(Section, name="classifier"):
    trees: int = setting(
        0, "trees for each fold of a random forest beside the networks, where held-out sets ask for it", least=0
    )


class Mixture(NamedTuple):
    """Two kinds of scores, added up."""

    share: float  # of the second
    scores: Tensor  # [n, classes], by the temperature under which sets are most likely
    losses: Tensor  # [n]: -log of the sets' probability
    weights: tuple[float, float]  # by which both were multiplied

    @property
    def loss(self) -> float:
        return float(self.losses.mean())


@FAMILIES["classifier"].register("stacked")
class Stacked(Classifier):
    """Stacking (Wolpert, 1992): log-probabilities of the head and negative squared distances to prototypes are added
    with weights under which the candidate sets of samples that a member did not learn from are most likely; and to
    both, likewise, those of a forest. What axes part, trees find out from few samples, and networks do not. Where the
    forest counts for as much as all else, it has its word on labels, too.

    Either alone is among what is tried, and one that is nearly as likely as both is preferred. The weights hold the
    temperature: scores are log-probabilities. Without cross-fitting there is no evidence, and the head decides.
    """

    Settings = StackedSettings
    settings: StackedSettings
    needs = frozenset({"prototypes"})
    weights_: Tensor  # [2]: of the head, of prototypes
    likelihood: Tensor  # [3]: mean -log of the held-out sets' probability, by head, prototypes, as used; -1: unknown
    forest: Forest | None
    forest_weight: Tensor  # [1], where there may be a forest

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("weights_", torch.tensor([1.0, 0.0], device=ctx.device))
        self.register_buffer("likelihood", torch.full((3,), -1.0, device=ctx.device))
        self.forest = Forest(ctx) if self.settings.trees else None
        if self.forest is not None:
            self.register_buffer("forest_weight", torch.zeros(1, device=ctx.device))

    def end_task(self) -> None:
        members, ctx = part_of(self.ctx.parts, Members), self.ctx
        if self.forest is not None:  # which grew in the task before
            self.forest.clear()
            self.forest_weight.zero_()
        if members is None or not members.folds:
            return
        seen = evidence(ctx, members)
        rows = torch.randperm(len(ctx.pool), generator=ctx.generator("stacking", ctx.task), device=ctx.device)[:ENOUGH]
        born = ctx.network.head.born
        linear, near = (part[rows][:, born].double() for part in (seen.linear, seen.nearness))
        beforehand = part_of(ctx.parts, Disambiguation)
        assert beforehand is not None
        sets = beforehand.memberships(rows)[:, born].double()
        tried = self.mixtures(linear, near, sets)
        head, prototypes = tried[0], tried[-1]
        best = _simplest(tried, (head, prototypes))
        self.weights_.copy_(torch.tensor(best.weights))
        if self.forest is not None and self.may_grow(self.forest, members):
            best = self.with_trees(self.forest, members, rows, best, sets)
        self.likelihood.copy_(torch.tensor([head.loss, prototypes.loss, best.loss]).clamp_min(0))

    def may_grow(self, forest: Forest, members: Members) -> bool:
        """With leaves for all classes, and samples of all that were known. Not by votes, nor by sets that may miss the
        true label: they bring what members say of all samples into targets, and evidence is too good to judge trees."""
        ctx, born = self.ctx, self.ctx.network.head.born
        deciding = part_of(ctx.parts, Disambiguation)
        assert deciding is not None
        there = ctx.pool.p.argmax(dim=1).bincount(minlength=ctx.capacity) > 0
        enough = forest.leaves(self.settings.trees, members) >= int(born.sum())
        forgotten = ctx.old_mask & ctx.prototypes.known & ~there
        return enough and not deciding.shares and not forgotten.any()

    def with_trees(self, forest: Forest, members: Members, rows: Tensor, without: Mixture, sets: Tensor) -> Mixture:
        """-> the mixture with a forest, of evidence on these rows of the pool, or `without` where none is asked for: a
        quarter of the trees tells it."""
        ctx, born, trees = self.ctx, self.ctx.network.head.born, self.settings.trees
        settled = [held_out_labels(ctx, members, kind)[1] for kind in range(members.kinds)]
        for count in (-(-trees // 4), trees):
            forest.grow(members, settled, count)
            tried = self.mixtures(without.scores, forest.held_out(rows, members)[:, born].double(), sets)
            best = _simplest(tried, tried[:1])
            if not best.share:
                forest.clear()
                return without
        self.weights_ *= best.weights[0]
        self.forest_weight.fill_(best.weights[1])
        if best.share >= HALF:
            self.settle(forest, members)
        return best

    def settle(self, forest: Forest, members: Members) -> None:
        """Labels, which the networks settled on, go by trees too: those of which a sample was left out."""
        pool, memory = self.ctx.pool, part_of(self.ctx.parts, Memory)
        assert memory is not None
        every = torch.arange(len(pool), device=self.ctx.device)
        said = pool.p.clamp_min(TINY).log() + forest.held_out(every, members) * self.forest_weight
        pool.p.copy_(said.masked_fill(~pool.candidates, -torch.inf).softmax(dim=1))
        memory.take_targets()

    def mixtures(self, one: Tensor, other: Tensor, sets: Tensor) -> list[Mixture]:
        """-> of both scores [n, classes], in all shares: the first is one alone, the last the other."""
        cold, found = [set_temperature(part, sets) for part in (one, other)], []
        for share in SHARES:
            self.ctx.check_stop()
            mixed = (1 - share) * one / cold[0] + share * other / cold[1]
            t = set_temperature(mixed, sets)
            weights = (1 - share) / cold[0] / t, share / cold[1] / t
            found.append(Mixture(share, mixed / t, set_losses(mixed / t, sets), weights))
        return found

    def evidence(self, members: Members, kind: int = 0) -> Evidence:
        seen = super().evidence(members, kind)
        if not self.forest:
            return seen
        rows = torch.arange(len(seen.linear), device=self.ctx.device)
        return seen._replace(forest=self.forest.held_out(rows, members, kind))

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        near = -self.ctx.prototypes.distances(features).square()
        trees = self.forest.says(features) if self.forest else None
        return self.joined(logits, near, trees).masked_fill(~self.ctx.network.head.born, -torch.inf)

    def by_evidence(self, seen: Evidence) -> Tensor:
        return self.joined(seen.linear, seen.nearness, seen.forest)

    def joined(self, linear: Tensor, near: Tensor, forest: Tensor | None) -> Tensor:
        """-> all [n, capacity] by their weights; what has none may be infinite."""
        scores = linear * self.weights_[0]
        scores = torch.where(self.weights_[1] > 0, scores + near * self.weights_[1], scores)
        return scores if forest is None else scores + forest * self.forest_weight


def _simplest(tried: Sequence[Mixture], simple: Sequence[Mixture]) -> Mixture:
    """-> the likeliest of simple ones where that is not clearly less likely than the likeliest of all: by no more than
    one standard error."""
    best = min(tried, key=lambda one: one.loss)
    for alone in sorted(simple, key=lambda one: one.loss):
        gain = alone.losses - best.losses
        if len(gain) < 2 or float(gain.mean()) <= float(gain.std()) / len(gain) ** 0.5:
            return alone
    return best


def set_losses(scores: Tensor, sets: Tensor) -> Tensor:
    """-> -log of the probability that softmax(scores) [n, classes] gives each sample's set [n, classes] -> [n]. A class
    may be in a set by a part, from 0 to 1."""
    return scores.logsumexp(dim=1) - (scores + sets.log()).logsumexp(dim=1)


def set_temperature(scores: Tensor, sets: Tensor) -> float:
    """-> T under which the sets are most likely. As in Platt's scaling, one more sample is
    counted that could be of any class, so that T stays finite where all are right."""
    sets = sets.to(scores.dtype)
    rows = (sets < 1).any(dim=1)  # others say nothing
    scores, sets = scores[rows], sets[rows]
    spread = float((scores.amax(dim=1) - scores.mean(dim=1)).mean()) if len(scores) else 0.0
    if not spread > 0:
        return 1.0
    smooth, size = 1 / (len(scores) + 1), sets.mean(dim=1)

    def loss(log_t: float) -> float:
        inside = -set_losses(scores / math.exp(log_t), sets)
        outside = (-inside).clamp_min(1e-12).neg().expm1().neg().clamp_min(1e-30).log()  # log(1 - P(S))
        flat = size * inside + (1 - size) * outside
        return -float(((1 - smooth) * inside + smooth * flat).mean())

    return best_temperature(loss, spread)
