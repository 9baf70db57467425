"""Memory: which samples are kept for replay, and how they are mixed into batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.component import FAMILIES, Component, Context, lacking
from ipll.settings import Section, setting

MEMBERS = ("by_class", "herding")


@dataclass(frozen=True)
class MemorySettings(Section, name="memory"):
    size: int = setting(2000, "m, the number of samples kept in all", "paper", least=0)
    batches: str = setting(
        "joint", "memory and task: 'joint' in one shuffle, or 'paired', as many of each", choices=("joint", "paired")
    )
    replayed: int = setting(
        0,
        "kept samples that an epoch goes through, drawn anew for each, or as many as the task's own where these are "
        "more; 0: all",
        least=0,
    )


class Memory(Component):
    """Base: keeps samples with their original candidate sets and soft targets. Sets stay as they are."""

    Settings = MemorySettings
    provides = frozenset({"memory"})
    ids: Tensor  # [m] int64
    samples: Tensor  # [m, ...], of the type that the tasks' are
    candidates: Tensor  # [m, capacity] bool
    p: Tensor  # [m, capacity] float
    votes: Tensor  # [m, capacity] float, with which they came; [0, capacity] where none did
    classes: Tensor  # [m] int64, argmax over S_i of f when it was kept

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        empty = torch.zeros(0, ctx.capacity, device=ctx.device)
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64, device=ctx.device))
        self.register_buffer("samples", torch.zeros(0, dtype=torch.uint8, device=ctx.device))
        self.register_buffer("candidates", empty.bool())
        self.register_buffer("p", empty)
        self.register_buffer("votes", empty.clone())
        self.register_buffer("classes", torch.zeros(0, dtype=torch.int64, device=ctx.device))

    def select(self) -> Tensor:
        """-> rows of the pool to keep [at most size]."""
        raise lacking(self, "select")

    def end_task(self) -> None:
        pool, rows = self.ctx.pool, self.select()
        self.ids, self.samples = pool.ids[rows], pool.samples[rows]
        self.candidates, self.p = pool.candidates[rows], pool.p[rows]
        self.votes = self.votes[:0].clone() if pool.votes is None else pool.votes[rows]
        self.classes = self.ctx.pool_predictions()[rows]

    def take_targets(self) -> None:
        """Of its samples, from the pool, where they were settled after these were chosen."""
        ids, order = self.ctx.pool.ids.sort()
        self.p = self.ctx.pool.p[order[torch.searchsorted(ids, self.ids)]]

    def order(self, rows: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        """-> rows of the pool for one epoch [steps, batch].

        Joint: a permutation, wrapped around to fill the last batch. Paired: the same of the task's own samples, and
        beside each batch one of the same size from the memory, which is gone through again and again. Of a memory that
        holds more than is `replayed`, a draw is all that there is for this epoch: its cost does not grow with it. A
        task without samples of its own goes through the memory.
        """
        kept = rows[rows >= self.ctx.pool.incoming]
        own = rows[: len(rows) - len(kept)]
        if self.settings.replayed and len(kept) > (most := max(self.settings.replayed, len(own))):
            kept = kept[torch.randperm(len(kept), generator=generator, device=rows.device)[:most]]
            rows = torch.cat([own, kept])
        if self.settings.batches == "joint" or not len(kept) or not len(own):
            return _shuffled(rows, -(-len(rows) // batch_size), batch_size, generator)
        steps = -(-len(own) // batch_size)
        parts = [_shuffled(part, steps, min(batch_size, len(own)), generator) for part in (own, kept)]
        return torch.cat(parts, dim=1)


FAMILIES["memory"].base = Memory


def _shuffled(rows: Tensor, steps: int, batch_size: int, generator: torch.Generator) -> Tensor:
    """-> [steps, batch]: a permutation of `rows`, gone through again and again, so no row is twice in a batch."""
    size = min(batch_size, len(rows))
    shuffled = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
    return shuffled[torch.arange(steps * size, device=rows.device) % len(rows)].view(steps, size)


@FAMILIES["memory"].register("none")
class NoMemory(Memory):
    """Keeps nothing; what is not in the task's own data is not seen again."""

    provides = frozenset()

    def end_task(self) -> None: ...


def quotas(available: Tensor, size: int, seen: int, task: int = 0) -> Tensor:
    """How many samples each class may keep [classes]: floor(size / seen), what is left goes to classes that have more.

    `available` [classes] counts each class's samples. The left-over is dealt in rounds of one per class that still
    has samples, lower classes first. A memory with fewer places than classes begins where the last task's places
    ended, so that from task to task they go around all classes.
    """
    if size < seen and (first := task * size % seen):
        return quotas(available.roll(-first), size, seen).roll(first)
    share = available.clamp_max(size // seen)
    spare = available - share
    left = size - int(share.sum())
    while left > 0 and int(spare.sum()) > 0:
        open_classes = spare > 0
        count = int(open_classes.sum())
        each = min(left // count, int(spare[open_classes].min()))
        if each == 0:  # fewer left than classes that could take one
            open_classes &= open_classes.cumsum(0) <= left
            each = 1
        share, spare = share + each * open_classes, spare - each * open_classes
        left -= each * int(open_classes.sum())
    return share
