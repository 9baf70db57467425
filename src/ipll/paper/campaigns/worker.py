"""One cell's work in one process: claim it, run or resume it, keep its log, record how it ended.

`python -m ipll.paper.campaigns.worker` is a long-lived process of the local pool: a job a line on stdin, an outcome a
line on stdout. It stops, with a checkpoint, when stdin ends: also when the process that started it was killed.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ipll.benchmark.run import resume, run_config
from ipll.engine.files import append_to, remove
from ipll.engine.locks import lock
from ipll.errors import DataError, Interrupted, NewerVersion
from ipll.learner import Position
from ipll.paper.campaigns import claims
from ipll.paper.campaigns.state import State, can_resume, read_status, record_error, set_aside
from ipll.paper.catalogue import Cell
from ipll.paper.wording import freeze
from ipll.plugins import load_plugins
from ipll.progress import Plan, Silent

READY = "ready"  # what a process of the pool says first
stopping = threading.Event()  # this process has been asked to end


@dataclass(frozen=True)
class Job:
    """A cell, where its folder is, and how to run it."""

    cell: Cell
    folder: Path
    device: str = "auto"
    data_root: Path | None = None
    plugins: tuple[str, ...] = ()
    stale: float = claims.STALE
    judged: int = 0  # the number of a claim found stale

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        cell = values.pop("cell")
        cell["settings"] = freeze(dict(cell["settings"]))
        root = values.pop("data_root")
        plugins, folder = tuple(values.pop("plugins")), Path(values.pop("folder"))
        return cls(Cell(**cell), folder, data_root=Path(root) if root else None, plugins=plugins, **values)


class Outcome(NamedTuple):
    """How an attempt ended: 'done', 'failed', 'stopped', 'busy' (another process has the cell) or 'died'."""

    kind: str
    message: str = ""


def work(job: Job) -> Outcome:
    """Runs a cell to its end, unless it is done or another process has it."""
    try:
        claim = claims.take(job.folder, judged=job.judged, stale=job.stale)
        if claim is None:
            return Outcome("busy")
        with claim:
            if read_status(job.folder).state is State.DONE:
                return Outcome("done")
            if not _unlocked(job.folder, forced=claim.forced):
                return Outcome("busy")
            with _log(job.folder / "worker.log"):
                return _attempt(job, claim)
    except claims.ClaimLost:
        return Outcome("busy")
    except (OSError, DataError, NewerVersion) as error:  # the folder itself cannot be used
        return Outcome("failed", str(error))


def _attempt(job: Job, claim: claims.Claim) -> Outcome:
    print(f"\n{time.strftime('%Y-%m-%d %H:%M:%S')} {job.cell} on {socket.gethostname()}, process {os.getpid()}")
    try:
        if aside := set_aside(job.folder):
            print(f"The result was damaged. It was set aside: {aside}")
        load_plugins(job.plugins)
        config, reporter = job.cell.config(), _Progress(claim)
        if can_resume(job.folder, config):
            resume(job.folder, device=job.device, data_root=job.data_root, reporter=reporter)
        else:
            run_config(
                config, out=job.folder, device=job.device, data_root=job.data_root, overwrite=True, reporter=reporter
            )
        remove(job.folder / "error.json")
        return Outcome("done")
    except Interrupted:
        return Outcome("stopped")
    except Exception as error:
        claim.check()
        sys.excepthook(type(error), error, error.__traceback__)
        return Outcome("failed", record_error(job.folder, error))


class _Progress(Silent):
    """Shows in the claim how far the run is, stops it when this process is asked to end, or the claim is lost."""

    def __init__(self, claim: claims.Claim) -> None:
        self.claim, self.asked = claim, False

    def begin(self, plan: Plan, position: Position) -> None:
        self.plan = plan
        self._show(position, 1, 1)

    def step(self, position: Position, steps: int, phases: int) -> None:
        self._show(position, steps, phases)
        if stopping.is_set() and not self.asked:
            self.asked = True
            signal.raise_signal(signal.SIGTERM)  # the run keeps a checkpoint and ends
        self.claim.check()

    def task(self, record: dict[str, Any]) -> None:
        self.claim.check()

    def end(self) -> None:
        self.claim.check()

    def _show(self, position: Position, steps: int, phases: int) -> None:
        tasks = len(self.plan.epochs)
        t = min(position.task, tasks - 1)
        self.claim.progress = {
            "task": t + 1,
            "tasks": tasks,
            "epoch": min(position.epoch + 1, self.plan.epochs[t]),
            "epochs": self.plan.epochs[t],
            "share": round(self.plan.share(position, steps, phases), 4),
        }


def _unlocked(folder: Path, *, forced: bool) -> bool:
    """Is no other process at work here by itself (`ipll resume`)? The lock of a sleeping one, whose claim was found
    stale, is taken away: it will look at its claim before it writes anything."""
    file = folder / ".lock"
    if forced:
        file.unlink(missing_ok=True)
    try:
        lock(file, wait=False).release()
    except BlockingIOError:
        return False
    return True


@contextmanager
def _log(path: Path) -> Iterator[None]:
    """All that the process prints goes to the end of a file, also what a crash prints."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    outs = sys.stdout, sys.stderr
    with io.TextIOWrapper(append_to(path), encoding="utf-8", line_buffering=True) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        sys.stdout = sys.stderr = file
        try:
            yield
        finally:
            sys.stdout, sys.stderr = outs
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def _serve() -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else may print between the replies
    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def stop(*_: object) -> None:
        stopping.set()
        jobs.put(None)

    def read() -> None:
        for line in sys.stdin:
            jobs.put(line)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    faulthandler.enable()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    threading.Thread(target=read, daemon=True).start()
    replies.write(json.dumps(READY) + "\n")
    while (line := jobs.get()) is not None and not stopping.is_set():
        _forget_peak_memory()
        outcome = work(Job.from_json(line))
        replies.write(json.dumps(outcome) + "\n")
        if outcome.kind == "stopped":
            return


def _forget_peak_memory() -> None:
    """The next cell's peak is its own, where the system can be told so."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


if __name__ == "__main__":
    _serve()
