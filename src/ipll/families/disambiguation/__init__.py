"""Disambiguation: soft targets p, how they start in a task and how a step changes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ipll.component import FAMILIES, Batch, Component, lacking, soft_cross_entropy, uniform_over
from ipll.networks.network import Output

MEMBERS = ("proden", "pico", "papi", "terial", "pgdr")


class Disambiguation(Component):
    """Base: targets start uniform over S_i, or by the votes that came with the samples, and are learnt from by
    cross-entropy on the weak view (Eq. 1)."""

    def begin_task(self) -> None:
        pool, sets = self.ctx.pool, self.first_sets()
        own = slice(pool.incoming)
        pool.p[own] = uniform_over(sets) if pool.votes is None else by_votes(sets, pool.votes[own])

    def first_sets(self) -> Tensor:
        """-> the sets [incoming, capacity] over which the targets of the task's own samples start out."""
        return self.ctx.pool.candidates[: self.ctx.pool.incoming]

    def set_weights(self, rows: slice | Tensor) -> Tensor:
        """-> how probable each class is by the sets and votes of these samples of the pool alone [n, capacity]."""
        sets, votes = self.ctx.pool.candidates[rows], self.ctx.pool.votes
        return uniform_over(sets) if votes is None else by_votes(sets, votes[rows])

    def memberships(self, rows: Tensor) -> Tensor:
        """-> how much each class is in the sets of these samples [n, capacity], from 0 to 1: candidates wholly; where
        there are votes, as a part of the class that is most probable by them."""
        if self.ctx.pool.votes is None:
            return self.ctx.pool.candidates[rows].float()
        weights = self.set_weights(rows)
        return weights / weights.amax(dim=1, keepdim=True)

    @property
    def shares(self) -> bool:
        """-> whether networks learn targets that others decided, who learn from what these leave out."""
        return False

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        raise lacking(self, "targets")

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"ce": soft_cross_entropy(out["weak"].shaped, targets)}


FAMILIES["disambiguation"].base = Disambiguation


def by_votes(sets: Tensor, votes: Tensor) -> Tensor:
    """-> the share of each candidate in the votes [n, classes] of its set; uniform over a set in which none has any."""
    weights = votes * sets
    total = weights.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weights / total, uniform_over(sets))


@FAMILIES["disambiguation"].register("uniform")
class Uniform(Disambiguation):
    """No disambiguation: every candidate counts the same, for good."""

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        return p, p
