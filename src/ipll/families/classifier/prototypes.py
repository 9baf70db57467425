"""Classification by prototypes (Eq. 12)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES
from ipll.families.classifier import Classifier
from ipll.families.side_by_side import Evidence
from ipll.settings import Section, setting


@dataclass(frozen=True)
class PrototypeClassifierSettings(Section, name="classifier"):
    metric: str = setting("euclidean", "distance to prototypes", "paper", choices=("euclidean", "cosine"))


@FAMILIES["classifier"].register("prototypes")
class PrototypeClassifier(Classifier):
    """The nearest prototype (Eq. 12)."""

    Settings = PrototypeClassifierSettings
    needs = frozenset({"prototypes"})

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        prototypes = self.ctx.prototypes
        if self.settings.metric == "euclidean":
            return -prototypes.distances(features)
        cosines = F.normalize(features, dim=1) @ F.normalize(prototypes.mu, dim=1).T
        return cosines.masked_fill(~prototypes.known, -torch.inf)

    def by_evidence(self, seen: Evidence) -> Tensor:
        return seen.nearness
