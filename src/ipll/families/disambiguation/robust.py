"""When the true label is not among the candidates: sets that grow where the evidence is strong (ours)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipll.component import Context

KEPT = 0.7  # of the running mean of predictions, at each new one: about the last three epochs count
WARM_UP = 0.25  # share of a task's epochs before any set grows


class Misses(nn.Module):
    """Looks for samples whose true label was missed, and takes the label that the network sees into their sets.

    A miss is expected with probability m. The evidence e_i is the running mean over epochs of the weak view's
    predictions, from views that differ each time; it starts uniform, so that one confident moment decides nothing.
    After a warm-up, at the end of each epoch, a sample whose `posterior` of one label outside its set exceeds 1/2 gets
    that label as a further candidate, for good, and the posterior as its soft target. From then on it is a sample like
    any other: prototypes, memory and the argmax of Eq. 6 go by the wider set.
    """

    evidence: Tensor  # [n, capacity]
    found: Tensor  # [n, capacity] bool, the labels taken in; a resumed run widens the sets by them again

    def __init__(self, ctx: Context, rate: float) -> None:
        super().__init__()
        self.ctx, self.rate = ctx, rate
        self.register_buffer("evidence", torch.zeros(0, ctx.capacity, device=ctx.device))
        self.register_buffer("found", torch.zeros(0, ctx.capacity, dtype=torch.bool, device=ctx.device))

    def begin_task(self) -> None:
        pool = self.ctx.pool
        self.evidence = torch.full_like(pool.p, 1 / self.ctx.seen)
        self.found = torch.zeros_like(pool.candidates)

    def look(self, rows: Tensor, logits: Tensor) -> None:
        """After a step, for these rows [b] of the pool: the softmax of logits [b, capacity] joins the running mean."""
        self.evidence[rows] = KEPT * self.evidence[rows] + (1 - KEPT) * logits.float().softmax(dim=1)

    def end_epoch(self) -> None:
        ctx, pool = self.ctx, self.ctx.pool
        if ctx.epoch + 1 < WARM_UP * ctx.epochs:
            return
        weight = posterior(self.evidence, pool.candidates, ctx.seen, self.rate)
        outside = (weight > 0.5) & ~pool.candidates
        moved = outside.any(dim=1, keepdim=True)
        self.found |= outside
        self.widen()
        weight = weight * pool.candidates
        pool.p.copy_(torch.where(moved, weight / weight.sum(dim=1, keepdim=True), pool.p))

    def widen(self) -> None:
        """The pool's sets, with what was found."""
        self.ctx.pool.candidates |= self.found

    def end_task(self) -> None:
        """The sets keep what was found; what is known of the samples that leave goes with them."""
        self.widen()
        self.evidence, self.found = self.evidence[:0].clone(), self.found[:0].clone()


def posterior(evidence: Tensor, candidates: Tensor, seen: int, rate: float) -> Tensor:
    """P(y_i = j | x_i, S_i), of j among all `seen` classes -> [n, capacity].

    It is pi_ij g_ij, normalised. The prior pi is (1 - m) / |S_i| for a candidate and m / (seen - |S_i|) for any other
    class. A network that learnt from targets of which a share m is wrong says each wrong class with about m / seen; so
    what it says of the true one is g_ij = max(e_ij - m / seen, 0).
    """
    size = candidates.sum(dim=1, keepdim=True)
    prior = torch.where(candidates, (1 - rate) / size, rate / (seen - size).clamp_min(1))
    prior[:, seen:] = 0
    weight = prior * (evidence - rate / seen).clamp_min(0)
    return weight / weight.sum(dim=1, keepdim=True)
