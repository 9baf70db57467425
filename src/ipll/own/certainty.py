"""How sure is it? Judged by what members of the network say of samples that they did not learn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ipll.component import Context
from ipll.engine.state import part_of
from ipll.families.classifier.stacked import set_temperature
from ipll.families.disambiguation import Disambiguation
from ipll.families.side_by_side import Evidence, Members
from ipll.learner import Learner
from ipll.own.missed import Missed, missed
from ipll.own.prediction import allowed

FLAGGED = 0.05  # share of held-out samples that are called unlike anything seen
# Networks that would have said a class outside the set know less of those within it: of what is above chance counts
# the probability that they gave the set, to this power. Where sets are left out together, also how far ahead of chance
# they are in expecting sets that they have never seen.
DOUBT, NEW = 0.1, 0.5
# Errors for each one that shows, at least, where votes or misses are weighed: people err together, the networks with
# them, and these have heard of what they leave out, by way of targets.
SHARED = 4.0
ENOUGH = 10_000  # samples that a temperature is fitted on
WARMER = 2.5  # times, at most, predictions are softened where sets are left out together
NEXT = 0.01  # probability from which another class is worth a word
NEVER = 0.5  # sets that name a class without the label, by which half of the doubt is gone
UNCHECKED = 0.9  # at most, the probability of a label where every sample has one vote: nobody tells who errs, and how
CONTESTED = 0.5  # of the votes that most have: who has more may be the label as well
BLOCK = 2**22  # probabilities that are held at a time
TINY = 1e-12  # probability


class Certainty(NamedTuple):
    temperature: float
    far: float  # the distance that FLAGGED of the held-out samples exceed
    confidence: Tensor  # [n], of the pool's samples: how probable the label is that they settled on
    runner_up: Tensor  # [n], the class that is the most probable besides; -1: none is worth a word
    missed: float  # share of samples whose sets clearly seem to miss the true label; 0: none, or nobody knows


@torch.no_grad()
def held_out_certainty(learner: Learner, labels: Tensor) -> Certainty | None:
    """-> for the pool's samples, which settled on `labels` [n]; None without cross-fitting.

    The temperature is that under which their candidate sets, or votes, are most likely. A label's probability is its
    share within the set, or of all classes where votes, or sets that may miss the true one, say how probable each is.
    Classes that are candidates of the very same samples cannot be told apart without votes on these, and share alike.
    Where sets are all that is known, they may have missed the true label as often as makes them most likely.
    """
    ctx, members = learner.ctx, part_of(learner.ctx.parts, Members)
    if members is None or not members.folds:
        return None
    beforehand, sets, votes = part_of(ctx.parts, Disambiguation), ctx.pool.candidates, ctx.pool.votes
    assert beforehand is not None
    rows = torch.randperm(len(sets), generator=ctx.generator("certainty", ctx.task), device=ctx.device)[:ENOUGH]
    within = beforehand.memberships(rows).double()

    def judge(seen: Evidence) -> tuple[Callable[[Tensor | slice], Tensor], float]:
        """-> scores of rows, and the temperature under which their sets are most likely."""

        def scores(rows: Tensor | slice) -> Tensor:
            return allowed(learner, learner.classifier.by_evidence(seen.of(rows)))

        found = scores(rows).double()
        open_ = found.isfinite().all(dim=0)
        some = within[:, open_].any(dim=1)
        return scores, set_temperature(found[some][:, open_], within[some][:, open_])

    held = _held(sets)
    blocks = [slice(start, start + held) for start in range(0, len(sets), held)]
    seen = learner.classifier.evidence(members)
    scores, temperature = judge(seen)
    predicted = scores(rows).argmax(dim=1, keepdim=True)
    distance = (-seen.nearness[rows].gather(1, predicted)[:, 0]).clamp_min(0).sqrt()
    cold, known = temperature, 1.0
    if members.kinds > 1:
        scores, cold = judge(learner.classifier.evidence(members, -1))
        temperature = max(temperature, min(cold, WARMER * temperature))
        found = scores(rows) / cold
        open_ = found.isfinite().all(dim=0)
        known = lead_on_new_sets(found[:, open_].softmax(dim=1), sets[rows][:, open_]) ** NEW
    alone = votes is None and not beforehand.shares  # sets are all that is known
    missing = _missing(ctx, scores, cold, rows[:held]) if alone else None
    cold = missing.temperature if missing else cold
    voted, shown = torch.zeros_like(ctx.pool.certain), sets
    if votes is not None:  # by itself such a sample says that it is one of what most voted for, or nearly as many
        voted = votes.any(dim=1) & ~ctx.pool.certain
        shown = torch.where(voted[:, None], votes > CONTESTED * votes.amax(dim=1, keepdim=True), sets)
    most = UNCHECKED if votes is not None and nobody_checks(votes) else 1.0
    alike, confidence, runners_up, unheard = twins(shown), [], [], unheard_odds(shown)
    doubt = Doubt.of(shown, SHARED if beforehand.shares else 1.0, known)
    for here in blocks:
        ctx.check_stop()
        said = scores(here).double() / cold
        own, certain = sets[here], ctx.pool.certain[here]
        prior = missing.prior(own, ctx.seen, certain) if missing else beforehand.set_weights(here)
        posterior = (said + prior.log()).softmax(dim=1)
        posterior.nan_to_num_(0.0)
        for group in alike:
            posterior[:, group] = posterior[:, group].mean(dim=1, keepdim=True)
        found = posterior.gather(1, labels[here, None])[:, 0]
        following, which = posterior.scatter(1, labels[here, None], 0).max(dim=1)
        runners_up.append(torch.where(following >= NEXT, which, -1))
        expected = (said.softmax(dim=1) * own).sum(dim=1)
        by_sets = doubt.lowered(found, posterior, expected, own, labels[here])
        by_votes = cautious(found, chance_of(own), SHARED).minimum(at_most(unheard * shown[here], labels[here]))
        by_votes = by_votes.clamp_max(most)
        confidence.append(torch.where(voted[here], by_votes, by_sets).float())
    far, share = float(torch.quantile(distance, 1 - FLAGGED)), missing.rate if missing and missing.clear else 0.0
    return Certainty(temperature, far, torch.cat(confidence), torch.cat(runners_up), share)


def _missing(ctx: Context, scores: Callable[[Tensor], Tensor], cold: float, rows: Tensor) -> Missed:
    """-> how often the sets of these rows of the pool miss the true label, where any of their classes may be chosen."""
    found, sets, certain = scores(rows).double(), ctx.pool.candidates[rows], ctx.pool.certain[rows]
    some = (sets & found.isfinite()).any(dim=1)
    return missed(found[some], cold, sets[some], ctx.seen, certain[some])


class Doubt(NamedTuple):
    """What makes labels less sure than networks say, where sets are all that is known of them."""

    hidden: Tensor  # [classes, classes], `hidden_errors`
    silent: Tensor  # [classes, classes], `silent_odds`
    known: float  # how much counts of what is said within sets

    @classmethod
    def of(cls, sets: Tensor, least: float, known: float) -> Doubt:
        return cls(hidden_errors(sets).clamp_min(least), silent_odds(sets), known)

    def lowered(self, found: Tensor, posterior: Tensor, expected: Tensor, sets: Tensor, labels: Tensor) -> Tensor:
        """-> the probability `found` [n] of labels [n], of all that is said [n, classes], and of their sets as a whole
        [n], lowered."""
        chance, size = chance_of(sets), sets.sum(dim=1)
        others = posterior.scatter(1, labels[:, None], TINY)
        unseen = (others * self.hidden[labels]).sum(dim=1) / others.sum(dim=1)  # by how probable each of them is
        trust = torch.where(size > 1, self.known * expected**DOUBT, 1.0)
        most = at_most(self.silent[labels] * sets, labels)
        return trusted(cautious(found, chance, unseen), chance, trust).minimum(most)


def chance_of(sets: Tensor) -> Tensor:
    """-> the probability of a random candidate [n]; 0 of one alone, which may be a miss."""
    size = sets.sum(dim=1)
    return torch.where(size > 1, 1 / size, 0.0)


def hidden_errors(sets: Tensor) -> Tensor:
    """-> [classes, classes]: where samples of one class (column) are called another (row), how many for each one that
    shows, as its set lacks the other. One set with both and one without are counted beside those [n, classes]."""
    return (sets.sum(dim=0) + 2) / (_without(sets) + 1)


def silent_odds(sets: Tensor) -> Tensor:
    """-> [classes, classes]: the odds of a class (column) against the label (row), at least, by how often it was named
    without it: where never, nothing could ever speak for it, and it is as probable as the label."""
    odds = NEVER / (_without(sets) + NEVER)
    return odds.fill_diagonal_(0)


def unheard_odds(shown: Tensor) -> Tensor:
    """-> the odds of a class [classes] against any label where people disagree between the two, at least, by how often
    it is all that a sample [n, classes] shows: where people never agree on it, they may all mean it."""
    alone = shown[shown.sum(dim=1) == 1].sum(dim=0)
    return NEVER / (alone.double() + NEVER)


def nobody_checks(votes: Tensor) -> bool:
    """Has every sample [n, classes] one vote at most, so that nobody tells who takes which class for which?"""
    return bool(((votes > 0).sum(dim=1) <= 1).all() and (votes.sum(dim=1) <= 1).all())


def at_most(odds: Tensor, labels: Tensor) -> Tensor:
    """-> the highest probability of labels [n], by the odds of classes [n, classes] against them."""
    return 1 / (1 + odds.scatter(1, labels[:, None], 0).sum(dim=1))


def _without(sets: Tensor) -> Tensor:
    """-> [classes, classes]: how many sets [n, classes] have a class (column) without another (row)."""
    both = torch.zeros(sets.shape[1], sets.shape[1], dtype=torch.double, device=sets.device)
    for block in torch.split(sets, _held(sets)):
        both += block.float().T @ block.float()  # counts are exact: fewer than 2^24
    return both.diagonal() - both


def _held(sets: Tensor) -> int:
    """-> of how many samples all is held at a time, by the classes of sets [n, classes]."""
    return max(BLOCK // sets.shape[1], 1)


def cautious(confidence: Tensor, chance: Tensor, unseen: Tensor | float) -> Tensor:
    """-> probabilities whose odds of being wrong are `unseen` times as high; of what is above chance, as much of it."""
    above = ((confidence - chance) / (1 - chance)).clamp_min(0)
    lower = chance + (1 - chance) * above / (above + unseen * (1 - above))
    return torch.where(confidence > chance, lower, confidence)


def trusted(confidence: Tensor, chance: Tensor, trust: Tensor) -> Tensor:
    """-> probabilities of which, as far as they are above chance, a share counts, 0 to 1 [n]."""
    return torch.where(confidence > chance, chance + trust * (confidence - chance), confidence)


def lead_on_new_sets(probabilities: Tensor, sets: Tensor) -> float:
    """-> of what the probability of sets [n, classes] of several candidates could be above chance, the share that it is
    by what networks say [n, classes] who have never seen them: 0 to 1."""
    several = sets.sum(dim=1) > 1
    if not several.any():
        return 1.0
    chance = float(sets[several].double().mean())
    found = float((probabilities[several] * sets[several]).sum(dim=1).mean())
    return max(found - chance, 0.0) / max(1 - chance, TINY)


def twins(sets: Tensor) -> list[Tensor]:
    """-> groups of classes, two or more, that are candidates of exactly the same samples of sets [n, classes]."""
    marks = torch.randint(2**62, (len(sets),), generator=torch.Generator().manual_seed(0)).to(sets.device)
    sums = torch.zeros(sets.shape[1], dtype=torch.int64, device=sets.device)  # alike for twins only
    for mark, block in zip(torch.split(marks, _held(sets)), torch.split(sets, _held(sets)), strict=True):
        sums += (mark[:, None] * block).sum(dim=0)
    groups: dict[int, list[int]] = {}
    for c in sets.any(dim=0).nonzero()[:, 0].tolist():
        groups.setdefault(int(sums[c]), []).append(c)
    return [torch.tensor(group, device=sets.device) for group in groups.values() if len(group) > 1]
