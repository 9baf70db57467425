"""Cells on this machine: a pool of processes that each run one cell after another, which saves the seconds that Python
and PyTorch take to start. Where a process dies, only its cell is affected, and another takes its place."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import torch

import ipll
from ipll.config import Config
from ipll.engine.device import find_device
from ipll.engine.machine import cores
from ipll.errors import RunError
from ipll.paper.campaigns.executor import ATTEMPTS
from ipll.paper.campaigns.worker import READY, Job, Outcome


def default_jobs(device: str, configs: Iterable[Config]) -> int:
    """One cell for each GPU: two that shared an H200 did less together (2 x 16k samples/s) than one alone (37k).

    On a CPU, as many as there are cores for: `train.threads` each, two where that is left to PyTorch.
    """
    if find_device(device).type == "cuda":
        return torch.cuda.device_count()
    return max(1, cores() // max((config.train.threads or 2 for config in configs), default=2))


class LocalPool:
    """`jobs` processes; on GPUs they are dealt out in turn, and each cell has a process of its own: what was compiled
    and captured for one method would only be in the way of the next."""

    def __init__(self, jobs: int, device: str = "auto") -> None:
        self.slots = jobs
        gpus = _gpus() if find_device(device).type == "cuda" else []
        self._gpus = [gpus[number % len(gpus)] if gpus else None for number in range(jobs)]
        self._once = bool(gpus)
        self._threads = min(max(1, cores() // jobs), _threads_allowed())
        self._replies: queue.SimpleQueue[tuple[_Process, str | None]] = queue.SimpleQueue()
        self._processes: list[_Process | None] = [None] * jobs
        self._bad_starts = 0

    def free(self) -> bool:
        return any(process is None or process.job is None for process in self._processes)

    def submit(self, job: Job) -> None:
        number = min(range(self.slots), key=lambda n: self._rank(self._processes[n]))
        process = self._processes[number]
        if process is None:
            process = self._processes[number] = _Process(self._replies, self._gpus[number], self._threads)
        process.send(job)

    @staticmethod
    def _rank(process: _Process | None) -> int:
        """Idle processes first, then places where one can be started, busy ones last."""
        return 1 if process is None else 0 if process.job is None else 2

    def finished(self, timeout: float) -> list[tuple[Job, Outcome]]:
        ended = []
        try:
            process, line = self._replies.get(timeout=timeout)
            while True:
                ended += self._ended(process, line)
                process, line = self._replies.get_nowait()
        except queue.Empty:
            return ended

    def _ended(self, process: _Process, line: str | None) -> list[tuple[Job, Outcome]]:
        if line is not None and json.loads(line) == READY:
            self._bad_starts = 0
            return []
        job, process.job = process.job, None
        if line is not None:
            if self._once:
                process.stop()
                self._forget(process)
            return [(job, Outcome(*json.loads(line)))] if job else []
        self._forget(process)
        how = process.wait()
        self._bad_starts += not (process.ready or process.stopped)
        if self._bad_starts > ATTEMPTS * self.slots:
            raise RunError(f"worker processes end as soon as they are started ({how}): {process.last_words()}")
        return [(job, Outcome("stopped" if process.stopped else "died", how))] if job else []

    def _forget(self, process: _Process) -> None:
        self._processes = [None if other is process else other for other in self._processes]

    def stop(self) -> None:
        for process in filter(None, self._processes):
            process.stop()

    def close(self) -> None:
        for process in filter(None, self._processes):
            process.kill()


class _Process:
    """A worker. Its end is told by an empty reply."""

    def __init__(self, replies: queue.SimpleQueue[tuple[_Process, str | None]], gpu: str | None, threads: int) -> None:
        self.job: Job | None = None
        self.ready = self.stopped = False  # has it started? was it told to end?
        path = [str(Path(ipll.__file__).parents[1]), os.environ.get("PYTHONPATH")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": str(threads)}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ipll.paper.campaigns.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        threading.Thread(target=self._listen, args=(replies,), daemon=True).start()

    def _listen(self, replies: queue.SimpleQueue[tuple[_Process, str | None]]) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.ready = True
            replies.put((self, line))
        replies.put((self, None))

    def send(self, job: Job) -> None:
        self.job = job
        assert self._process.stdin
        try:
            self._process.stdin.write(job.to_json() + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it has died: its end is on the way

    def stop(self) -> None:
        """The end of its stdin asks it to end, whatever signals it has had by then. One that is still importing torch
        has nothing to keep, and ends at once: SIGTERM is the system's own until it is ready."""
        self.stopped = True
        if not self.ready:
            self._process.terminate()
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    def kill(self) -> None:
        self.stopped = True
        self._process.kill()
        self._process.wait()

    def wait(self) -> str:
        """-> how it ended."""
        status = self._process.wait()
        if status < 0:
            return f"the worker process was killed by {signal.Signals(-status).name}"
        return f"the worker process ended with status {status}"

    def last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-500:] or "it said nothing"


def _threads_allowed() -> int:
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return int(allowed) if allowed.isdecimal() and int(allowed) else cores()


def _gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls them."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    count = torch.cuda.device_count()  # of those: CUDA ends the list at a name that it does not know
    return visible[:count] or [str(n) for n in range(count)]
