"""Several processes, one run: each takes a part of every batch through the network, and all have the whole of it then.

Every process holds the same learner and does the same. Only what costs is split: a network's pass. Each takes its own
rows through it, batch norm counts the rows of all, and what comes out is gathered, so that targets, losses, prototypes,
queues and memories see whole batches, as in one process; no part of a method knows of others. Backward, each process
has the gradients of its own rows, and the weights' are summed. So the losses are those of one process but for
rounding, whatever the method and the update rule: PyTorch's DistributedDataParallel, which averages gradients of
losses on parts of a batch, could not give that to a queue, a mixture or a batch norm, nor sum twice in one step.

The first process keeps the folder, shows progress and obeys signals; the others end with it.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ipll.engine import launch
from ipll.engine.launch import STORE, lost_file, wanted
from ipll.errors import ConfigError, RunError

T = TypeVar("T")

PEER_LOST = ("gloo", "NCCL", "Connection")  # in what a collective says whose other side has gone
MEETING = ("MASTER_ADDR", "MASTER_PORT")  # where processes meet whose launcher is not ours
LAST_WORDS = 60.0  # seconds for a checkpoint when the launcher is gone
PATIENCE = timedelta(minutes=30)  # for the slowest: the first to be done with a task waits for it


class Group(NamedTuple):
    rank: int
    size: int


_group: Group | None = None
_sharing = False  # is a network being passed by every process with its own rows?


def count() -> int:
    return _group.size if _group else 1


def is_first() -> bool:
    """Does this process keep files and show progress? One alone does."""
    return _group is None or _group.rank == 0


def on_this_machine() -> int:
    """-> how many of the processes share its memory."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if _group and told.isdecimal() else count()


def own_device(device: torch.device) -> torch.device:
    """-> the GPU of this process, of those that the machine has; a CPU is everybody's."""
    if device.type != "cuda" or wanted() == 1:
        return device
    here, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") and not os.environ.get(STORE)  # ours shows all of them to each
    if there == 1 and shown:  # a launcher that shows each process its own
        return torch.device("cuda", 0)
    if here >= there:
        needed = os.environ.get("LOCAL_WORLD_SIZE", here + 1)
        raise ConfigError(
            f"{needed} processes need a GPU each, and there are {there} here. Use fewer, or --device cpu."
        )
    return torch.device("cuda", here)


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """This process is one of several inside, where the environment says so."""
    global _group
    if wanted() == 1 or _group is not None:
        yield
        return
    store = os.environ.get(STORE)
    if missing := [name for name in ("RANK", *(() if store else MEETING)) if not os.environ.get(name)]:
        raise ConfigError(
            f"the environment says that there are {wanted()} processes (WORLD_SIZE), but not {' and '.join(missing)}. "
            "Begin with --processes N or torchrun, or unset WORLD_SIZE."
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if store:
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    # Imported later (by an optimiser, say), a module of it keeps the group for ever, and with it gloo's threads: one
    # that lets go of a tensor while the interpreter ends takes the process down with it (pytorch/pytorch#38228).
    importlib.import_module("torch._dynamo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{store}" if store else "env://",
        rank=int(os.environ["RANK"]),
        world_size=wanted(),
        timeout=PATIENCE,
    )
    _group = Group(dist.get_rank(), dist.get_world_size())
    whole = device.type != "cuda"  # gloo lets go of others who still wait
    try:
        with _deaf(not is_first()):
            yield
        whole = True
    except (dist.DistError, RuntimeError) as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in PEER_LOST):
            raise
        if store:
            lost_file(store, _group.rank).touch()
        reason = " ".join(str(error).partition("Exception raised from")[0].split()) or "no word"
        raise RunError(
            f"another process of this run has ended or is out of reach, and nothing can go on without it ({reason})."
        ) from error
    finally:
        _group = None
        if whole:
            dist.destroy_process_group()
        else:
            launch.abandoned = True


def _end_with_launcher() -> None:
    """The launcher holds the other end of standard input: when it is gone, the first process stops, and the others end
    with it. It needs them for that; and whoever is still there after a while waits in vain."""
    while os.read(0, 1):
        pass
    if not int(os.environ["RANK"]):
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_WORDS)
    os._exit(1)


@contextmanager
def _deaf(wanted: bool) -> Iterator[None]:
    """Signals are for the first process, which needs the others until it stands still."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def from_first(value: T | None) -> T | None:
    """-> what the first process has; the others' `value` does not count."""
    if _group is None:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def by_first(make: Callable[[], T]) -> T:
    """-> what the first process makes: two machines might round differently."""
    made = from_first(make() if is_first() else None)
    assert made is not None
    return made


def check_alike(tensors: Sequence[Tensor]) -> None:
    """Raises where the processes no longer have the same: a part may draw what is not drawn by the seed, and machines
    of two kinds may round differently."""
    if _group is None:
        return
    sums = torch.stack([tensor.detach().sum(dtype=torch.float64) for tensor in tensors]).nan_to_num()
    most, least = sums.clone(), sums.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    if not torch.equal(most, least):
        raise RunError(
            "the processes of this run have drifted apart. A part of the method may draw from the global generator "
            "(ipll.testing.check_method tells; use self.ctx.generator); else use machines and PyTorch builds of one "
            "kind."
        )


def own_rows(n: int) -> slice | None:
    """-> those of n rows that this process passes through a network; None: all of them, as too few to share."""
    if _group is None or n < 2 * _group.size:
        return None
    return _shares(n, _group.size)[_group.rank]


def _shares(n: int, size: int) -> list[slice]:
    """-> the rows of each process, of n."""
    return [slice(start, end) for start, end in pairwise(n * k // size for k in range(size + 1))]


@contextmanager
def sharing() -> Iterator[None]:
    """Inside, a network is passed by every process with its own rows: batch norm counts those of all."""
    global _sharing
    _sharing = True
    try:
        yield
    finally:
        _sharing = False


def shared() -> bool:
    return _sharing


def gathered(own: Tensor, n: int) -> Tensor:
    """-> the rows [n, ...] of all processes, from the `own` of each; its gradient is that of the own ones."""
    assert _group is not None
    whole: Tensor = _Gathered.apply(own, n, *_group)  # type: ignore[no-untyped-call]
    return whole


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, n: int, rank: int, count: int) -> Tensor:
        shares = _shares(n, count)
        ctx.rows, sizes = shares[rank], [share.stop - share.start for share in shares]
        most = max(sizes)
        padded = own if len(own) == most else torch.cat([own, own.new_zeros(most - len(own), *own.shape[1:])])
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient[ctx.rows], None, None, None


def summed(weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """-> the same weights, whose gradients are the sums of all processes'; those without one have none."""
    same: tuple[Tensor, ...] = _Summed.apply(*weights)  # type: ignore[no-untyped-call]
    return same


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [gradient for gradient in gradients if gradient is not None]
        flat = torch.cat([gradient.flatten() for gradient in there])
        dist.all_reduce(flat)
        sums = iter(torch.split(flat, [gradient.numel() for gradient in there]))
        # In each one's own memory layout: fused kernels refuse any other.
        return tuple(None if g is None else torch.empty_like(g).copy_(next(sums).view_as(g)) for g in gradients)


def of_all(own: Tensor) -> Tensor:
    """-> what each process has [count, ...]."""
    parts = [torch.empty_like(own) for _ in range(count())]
    dist.all_gather(parts, own.contiguous())
    return torch.stack(parts)


def sum_of_all(own: Tensor) -> Tensor:
    total = own.clone()
    dist.all_reduce(total)
    return total
