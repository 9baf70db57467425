"""Classifiers: how a class is chosen at test time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ipll.component import FAMILIES, Component, lacking
from ipll.families.side_by_side import Evidence, Members, evidence

MEMBERS = ("prototypes", "exemplar_means", "stacked")

WIDEST = 1e3  # a temperature lies within this factor of the scores' spread


class Classifier(Component):
    """Base: scores for each class, the higher the better."""

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        """features [n, dim], corrected logits [n, capacity] -> [n, capacity]; -inf for classes not to be chosen."""
        raise lacking(self, "scores")

    def evidence(self, members: Members, kind: int = 0) -> Evidence:
        """-> what the pool's samples look like to those who did not learn from them."""
        return evidence(self.ctx, members, kind)

    def by_evidence(self, seen: Evidence) -> Tensor:
        """-> the scores that held-out samples [n, capacity] would have."""
        return seen.linear


FAMILIES["classifier"].base = Classifier


@FAMILIES["classifier"].register("linear")
class LinearClassifier(Classifier):
    """The head's own logits."""

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        return logits.masked_fill(~self.ctx.network.head.born, -torch.inf)


def best_temperature(loss: Callable[[float], float], spread: float) -> float:
    """-> T at which a loss, given log T, is least; of scores whose largest exceeds their mean by `spread`."""
    from scipy.optimize import minimize_scalar  # slow to import

    bounds = math.log(spread / WIDEST), math.log(spread * WIDEST)
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)
