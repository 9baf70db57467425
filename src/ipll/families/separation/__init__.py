"""Separation: which samples of a task look old, judged once, before training (Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Component, Judgement, lacking
from ipll.families.separation.mixture import lower_component
from ipll.settings import Section, setting

MEMBERS = ("prototype_distance", "model_output")

FEWEST = 10  # a mixture of two needs more samples than this
BLOCK = 8192  # samples whose distances to all prototypes are held at a time


@dataclass(frozen=True)
class SeparationSettings(Section, name="separation"):
    alpha: float = setting(0.8, "a sample above this old-task probability is judged old", "paper", within=(0, 1))
    count: str = setting(
        "free", "how many may be judged old: as the mixture says, or as the sets tell", choices=("free", "estimated")
    )
    metric: str = setting(
        "cosine", "distance to prototypes: 'euclidean' (Eq. 3 as written) or 'cosine'", choices=("euclidean", "cosine")
    )
    max_iter: int = setting(10, "most EM iterations of the mixture", "DivideMix's code", least=1)
    tol: float = setting(1e-2, "EM stops when the bound gains less than this", "DivideMix's code", least=0)
    reg: float = setting(5e-4, "added to the components' variances", "DivideMix's code", above=0)


class Separation(Component):
    """Base: a member gives a statistic e_i that is small for old samples; the mixture and threshold are shared."""

    Settings = SeparationSettings
    needs = frozenset({"prototypes"})
    provides = frozenset({"separation"})

    def statistic(self, features: Tensor, logits: Tensor, old_candidates: Tensor) -> Tensor:
        """-> e_i [n], finite wherever a sample has an old candidate."""
        raise lacking(self, "statistic")

    def nearest(self, features: Tensor, old_candidates: Tensor) -> tuple[Tensor, Tensor]:
        """-> the distance to the nearest prototype of an old candidate [n], infinite where there is none, and whose
        it is [n]; in blocks of rows."""
        mu, known = self.ctx.prototypes.mu, self.ctx.prototypes.known
        if self.settings.metric == "cosine":
            features, mu = F.normalize(features, dim=1), F.normalize(mu, dim=1)
        distance = features.new_empty(len(features))
        nearest = features.new_empty(len(features), dtype=torch.int64)
        for start in range(0, len(features), BLOCK):
            rows = slice(start, start + BLOCK)
            block = torch.cdist(features[rows], mu).masked_fill_(~(old_candidates[rows] & known), torch.inf)
            distance[rows], nearest[rows] = block.min(dim=1)
        return distance, nearest

    def judge(self, features: Tensor, logits: Tensor, candidates: Tensor) -> Judgement:
        """Splits samples by features [n, dim], logits and original candidate sets [n, capacity]."""
        settings = self.settings
        old_candidates = candidates & self.ctx.old_mask
        distance, nearest = self.nearest(features, old_candidates)
        measured = distance.isfinite()  # the set A: samples with an old candidate that has a prototype
        probability = torch.zeros_like(features[:, 0])
        e = self.statistic(features, logits, old_candidates)[measured]
        if len(e) > FEWEST and e.max() > e.min():
            scaled = (e - e.min()) / (e.max() - e.min())
            w = lower_component(scaled, max_iter=settings.max_iter, tol=settings.tol, reg=settings.reg)
        else:
            w = torch.ones_like(e)  # too few to fit: keep the old candidates, the safe side
        probability[measured] = w.to(probability.dtype)
        old = probability > settings.alpha
        if settings.count == "estimated":
            certain = ~(candidates & self.ctx.new_mask).any(dim=1)
            undecided, room = old & ~certain, expected_old(candidates, self.ctx.new_mask, self.ctx.seen) - certain.sum()
            e_of_all = torch.full_like(probability, torch.inf).masked_scatter(measured, e.to(probability.dtype))
            rank = e_of_all.masked_fill(~undecided, torch.inf).argsort(stable=True).argsort(stable=True)
            old = (old & certain) | (undecided & (rank + 1 <= room))
        return Judgement(old, nearest, probability)


FAMILIES["separation"].register("none")(Component)  # nothing is judged old
FAMILIES["separation"].base = Separation  # of all others


def expected_old(candidates: Tensor, new_mask: Tensor, seen: int) -> Tensor:
    """-> about how many of a task's samples are old, by their candidate sets [n, capacity]; 0-d.

    A sample without a new candidate is certainly old. Each false candidate joins a set with about the same rate r,
    (mean size - 1) / (seen - 1); so an old sample has no new candidate with probability (1 - r)^new.
    """
    certain = ~(candidates & new_mask).any(dim=1)
    rate = (candidates.sum(dim=1).double().mean() - 1) / max(seen - 1, 1)
    return certain.sum() / (1 - rate.clamp(0, 0.99)) ** new_mask.sum()
