"""Memories that fill a quota for each predicted class: at random, or PGDR's representative and diverse samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.component import FAMILIES, lacking, never
from ipll.families.memory import Memory, MemorySettings, quotas
from ipll.prototypes import rows_of_classes
from ipll.settings import setting

BLOCK = 1024  # rows of a distance matrix computed at a time
PER_PICK = 4  # samples drawn from a large class for each diverse one that is sought


class ByClass(Memory):
    """Base: samples are grouped by argmax over S_i of f, and a member chooses within each group."""

    def choose(self, features: Tensor, c: int, quota: int) -> Tensor:
        """-> which of a class's samples to keep, as indices into features [k, dim]; quota of them at most."""
        raise lacking(self, "choose")

    def select(self) -> Tensor:
        ctx = self.ctx
        features, groups = ctx.pool_features(), rows_of_classes(ctx.pool_predictions(), ctx.seen)
        shares = quotas(torch.tensor([len(rows) for rows in groups]), self.settings.size, ctx.seen, ctx.task).tolist()
        kept = []
        for c, (rows, quota) in enumerate(zip(groups, shares, strict=True)):
            ctx.check_stop()
            kept.append(rows[self.choose(features[rows], c, quota)] if quota else rows[:0])
        return torch.cat(kept)


@FAMILIES["memory"].register("random")
class RandomMemory(ByClass):
    """The same number of samples for each predicted class, drawn at random."""

    def choose(self, features: Tensor, c: int, quota: int) -> Tensor:
        generator = self.ctx.generator("memory", self.ctx.task, c)
        return torch.randperm(len(features), generator=generator, device=features.device)[:quota]


@dataclass(frozen=True)
class RepresentativeDiverseSettings(MemorySettings):
    neighbours: int = setting(10, "K, the neighbours that make up a sample's region (Eq. 8)", "paper", least=1)
    diverse_share: float = setting(
        0.67, "N_d as a share of m / |Y_t|: at most so many are diverse samples", "paper", within=(0, 1)
    )
    compared: int = setting(
        5000,
        "samples of a class that are compared with each other; in a larger one, diverse ones are sought in draws of it",
        least=2,
    )


@FAMILIES["memory"].register("representative-diverse")
class RepresentativeDiverse(ByClass):
    """PGDR's memory (Eqs. 7 to 9): up to N_d diverse samples first, then those nearest to the prototype.

    Diverse picks run out when every sample lies in the region of one already picked; representatives fill the rest.
    Comparing all samples of a class takes the square of their number: of a class that has more than are `compared`, the
    diverse ones come from draws, so that the cost is bounded by the memory, whatever the class's size.
    """

    Settings = RepresentativeDiverseSettings
    needs = frozenset({"prototypes"})

    def choose(self, features: Tensor, c: int, quota: int) -> Tensor:
        most = int(self.settings.diverse_share * self.settings.size / self.ctx.seen)
        diverse = self.diverse(features, c, min(most, quota))
        distance = torch.linalg.vector_norm(features - self.ctx.prototypes.mu[c], dim=1)
        distance[diverse] = torch.inf
        nearest = distance.argsort(stable=True)[: quota - len(diverse)]
        return torch.cat([diverse, nearest])

    def diverse(self, features: Tensor, c: int, count: int) -> Tensor:
        """-> indices [at most count] into a class's features: by Eqs. 8 and 9 among all of them, where they are no more
        than are compared; else among each of a few draws, which share no sample, its part of the count."""
        neighbours, check_stop = self.settings.neighbours, self.ctx.check_stop
        if len(features) <= self.settings.compared:
            return diverse_samples(features, count, neighbours, check_stop)
        generator = self.ctx.generator("diverse", self.ctx.task, c)
        drawn = torch.randperm(len(features), generator=generator, device=features.device)
        draws = max(1, -(-min(len(features), PER_PICK * count) // self.settings.compared))
        found = []
        for k, part in enumerate(drawn[: draws * self.settings.compared].tensor_split(draws)):
            share = count // draws + (k < count % draws)
            found.append(part[diverse_samples(features[part], share, neighbours, check_stop)])
        return torch.cat(found)


@FAMILIES["memory"].register("all-that-fit")
class AllThatFit(RepresentativeDiverse):
    """Keeps every sample, as it came, while there is room; then chooses as PGDR's memory does. For data of which much
    fits in: nothing is measured where nothing is to be chosen."""

    def select(self) -> Tensor:
        if (n := len(self.ctx.pool)) <= self.settings.size:
            return torch.arange(n, device=self.ctx.device)
        return super().select()


def diverse_samples(features: Tensor, count: int, neighbours: int, check_stop: Callable[[], None] = never) -> Tensor:
    """Eqs. 8 and 9 within one class: greedily the sample with the smallest a_i, the sum of distances to its K nearest
    neighbours, that is not among the K nearest of one already picked -> indices [at most count]."""
    k = min(neighbours, len(features) - 1)
    if count < 1 or k < 1:
        return torch.arange(min(count, len(features)), device=features.device)
    sums, nearest = nearest_neighbours(features, k, check_stop)
    order: npt.NDArray[np.int64] = sums.argsort(stable=True).cpu().numpy()
    regions: npt.NDArray[np.int64] = nearest.cpu().numpy()
    blocked = np.zeros(len(features), dtype=bool)
    picked: list[int] = []
    for i in order:  # the greedy rule is sequential; at most one cheap step a sample, once a task
        if not blocked[i]:
            picked.append(int(i))
            blocked[regions[i]] = True
            if len(picked) == count:
                break
    return torch.tensor(picked, device=features.device)


def nearest_neighbours(features: Tensor, k: int, check_stop: Callable[[], None] = never) -> tuple[Tensor, Tensor]:
    """-> a_i [n], the summed distance to the k nearest others, and who they are [n, k]; in blocks of rows."""
    sums = features.new_empty(len(features))
    nearest = features.new_empty(len(features), k, dtype=torch.int64)
    for start in range(0, len(features), BLOCK):
        check_stop()
        block = torch.cdist(features[start : start + BLOCK], features)
        own = torch.arange(len(block), device=block.device)
        block[own, start + own] = torch.inf
        distance, nearest[start : start + BLOCK] = block.topk(k, largest=False)
        sums[start : start + BLOCK] = distance.sum(dim=1)
        del block  # before the next one is made
    return sums, nearest
