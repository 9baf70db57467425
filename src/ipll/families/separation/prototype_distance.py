"""Separation by distance to the nearest prototype among a sample's old candidates (Eq. 3)."""

from __future__ import annotations

from torch import Tensor

from ipll.component import FAMILIES
from ipll.families.separation import Separation


@FAMILIES["separation"].register("prototype-distance")
class PrototypeDistance(Separation):
    """e_i = min over j in S_i and Y_{t-1} of ||phi(x_i) - mu_j||_2."""

    def statistic(self, features: Tensor, logits: Tensor, old_candidates: Tensor) -> Tensor:
        return self.nearest(features, old_candidates)[0]
