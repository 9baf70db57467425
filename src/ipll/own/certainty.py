"""How sure is it? Judged by what members of the network say of samples that they did not learn from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ipll.engine.state import part_of
from ipll.families.classifier.stacked import set_temperature
from ipll.families.disambiguation import Disambiguation
from ipll.families.side_by_side import Members, evidence
from ipll.learner import Learner
from ipll.own.prediction import allowed

FLAGGED = 0.05  # share of held-out samples that are called unlike anything seen
# Errors for each one that held-out sets show: networks err towards classes that were candidates together, as these
# were learnt from, so that a wrong label lies within the set more often than the sets let expect.
UNSEEN = 2.0
ENOUGH = 10_000  # samples that a temperature is fitted on


class Certainty(NamedTuple):
    temperature: float
    far: float  # the distance that FLAGGED of the held-out samples exceed
    confidence: Tensor  # [n], of the pool's samples: how probable the label is that they settled on


@torch.no_grad()
def held_out_certainty(learner: Learner, labels: Tensor) -> Certainty | None:
    """-> for the pool's samples, which settled on `labels` [n]; None without cross-fitting.

    The temperature is that under which their candidate sets are most likely. A label's probability is its share within
    the set, weighted by votes, or of all classes where sets are expected to miss the true one. Classes that are
    candidates of the very same samples cannot be told apart by any of them, and share alike.
    """
    ctx, members = learner.ctx, part_of(learner.ctx.parts, Members)
    if members is None or not members.folds:
        return None
    seen, sets = evidence(ctx, members), ctx.pool.candidates
    scores = allowed(learner, learner.classifier.by_evidence(seen)).double()
    rows = torch.randperm(len(sets), generator=ctx.generator("certainty", ctx.task), device=ctx.device)[:ENOUGH]
    open_ = scores.isfinite().all(dim=0)
    some = sets[rows][:, open_].any(dim=1)
    temperature = set_temperature(scores[rows][some][:, open_], sets[rows][some][:, open_])
    beforehand = part_of(ctx.parts, Disambiguation)
    assert beforehand is not None
    posterior = (scores / temperature + beforehand.set_weights().log()).softmax(dim=1).nan_to_num(0.0)
    for group in twins(sets):
        posterior[:, group] = posterior[:, group].mean(dim=1, keepdim=True)
    predicted = scores.argmax(dim=1, keepdim=True)
    distance = (-seen.nearness.gather(1, predicted)[:, 0]).clamp_min(0).sqrt()
    return Certainty(
        temperature=temperature,
        far=float(torch.quantile(distance[rows], 1 - FLAGGED)),
        confidence=cautious(posterior.gather(1, labels[:, None])[:, 0]).float(),
    )


def cautious(confidence: Tensor) -> Tensor:
    """-> probabilities whose odds of being wrong are UNSEEN times as high."""
    return confidence / (confidence + UNSEEN * (1 - confidence))


def twins(sets: Tensor) -> list[Tensor]:
    """-> groups of classes, two or more, that are candidates of exactly the same samples of sets [n, classes]."""
    columns = sets.T.to(torch.uint8)
    _, group = torch.unique(columns, dim=0, return_inverse=True)
    group = torch.where(sets.any(dim=0), group, -1)
    counts = group[group >= 0].bincount() if bool((group >= 0).any()) else group[:0]
    return [(group == g).nonzero()[:, 0] for g in (counts > 1).nonzero()[:, 0].tolist()]
