"""Class prototypes: means of features, carried from task to task (Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.component import Component, Context
from ipll.settings import Section, setting


@dataclass(frozen=True)
class PrototypeSettings(Section, name="prototypes"):
    gamma: float = setting(0.5, "weight of an old class's earlier prototype (Eq. 2)", "paper", least=0, below=1)
    update: str = setting(
        "task", "when prototypes are updated: at the end of each 'task' or of each 'epoch'", choices=("task", "epoch")
    )
    fallback: bool = setting(
        True, "a new class that no sample settled on: its prototype is the mean of features weighted by p"
    )


class Prototypes(Component):
    """mu_c for each class. P_c, the samples of a class, are those whose argmax over S_i is c, memory included.

    A class without such a sample keeps the prototype it has; a new one falls back to the mean of features weighted
    by p_ic, so that every class that has any weight has a prototype. Without the `fallback` it has none: a class that
    was only ever a false candidate is then never chosen by prototypes.
    """

    Settings = PrototypeSettings
    mu: Tensor  # [capacity, dim]
    known: Tensor  # [capacity] bool

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("mu", torch.zeros(ctx.capacity, ctx.network.dim, device=ctx.device))
        self.register_buffer("known", torch.zeros(ctx.capacity, dtype=torch.bool, device=ctx.device))

    def update(self, features: Tensor, predicted: Tensor, p: Tensor) -> None:
        """Eq. 2 from features [n, dim], predicted classes [n] and soft targets [n, capacity]."""
        means, filled = class_means(features, predicted, self.ctx.capacity)
        weighted = (p.amax(dim=0) > 0) & self.settings.fallback
        first = (weighted & ~filled & ~self.known).nonzero()[:, 0]  # rarely any: no product over all classes
        gamma = self.settings.gamma
        moved = torch.where(self.known[:, None], gamma * self.mu + (1 - gamma) * means, means)
        self.mu.copy_(torch.where(filled[:, None], moved, self.mu))
        self.mu[first] = weighted_means(features, p[:, first])[0]
        self.known |= filled | weighted

    def distances(self, features: Tensor) -> Tensor:
        """||phi(x_i) - mu_j||_2 -> [n, capacity]; infinite where class j has no prototype."""
        return torch.cdist(features, self.mu).masked_fill(~self.known, torch.inf)

    def _refresh(self) -> None:
        self.update(self.ctx.pool_features(), self.ctx.pool_predictions(), self.ctx.pool.p)

    def end_epoch(self) -> None:
        if self.settings.update == "epoch":
            self.ctx.forget_features()
            self._refresh()

    def end_task(self) -> None:
        if self.settings.update == "task":
            self._refresh()


def rows_of_classes(classes: Tensor, count: int) -> tuple[Tensor, ...]:
    """-> for each class up to `count`, at least, where it occurs in classes [n], in order; by one sort for all."""
    return torch.split(classes.argsort(stable=True), classes.bincount(minlength=count).tolist())


def class_means(features: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """-> the mean of features [n, dim] over each of `count` classes [count, dim], zero for those without a sample, and
    which have any. Reads every feature once, and repeats to the bit on a GPU too."""
    means, groups = features.new_zeros(count, features.shape[1]), rows_of_classes(classes, count)
    for c, rows in enumerate(groups):
        if len(rows):
            means[c] = features[rows].mean(dim=0)
    return means, torch.tensor([len(rows) > 0 for rows in groups], device=features.device)


def weighted_means(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """-> the mean of features [n, dim] under each column of weights [n, k] as [k, dim], and which columns have any.

    Columns are scaled first: weights that momentum has worn down to subnormal numbers count as any others.
    """
    most = weights.amax(dim=0)
    scaled = weights / torch.where(most > 0, most, 1)
    return (scaled.T @ features) / scaled.sum(dim=0).clamp_min(1)[:, None], most > 0
