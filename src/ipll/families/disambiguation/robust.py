"""When the true label is not among the candidates: weight outside the sets where the evidence is strong (ours).

`Misses` goes by what the network says of samples that it learns from, `HeldOut` by members that do not, and by votes,
where samples came with any. Neither doubts a set that is certain (`Pool.certain`): one that a person decided."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipll.component import Context, uniform_over
from ipll.engine.state import part_of
from ipll.families.side_by_side import Members
from ipll.networks.network import Output

TEMPERATURES = tuple(2 ** (k / 8) for k in range(-12, 9))  # 0.35 to 2
WARM = tuple(2 ** (k / 4) for k in range(13))  # 1 to 8, where there are votes: networks may know less than they say
ENOUGH = 2_000  # samples that they are compared on
MOST = 0.9  # share of the sets of one size that may have missed
KEPT = 0.7  # of the running mean of predictions, at each new one: about the last three epochs count
WARM_UP = 0.25  # share of a task's epochs before any set grows
BEFOREHAND = 2.0  # times three votes for each class, of which two are right
TOGETHER = 0.7  # weight of a vote: people err together, where a sample is hard


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
        outside = (weight > 0.5) & ~pool.candidates & ~pool.certain[:, None]
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


class HeldOut(nn.Module):
    """With cross-fitting, what members say of samples that they never learn from is no echo of the targets. So no set
    need grow while a task is learnt: z of Eq. 6 is the posterior over all classes, of soft labels, by the evidence of
    those members and by what the set alone says of each class (`set_prior`). Wrong sets lose their weight, too.

    How probable a miss is depends on the size of a set (`miss_shares`): where sets have two names or more, most sets of
    one name may be what is left of two. At the end of a task a label that has more than half the weight joins its set.

    Where samples came with votes, these say it instead (`said_by_votes`): people take some classes for others, and how
    often they do is told by the targets, epoch after epoch. So a class that nobody voted for may be the one.
    """

    passing = ("said", "cold", "confusion")  # nothing of it outlives a task
    shares: Tensor  # [capacity + 1]: of the sets of each size, how many have missed the true label
    prior: Tensor  # [n, capacity], of the pool's samples by the sets with which they came; from the end of a task on
    said: Tensor  # [n, capacity], the last log-probabilities by members that do not learn from a sample
    cold: Tensor  # 0-d, the temperature at which these are taken
    confusion: Tensor  # [capacity, capacity], log of how often a sample of each class gets a vote for each

    def __init__(self, ctx: Context, rate: float) -> None:
        super().__init__()
        self.ctx, self.rate = ctx, rate
        self.register_buffer("shares", torch.zeros(ctx.capacity + 1, device=ctx.device), persistent=False)
        self.register_buffer("prior", torch.zeros(0, ctx.capacity, device=ctx.device), persistent=False)
        self.register_buffer("said", torch.zeros(0, ctx.capacity, device=ctx.device))
        self.register_buffer("cold", torch.ones((), device=ctx.device))
        self.register_buffer("confusion", torch.zeros(0, 0, device=ctx.device))

    @property
    def wanted(self) -> bool:
        """Is there anything in this task that a set alone does not say?"""
        return self.rate > 0 or self.ctx.pool.votes is not None

    def begin_task(self) -> None:
        self.begin_epoch()
        pool = self.ctx.pool
        self.said = torch.zeros_like(pool.p)
        self.cold.fill_(1.0)
        if pool.votes is not None:
            self.confusion = confusion(pool.p, pool.votes, self.ctx.seen)
        p, own = pool.p[: pool.incoming], pool.candidates[: pool.incoming]
        outside = self.set_prior(slice(pool.incoming), own) * ~own
        p.copy_(p * (1 - outside.sum(dim=1, keepdim=True)).clamp_min(0) + outside)

    def begin_epoch(self) -> None:
        """Sets stay as they are within a task: a resumed run finds the same shares."""
        pool = self.ctx.pool
        self.shares.copy_(miss_shares(pool.candidates[~pool.certain], self.rate))

    def set_prior(self, rows: Tensor | slice, candidates: Tensor) -> Tensor:
        """-> pi [n, capacity] of these rows of the pool, whose sets are candidates [n, capacity]."""
        pool = self.ctx.pool
        prior = set_prior(candidates, self.shares, self.ctx.seen, pool.certain[rows])
        if pool.votes is None:
            return prior
        votes = pool.votes[rows]
        voted = votes.any(dim=1) & ~pool.certain[rows]
        return torch.where(voted[:, None], said_by_votes(votes, self.confusion, self.ctx.seen), prior)

    def posterior(
        self, out: Output, rows: Tensor, candidates: Tensor, lift: Tensor | float = 0.0, sharpness: float = 1.0
    ) -> Tensor:
        """-> z [b, capacity] for these rows of the pool."""
        members = part_of(self.ctx.parts, Members)
        assert members is not None
        said = members.held_out(out.features, rows)
        self.said[rows] = said
        return (said * (sharpness / self.cold) + lift + self.set_prior(rows, candidates).log()).softmax(dim=1)

    def end_epoch(self) -> None:
        """What votes say by now, and the temperature under which they are most likely; or the sets, misses among them:
        members that learn soft targets say less than they know."""
        ctx = self.ctx
        if ctx.pool.votes is not None:
            self.confusion.copy_(confusion(ctx.phase.p, ctx.pool.votes, ctx.seen))
        order = torch.randperm(len(self.said), generator=ctx.generator("misses", ctx.task), device=self.said.device)
        rows = order[:ENOUGH]
        prior = self.set_prior(rows, ctx.pool.candidates[rows])
        tried = self.said.new_tensor(TEMPERATURES if ctx.pool.votes is None else WARM)
        scores = self.said[rows] / tried[:, None, None]
        likelihood = (scores.log_softmax(dim=2) + prior.log()).logsumexp(dim=2).mean(dim=1)
        self.cold.copy_(tried[likelihood.argmax()])

    def end_task(self) -> None:
        pool = self.ctx.pool
        self.begin_epoch()  # a run that is resumed here has had none
        self.said = self.said[:0].clone()
        self.prior = self.set_prior(slice(None), pool.candidates)
        self.confusion = self.confusion[:0, :0].clone()
        pool.candidates |= pool.p > 0.5
        within = pool.p * pool.candidates
        weight = within.sum(dim=1, keepdim=True)  # none where all of it is outside, and on no class more than half
        pool.p.copy_(torch.where(weight > 0, within / weight, uniform_over(pool.candidates)))


def misses_of(ctx: Context, rate: float, *, soft: bool) -> Misses | HeldOut | None:
    """-> what looks for them: by held-out evidence where there is any, and labels are soft; else where any are
    expected."""
    members = part_of(ctx.parts, Members)
    if soft and members is not None and members.folds > 0:
        return HeldOut(ctx, rate)
    return Misses(ctx, rate) if rate else None


def confusion(p: Tensor, votes: Tensor, seen: int) -> Tensor:
    """-> log of how often samples of each class get a vote for each [capacity, capacity], by soft targets p and votes
    [n, capacity] each. Beforehand, two thirds of the votes are taken to be right, and a class to have had a few."""
    counts, eye = p.T @ votes, torch.eye(len(p.T), device=p.device)
    counts = counts + BEFOREHAND * (2 * eye + 1 / seen)
    counts[:, seen:] = 0
    return (counts / counts.sum(dim=1, keepdim=True)).log()


def said_by_votes(votes: Tensor, confusion: Tensor, seen: int) -> Tensor:
    """-> how probable each seen class is by the votes alone [n, capacity].

    Of class j it is the product of how often its samples get such votes, to the power TOGETHER. Unseen classes have no
    votes, so their infinite logarithms are left out.
    """
    said = TOGETHER * votes[:, :seen] @ confusion[:seen, :seen].T
    return torch.cat([said.softmax(dim=1), votes.new_zeros(len(votes), votes.shape[1] - seen)], dim=1)


def miss_shares(candidates: Tensor, rate: float) -> Tensor:
    """-> of the sets of each size [capacity + 1], the share that has missed the true label, where a share m of all has.

    A miss makes a set of k out of one of k + 1; from one of 1 it makes another of 1. If o_k sets have size k, and t_k
    would have had it without misses, o_k = (1 - m) t_k + m t_{k+1}, and o_1 = t_1 + m t_2: solved from the largest on.
    """
    found = candidates.sum(dim=1).bincount(minlength=candidates.shape[1] + 2).double().tolist()
    whole, shares = [0.0] * len(found), [0.0] * len(found)
    for k in range(len(found) - 2, 0, -1):
        kept = 1 - rate if k > 1 else 1.0
        whole[k] = max(found[k] - rate * whole[k + 1], 0.0) / kept
        missed = rate * (whole[k + 1] + (whole[1] if k == 1 else 0.0))
        shares[k] = min(missed / found[k], MOST) if found[k] else rate
    return torch.tensor(shares[:-1], dtype=torch.float32, device=candidates.device)


def set_prior(candidates: Tensor, shares: Tensor, seen: int, certain: Tensor) -> Tensor:
    """-> pi [n, capacity]: how probable each seen class is by the set alone, of whose size a share has missed; but
    none of those that are certain [n]."""
    size = candidates.sum(dim=1, keepdim=True)
    return _prior(candidates, shares[size] * ((size < seen) & ~certain[:, None]), seen)


def _prior(candidates: Tensor, miss: Tensor | float, seen: int) -> Tensor:
    size = candidates.sum(dim=1, keepdim=True)
    prior = torch.where(candidates, (1 - miss) / size, miss / (seen - size).clamp_min(1))
    prior[:, seen:] = 0
    return prior


def posterior(evidence: Tensor, candidates: Tensor, seen: int, rate: float) -> Tensor:
    """P(y_i = j | x_i, S_i), of j among all `seen` classes -> [n, capacity].

    It is pi_ij g_ij, normalised. The prior pi is (1 - m) / |S_i| for a candidate and m / (seen - |S_i|) for any other
    class. A network that learnt from targets of which a share m is wrong says each wrong class with about m / seen; so
    what it says of the true one is g_ij = max(e_ij - m / seen, 0).
    """
    weight = _prior(candidates, rate, seen) * (evidence - rate / seen).clamp_min(0)
    return weight / weight.sum(dim=1, keepdim=True)
