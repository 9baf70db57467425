"""The pool: what a task trains on, its own samples and the memory's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ipll.data.stream import Floats, Mask, Task
from ipll.engine.placement import SampleStore, place

LEAST = 1e-3  # share of the votes of a candidate that has none


class Kept(Protocol):
    """A memory, as others see it: what it keeps of earlier samples."""

    settings: Any
    ids: Tensor  # [m] int64
    samples: Tensor  # [m, ...], of the type that the tasks' are
    candidates: Tensor  # [m, capacity] bool
    p: Tensor  # [m, capacity] float
    votes: Tensor  # [m, capacity] float, or [0, capacity]
    classes: Tensor  # [m] int64, argmax over S_i of f when it was kept


@dataclass
class Pool:
    """D'_t: the samples of the task and, behind them, those of the memory. Columns are classes in arrival order."""

    ids: Tensor  # [n] int64
    samples: SampleStore  # [n, ...], wherever they lie
    candidates: Tensor  # [n, capacity] bool, the sets S_i as they were given (wider where misses are found)
    p: Tensor  # [n, capacity] float, the soft targets
    incoming: int  # rows [0, incoming) are the task's own
    held_out: Tensor  # [n] bool, rows not trained on
    judged_old: Tensor  # [incoming] bool, D_old of a method that separates
    certain: Tensor  # [n] bool, samples whose sets hold the true label: nobody looks for it outside
    votes: Tensor | None = None  # [n, capacity] float, that each candidate has, 0 of a sample that came without
    odds: Tensor | None = None  # [n, capacity] float, what these say of each candidate beyond that it is one

    @classmethod
    def of(cls, task: Task, memory: Kept, capacity: int, device: torch.device, residence: str = "auto") -> Pool:
        """The pool at a task's start: the task's own targets are still zero, the memory's as they were kept."""
        ids = torch.from_numpy(task.ids).to(device)
        own, kept = _widened(task.candidates, capacity, device), len(memory.ids)
        every = torch.cat([ids, memory.ids])
        certain = every[:0] if task.certain is None else torch.from_numpy(task.certain).to(device)
        sets, votes = torch.cat([own, memory.candidates]), None
        if task.votes is not None or len(memory.votes):
            none = torch.zeros(len(every), capacity, device=device)
            cast = none[: len(ids)] if task.votes is None else _widened(task.votes, capacity, device)
            votes = torch.cat([cast, memory.votes if len(memory.votes) else none[len(ids) :]])
        return cls(
            ids=every,
            samples=place(task.samples, device, residence, memory.samples),
            candidates=sets,
            p=torch.cat([torch.zeros(len(ids), capacity, device=device), memory.p]),
            incoming=len(ids),
            held_out=torch.zeros(len(ids) + kept, dtype=torch.bool, device=device),
            judged_old=torch.zeros(len(ids), dtype=torch.bool, device=device),
            certain=torch.isin(every, certain),
            votes=votes,
            odds=None if votes is None else _odds(sets, votes),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def state(self) -> dict[str, Tensor]:
        """What changes while a task is learnt; the rest comes from the task and the memory."""
        return {"p": self.p, "held_out": self.held_out, "judged_old": self.judged_old}


def _odds(sets: Tensor, votes: Tensor) -> Tensor:
    """-> the log of each candidate's share of the votes over that of a random one [n, capacity]; 0 of classes outside a
    set, and of samples without votes."""
    total = votes.sum(dim=1, keepdim=True)
    odds = votes / total.clamp_min(LEAST) * sets.sum(dim=1, keepdim=True)
    return torch.where(sets & (total > 0), odds.clamp_min(LEAST).log(), 0.0)


def _widened(columns: Mask | Floats, capacity: int, device: torch.device) -> Tensor:
    """-> [n, capacity] of columns [n, seen]; the rest is zero."""
    seen = torch.from_numpy(columns).to(device)
    wide = seen.new_zeros(len(seen), capacity)
    wide[:, : seen.shape[1]] = seen
    return wide
