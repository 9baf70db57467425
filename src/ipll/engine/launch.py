"""The processes of one run on this machine: as torchrun would start them, with one message and one exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ipll.engine.machine import cores
from ipll.errors import ConfigError, RunError
from ipll.messages import visible

STORE = "IPLL_STORE"  # names a file where the processes of one machine meet; without it, they meet as torchrun says
LOOK = 0.1  # seconds between two looks at how they are
FAREWELL = 3.0  # seconds in which the first process may tell of itself why it cannot go on
CROWD = 4  # processes a core, for a try on a small machine; more only use up its memory
TOLD = 2000  # characters of what a process said last
GO_ON = "It goes on from its last checkpoint: ipll resume {}."

abandoned = False  # has this process left the others behind who may wait for it on their GPUs? See `leave`


def wanted() -> int:
    """-> how many processes the environment says there are, as torchrun and our own launcher set it."""
    told = os.environ.get("WORLD_SIZE") or "1"
    if not told.isdecimal():
        raise ConfigError(f"the environment variable WORLD_SIZE is {told!r}, not a number of processes: unset it.")
    return int(told)


def leave(error: BaseException) -> None:
    """The program ends by this error, or by the SystemExit that was made of it: where others were left behind, at once.

    NCCL takes its leave of all GPUs together, in an interpreter that ends as well: who has failed, or was told to stop,
    would wait for others who wait for it.
    """
    if not abandoned:
        return
    status = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else status is not None)


def launch(command: Sequence[str], processes: int, folder: Path | str = "FOLDER") -> int:
    """Runs a command of Python's (`-m ipll run ...`) in so many processes -> the first one's exit status. `folder` is
    the run's.

    They end when this one does, also where it is killed: their standard input ends then.

    One that dies ends the others, and what it said last is raised. Ctrl-C and SIGTERM are passed on to the first, once
    each; sessions of their own keep a terminal from sending them to all.
    """
    if processes < 1:
        raise ConfigError(f"--processes must be at least 1, got {processes}.")
    if processes > CROWD * cores():
        raise ConfigError(f"--processes {processes}: this machine has {cores()} cores, they would wait for each other.")
    with tempfile.TemporaryDirectory(prefix="ipll-") as meeting, ExitStack() as stack:
        place, threads = Path(meeting), max(1, cores() // processes)
        workers: list[subprocess.Popen[bytes]] = []
        passed = stack.enter_context(_passed_on(workers))
        for rank in range(processes):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                STORE: str(place / "store"),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
                "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else ""),
            }
            said = None if rank == 0 else stack.enter_context((place / f"said{rank}").open("wb"))
            worker = subprocess.Popen(
                [sys.executable, *command],
                env=os.environ | {name: value for name, value in environment.items() if value},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            stack.callback(_end, worker)
            workers.append(worker)
            if rank == 0 and passed:  # before it was there
                worker.send_signal(passed[0])
        status = _wait(workers)
        if status is not None and -status in passed:  # a second Ctrl-C: it did not wait to be asked why
            return 128 - status
        told = status is not None and not lost_file(place / "store", 0).exists()  # by the first, what happened
        if not told and (rank := _culprit(workers, place / "store", anyone=status is None)):
            words = visible((place / f"said{rank}").read_text("utf-8", "replace").strip()[-TOLD:], keep="\n")
            raise RunError(
                f"process {rank + 1} of {processes} ended with status {workers[rank].returncode}, and the others with "
                f"it. {GO_ON.format(folder)} {'It said: ' + words if words else 'It said nothing.'}"
            )
        if status is not None and status < 0:
            why = " (out of memory?)" if -status == signal.SIGKILL else ""
            lost = f"process 1 of {processes} was ended by signal {-status}{why}, and the others with it."
            raise RunError(f"{lost} {GO_ON.format(folder)}")
        return 1 if status is None else status


def lost_file(store: str | Path, rank: int) -> Path:
    """-> what a process leaves that ends because another one has."""
    return Path(f"{store}.lost{rank}")


def _wait(workers: list[subprocess.Popen[bytes]]) -> int | None:
    """-> the first one's exit status; None where another died before it."""
    since = 0.0
    while (status := workers[0].poll()) is None:
        if any(worker.poll() for worker in workers[1:]):
            since = since or time.monotonic()
            if time.monotonic() - since > FAREWELL:
                return None
        time.sleep(LOOK)
    return status


def _culprit(workers: list[subprocess.Popen[bytes]], store: Path, *, anyone: bool) -> int:
    """-> the one that died of itself, 0 if none did. The first may have noticed before it is quite gone.

    With `anyone`, one that says that another is lost will do: none is, its own end of the line has failed.
    """
    until = time.monotonic() + FAREWELL
    while time.monotonic() < until:
        for rank, worker in enumerate(workers[1:], 1):
            if worker.poll() and not lost_file(store, rank).exists():
                return rank
        time.sleep(LOOK)
    return next((rank for rank, worker in enumerate(workers) if anyone and worker.poll()), 0)


@contextmanager
def _passed_on(workers: list[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Signals go to the first of them, once there is one. -> those that have come, by and by."""
    passed: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        passed.append(number)
        for worker in workers[:1]:
            worker.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
