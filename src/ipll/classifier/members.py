"""Classifiers: how a class is chosen at test time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Component, Context
from ipll.members import Evidence
from ipll.prototypes import class_means
from ipll.settings import check_choice, setting


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


@dataclass(frozen=True)
class PrototypeClassifierSettings:
    metric: str = setting("euclidean", "distance to prototypes: 'euclidean' or 'cosine'", "paper")

    def __post_init__(self) -> None:
        check_choice("classifier.metric", self.metric, ("euclidean", "cosine"))


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


@FAMILIES["classifier"].register("exemplar-means")
class ExemplarMeans(Classifier):
    """iCaRL's nearest mean of exemplars: features and means on the unit sphere. A class without exemplars keeps the
    mean that it had."""

    needs = frozenset({"memory"})
    means: Tensor  # [capacity, dim]
    known: Tensor  # [capacity] bool

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("means", torch.zeros(ctx.capacity, ctx.network.dim, device=ctx.device))
        self.register_buffer("known", torch.zeros(ctx.capacity, dtype=torch.bool, device=ctx.device))

    def end_task(self) -> None:
        memory = self.ctx.memory
        features = F.normalize(self.ctx.embed(memory.samples)[0], dim=1)
        means, filled = class_means(features, memory.classes, self.ctx.capacity)
        self.means.copy_(torch.where(filled[:, None], F.normalize(means, dim=1), self.means))
        self.known |= filled

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        return -torch.cdist(F.normalize(features, dim=1), self.means).masked_fill(~self.known, torch.inf)
