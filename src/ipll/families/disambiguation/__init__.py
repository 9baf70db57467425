"""Disambiguation: soft targets p, how they start in a task and how a step changes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ipll.component import FAMILIES, Batch, Component, soft_cross_entropy, uniform_over
from ipll.networks.network import Output

MEMBERS = ("proden", "pico", "papi", "terial", "pgdr")


class Disambiguation(Component):
    """Base: targets start uniform over S_i, or by the shares that came with the samples, and are learnt from by
    cross-entropy on the weak view (Eq. 1)."""

    def begin_task(self) -> None:
        pool, sets = self.ctx.pool, self.first_sets()
        pool.p[: pool.incoming] = uniform_over(sets) if pool.shares is None else by_shares(sets, pool.shares)

    def first_sets(self) -> Tensor:
        """-> the sets [incoming, capacity] over which the targets of the task's own samples start out."""
        return self.ctx.pool.candidates[: self.ctx.pool.incoming]

    def set_weights(self, rows: slice) -> Tensor:
        """-> how probable each class is by the sets and votes of these samples of the pool alone [n, capacity]."""
        pool, sets = self.ctx.pool, self.ctx.pool.candidates[rows]
        weights = uniform_over(sets)
        if pool.shares is not None:
            shares = pool.shares[rows]  # of incoming ones, which come first
            weights[: len(shares)] = by_shares(sets[: len(shares)], shares)
        return weights

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"ce": soft_cross_entropy(out["weak"].shaped, targets)}


def by_shares(sets: Tensor, shares: Tensor) -> Tensor:
    """Shares [n, classes] restricted to sets and renormalised; uniform over a set in which nothing has a share."""
    weights = shares * sets
    total = weights.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weights / total, uniform_over(sets))


@FAMILIES["disambiguation"].register("uniform")
class Uniform(Disambiguation):
    """No disambiguation: every candidate counts the same, for good."""

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        return p, p
