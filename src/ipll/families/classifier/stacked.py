"""The linear head and prototypes together, in the shares that held-out candidate sets ask for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ipll.component import FAMILIES, Context
from ipll.engine.state import part_of
from ipll.families.classifier import Classifier, best_temperature
from ipll.families.disambiguation import Disambiguation
from ipll.families.side_by_side import Evidence, Members, evidence

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of prototypes, that are tried
ENOUGH = 10_000  # samples that shares and temperatures are fitted on


@FAMILIES["classifier"].register("stacked")
class Stacked(Classifier):
    """Stacking (Wolpert, 1992): log-probabilities of the head and negative squared distances to prototypes are added
    with weights under which the candidate sets of samples that a member did not learn from are most likely.

    Either alone is among what is tried, and one that is nearly as likely as both is preferred. The weights hold the
    temperature: scores are log-probabilities. Without cross-fitting there is no evidence, and the head decides.
    """

    needs = frozenset({"prototypes"})
    weights_: Tensor  # [2]: of the head, of prototypes
    likelihood: Tensor  # [3]: mean -log of the held-out sets' probability, by head, prototypes, as used; -1: unknown

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("weights_", torch.tensor([1.0, 0.0], device=ctx.device))
        self.register_buffer("likelihood", torch.full((3,), -1.0, device=ctx.device))

    def end_task(self) -> None:
        members, ctx = part_of(self.ctx.parts, Members), self.ctx
        if members is None or not members.folds:
            return
        seen = evidence(ctx, members)
        rows = torch.randperm(len(ctx.pool), generator=ctx.generator("stacking", ctx.task), device=ctx.device)[:ENOUGH]
        born = ctx.network.head.born
        linear, near = (part[rows][:, born].double() for part in seen)
        beforehand = part_of(ctx.parts, Disambiguation)
        assert beforehand is not None
        sets = beforehand.memberships(rows)[:, born].double()
        cold = [set_temperature(part, sets) for part in (linear, near)]
        tried = []
        for share in SHARES:
            ctx.check_stop()
            mixed = (1 - share) * linear / cold[0] + share * near / cold[1]
            t = set_temperature(mixed, sets)
            losses = set_losses(mixed / t, sets)
            tried.append((float(losses.mean()), share, t, losses))
        head, prototypes, best = tried[0], tried[-1], min(tried, key=lambda one: one[0])
        for alone in sorted((head, prototypes), key=lambda one: one[0]):
            gain = alone[3] - best[3]
            if len(gain) < 2 or float(gain.mean()) <= float(gain.std()) / len(gain) ** 0.5:
                best = alone
                break
        _, share, t, _ = best
        self.weights_.copy_(torch.tensor([(1 - share) / cold[0] / t, share / cold[1] / t]))
        self.likelihood.copy_(torch.tensor([head[0], prototypes[0], best[0]]).clamp_min(0))

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        near = -self.ctx.prototypes.distances(features).square()
        return self.joined(logits, near).masked_fill(~self.ctx.network.head.born, -torch.inf)

    def by_evidence(self, seen: Evidence) -> Tensor:
        return self.joined(*seen)

    def joined(self, linear: Tensor, near: Tensor) -> Tensor:
        """-> both [n, capacity] by their weights; what has none may be infinite."""
        scores = linear * self.weights_[0]
        return torch.where(self.weights_[1] > 0, scores + near * self.weights_[1], scores)


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
