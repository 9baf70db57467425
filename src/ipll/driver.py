"""The driver: lets a learner learn a task, tells a listener, keeps checkpoints, and stops when it is asked to.

It is the one under runs and under people's own data. A request to stop is acknowledged at once and obeyed at the next
position. Where that is far, as at the end of a task, what goes on is cut short: it is thrown away, and the last
checkpoint is what counts.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol

import torch

from ipll.component import never
from ipll.config import Config
from ipll.data.stream import Task
from ipll.errors import Interrupted, RunError
from ipll.learner import Learner, Position
from ipll.messages import UNTOLD
from ipll.progress import Listener

ASKED = "Stopping after this step; press again to stop now."
GRACE = 0.5  # seconds that a request to stop waits for the next position
LOSS = 2.0  # seconds of training, at most, that are done again where the end of a task is cut short

Record = dict[str, Any]


class Job(Protocol):
    """What is done with a task besides learning it."""

    def epoch(self, position: Position) -> Record | None:
        """An epoch has ended -> what there is to say of it."""

    def task(self) -> Record:
        """The task is learnt: it is summed up -> what there is to say of it."""

    def keep(self, position: Position | None) -> None:
        """Keeps a checkpoint, from which this position is the next; None: the task is done."""


def drive(
    learner: Learner, task: Task, start: Position | None, *, job: Job, listener: Listener, stop: Stop, clock: Clock
) -> None:
    """Learns a task from `start`, or from its beginning where that is None. Where it is asked to stop, it ends with
    Interrupted."""
    learner.ctx.check_stop = stop.check
    try:
        clock.begin(whole=start is None or start.step == 0)
        for position in learner.fit(task, start):
            if position.step == 0:
                with clock.paused():
                    clock.end_epoch()
                    if record := job.epoch(position):
                        listener.epoch(position, record)
            listener.step(position, learner.steps, learner.phases)
            ending = position.phase == learner.phases - 1 and position.epoch == learner.ctx.epochs
            if stop.asked or clock.due(ending=ending):
                with clock.paused():
                    job.keep(position)
                    clock.kept = time.monotonic()
            if stop.asked:
                stop.obey()
        listener.task(job.task())
        job.keep(None)
        clock.kept = time.monotonic()
    finally:
        learner.ctx.check_stop = never


class Clock:
    """Counts seconds of training, without what is measured and kept in between; knows when a checkpoint is due."""

    def __init__(self, every: float, seconds: float = 0.0) -> None:
        self.every, self.seconds = every, seconds
        self.epochs: list[float] = []  # seconds of each whole epoch of the task
        self.kept = self._since = time.monotonic()
        self._begun: float | None = None

    def begin(self, *, whole: bool) -> None:
        """Training starts, or goes on; with a `whole` epoch or in the middle of one."""
        self.epochs, self._since = [], time.monotonic()
        self._begun = self.seconds if whole else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.seconds += time.monotonic() - self._since
        try:
            yield
        finally:
            self._since = time.monotonic()

    def end_epoch(self) -> None:
        self.epochs += [] if self._begun is None else [self.seconds - self._begun]
        self._begun = self.seconds

    def due(self, *, ending: bool) -> bool:
        """Is it time for a checkpoint? Before the end of a task there is one, so that it can be cut short."""
        return time.monotonic() - self.kept > (min(self.every, LOSS) if ending else self.every)


class Stop:
    """A request to stop, once somebody has asked. `parting` says what is left, and how to go on."""

    def __init__(self, parting: str) -> None:
        self.parting = parting
        self.signal, self.since = 0, 0.0

    @property
    def asked(self) -> bool:
        return self.signal > 0

    def ask(self, number: int) -> None:
        self.signal, self.since = number, time.monotonic()

    def obey(self) -> NoReturn:
        raise Interrupted(self.parting, signal=self.signal)

    def check(self) -> None:
        """To be called in between by all that takes long; does not come back where the next position is too far."""
        if self.asked and time.monotonic() - self.since > GRACE:
            self.obey()


@contextmanager
def stop_requests(
    parting: str = "", note: Callable[[str], None] = lambda _: None, *, listen: bool = True
) -> Iterator[Stop]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one acts as usual. Only in the main thread."""
    stop = Stop(parting)
    if not listen or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {int(n): signal.getsignal(n) or signal.SIG_DFL for n in (signal.SIGINT, signal.SIGTERM)}
    if getattr(previous[signal.SIGINT], "asked", False):  # before; its KeyboardInterrupt was lost, as in a destructor
        stop.ask(signal.SIGINT)

    def ask(number: int, _frame: object) -> None:
        signal.signal(number, previous[number])
        if not stop.asked:
            stop.ask(number)
            with suppress(*UNTOLD):
                note(ASKED)

    for number in previous:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def enough_memory(config: Config) -> Iterator[None]:
    """Says what helps when the GPU's memory runs out, or the computer's own."""
    size = config.train.batch_size
    smaller = f"Use smaller batches (--set train.batch_size={max(1, size // 2)})"
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise RunError(
            f"the GPU's memory ran out: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB were in use here at most, "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free, batches are of {size}. {smaller}, "
            "images in host memory (--set data.residence=host), --precision bf16, or a GPU that no other program uses."
        ) from error
    except (MemoryError, RuntimeError) as error:  # PyTorch's own kind is for GPUs
        if not (isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)):
            raise
        large = config.augment.test_size
        test = f", smaller images at test (now augment.test_size={large})" if large else ""
        raise RunError(
            f"the computer's memory ran out, batches are of {size}. {smaller}{test}, "
            "fewer samples (--set data.per_class=100), or a computer with more memory that is free."
        ) from error
