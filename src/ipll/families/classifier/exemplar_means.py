"""iCaRL's classifier."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Context
from ipll.families.classifier import Classifier
from ipll.prototypes import class_means


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
