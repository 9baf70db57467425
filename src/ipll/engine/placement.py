"""Where samples lie, and how they get to the device.

They lie on the device where they fit, else in host memory or in the file that is mapped into it. From there they travel
in chunks: while the device is busy with one, threads gather the next in pinned memory, from where it is copied on a
stream of its own. The threads touch no CUDA, so that a step can be captured at the same time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.engine import processes
from ipll.engine.device import free_memory
from ipll.engine.machine import cores

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[np.uint8] | npt.NDArray[np.float32]

SHARE = 0.5  # of the free memory may be taken by samples; the rest is for training
THREADS = min(8, cores())  # that gather samples; one copies a few GB a second
BLOCK = 2**28  # bytes that are read at a time when samples are loaded
HOST = torch.device("cpu")


class Selection:
    """Rows of an array that stays where it is, such as a file that is mapped into memory."""

    def __init__(self, array: Array, rows: Ints) -> None:
        self.array, self.rows = array, rows
        self.shape = (len(rows), *array.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | Ints | list[int]) -> Array:
        """-> a copy of these rows."""
        return self.array[self.rows[rows]]


def select(samples: Array | Selection, rows: Ints) -> Array | Selection:
    """-> rows of `samples`; nothing of a mapped file is read yet."""
    if isinstance(samples, Selection):
        return Selection(samples.array, samples.rows[rows])
    mapped = isinstance(samples, np.memmap) and samples.flags.c_contiguous
    return Selection(samples, rows) if mapped else samples[rows]


class SampleStore(ABC):
    """Samples [n, ...]. Rows of them are given as tensors on the device."""

    residence: ClassVar[str]
    shape: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return self.shape[0]

    def split(self, rows: Tensor | slice | None, size: int) -> Sequence[Tensor]:
        """-> the indices of `rows` (None: all) in chunks of `size`, the last one smaller."""
        return torch.split(self._indices(slice(None) if rows is None else rows), size)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """-> these rows, all at once."""
        (chunk,) = self.prefetch([self._indices(rows)])
        return chunk

    def _indices(self, rows: Tensor | slice) -> Tensor:
        return torch.arange(len(self), device=self.device)[rows]

    @abstractmethod
    def prefetch(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        """-> the rows of each chunk [m]; the next is on its way while the caller is busy with one."""


def place(
    own: Array | Selection, device: torch.device, residence: str = "auto", kept: Tensor | None = None
) -> SampleStore:
    """-> samples `own` and, behind them, those `kept` on the device. 'auto': on the device if they take at most half
    of its free memory, else on the 'host'; there, a selection is read into memory if it takes at most half of that."""
    kept = torch.zeros(0, device=device) if kept is None else kept
    kept = kept.reshape(len(kept), *own.shape[1:])  # an empty memory knows no shape yet
    each = math.prod(own.shape[1:]) * own[:0].itemsize
    if residence == "auto":
        fits = each * (len(own) + len(kept)) <= _room(device)
        residence = "device" if fits else "host"
    if residence == "device":
        return Resident(_loaded(own, kept, device, max(1, BLOCK // max(1, each))))
    if isinstance(own, Selection) and each * len(own) <= _room(HOST):
        own = own[:]
    return Staged(own, kept, device)


def _room(device: torch.device) -> float:
    """-> bytes for samples; a machine's memory is shared by the processes of a run that are there."""
    return SHARE * free_memory(device) / (processes.on_this_machine() if device.type == "cpu" else 1)


def _loaded(own: Array | Selection, kept: Tensor, device: torch.device, block: int) -> Tensor:
    n = len(own)
    whole = torch.empty((n + len(kept), *own.shape[1:]), dtype=_dtype(own), device=device)
    for start in range(0, n, block):
        rows = slice(start, min(start + block, n))
        whole[rows] = torch.from_numpy(own[rows])
    whole[n:] = kept
    return whole


def _dtype(own: Array | Selection) -> torch.dtype:
    return torch.from_numpy(np.empty(0, own[:0].dtype)).dtype


class Resident(SampleStore):
    """Samples on the device, or on any other where a tensor happens to be."""

    residence = "device"

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.device = tensor, tuple(tensor.shape), tensor.device

    def prefetch(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        for rows in chunks:
            yield self.tensor[rows]


class Staged(SampleStore):
    """Samples in host memory or in a file; those `kept` are on the device already."""

    residence = "host"

    def __init__(self, own: Array | Selection, kept: Tensor, device: torch.device) -> None:
        if not isinstance(own, Selection):
            contiguous: Any = np.ascontiguousarray(own)  # of any other array numpy would copy all for each chunk
            own = Selection(contiguous, np.arange(len(own)))
        self.own = own
        self.kept, self.device = kept, device
        self.shape = (len(own) + len(kept), *own.shape[1:])

    def prefetch(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        """Two buffers are gathered into by turns: one is filled while the other may still be copied from."""
        if not chunks:
            return
        room, n, dtype = max(map(len, chunks)), len(self.own), _dtype(self.own)
        on_host = torch.split(torch.cat([*chunks]).cpu(), [len(rows) for rows in chunks])
        wanted = [rows[rows < n].numpy() for rows in on_host]
        pinned = self.device.type == "cuda"
        buffers = [torch.empty((room, *self.shape[1:]), dtype=dtype, pin_memory=pinned) for _ in range(2)]
        staged = [buffers[number % 2][: len(rows)] for number, rows in enumerate(wanted)]
        arrival = torch.empty((room + len(self.kept), *self.shape[1:]), dtype=dtype, device=self.device)
        arrival[room:] = self.kept
        copies = SideCopies(self.device) if pinned else Copies()
        copies.arrival_is_free()
        with ThreadPoolExecutor(THREADS) as threads:
            gathering = self._gather(threads, wanted[0], staged[0])
            for number, rows in enumerate(chunks):
                for part in gathering:
                    part.result()
                copies.copy(number % 2, staged[number], arrival[: len(staged[number])])
                own = rows < n
                samples = arrival[torch.where(own, own.cumsum(0) - 1, rows - n + room)]
                copies.arrival_is_free()
                following = number + 1
                if following < len(chunks):
                    copies.wait(following % 2)
                    gathering = self._gather(threads, wanted[following], staged[following])
                yield samples

    def _gather(self, threads: Executor, rows: Ints, staged: Tensor) -> list[Future[None]]:
        """Lets all threads copy these rows to a buffer, each a part of them."""
        parts = zip(np.array_split(rows, THREADS), torch.tensor_split(staged, THREADS), strict=True)
        return [threads.submit(self._copy, *part) for part in parts]

    def _copy(self, rows: Ints, staged: Tensor) -> None:
        into: Any = staged.numpy()
        np.take(self.own.array, self.own.rows[rows], axis=0, out=into, mode="clip")  # 'raise' would copy twice


class Copies:
    """Copies to the device; on a CPU each is done at once."""

    def copy(self, buffer: int, staged: Tensor, arrival: Tensor) -> None:
        """Copies from the buffer of this number, once the arrival is free."""
        arrival.copy_(staged)

    def arrival_is_free(self) -> None:
        """All that reads the last copy has been asked for."""

    def wait(self, buffer: int) -> None:
        """Until the last copy from this buffer is done."""


class SideCopies(Copies):
    """Copies on a stream of their own, beside what the current one still has to do."""

    def __init__(self, device: torch.device) -> None:
        self.stream = side_stream(device)
        self.free, *self.copied = (torch.cuda.Event() for _ in range(3))  # type: ignore[no-untyped-call]

    def copy(self, buffer: int, staged: Tensor, arrival: Tensor) -> None:
        self.stream.wait_event(self.free)
        with torch.cuda.stream(self.stream):
            arrival.copy_(staged, non_blocking=True)
            self.copied[buffer].record()
        torch.cuda.current_stream().wait_event(self.copied[buffer])

    def arrival_is_free(self) -> None:
        self.free.record()

    def wait(self, buffer: int) -> None:
        self.copied[buffer].synchronize()


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
