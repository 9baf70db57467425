"""Classifiers: how a class is chosen at test time."""

from __future__ import annotations

import torch
from torch import Tensor

from ipll.component import FAMILIES, Component
from ipll.families.side_by_side import Evidence

MEMBERS = ("prototypes", "exemplar_means", "stacked")


class Classifier(Component):
    """Base: scores for each class, the higher the better."""

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        """features [n, dim], corrected logits [n, capacity] -> [n, capacity]; -inf for classes not to be chosen."""
        raise NotImplementedError

    def by_evidence(self, seen: Evidence) -> Tensor:
        """-> the scores that held-out samples [n, capacity] would have."""
        return seen.linear


@FAMILIES["classifier"].register("linear")
class LinearClassifier(Classifier):
    """The head's own logits."""

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        return logits.masked_fill(~self.ctx.network.head.born, -torch.inf)
