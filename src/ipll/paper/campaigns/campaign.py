"""A campaign: hands a plan's cells to an executor, watches those that other processes have, and settles each one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ipll.engine.files import read_ours
from ipll.errors import ConfigError, DataError, DiskError, Interrupted
from ipll.paper.campaigns import claims
from ipll.paper.campaigns.board import Board
from ipll.paper.campaigns.executor import ATTEMPTS, Executor
from ipll.paper.campaigns.plan import Plan, Track, stale_seconds
from ipll.paper.campaigns.state import State, Status, read_status, write_error
from ipll.paper.campaigns.worker import Job, Outcome

POLL = 0.2  # seconds
LOOK = 1.0  # seconds between two looks at the cells' claims
Begun = Callable[[], None]


@dataclass(frozen=True)
class Options:
    """How cells are run, and on what."""

    device: str = "auto"
    data_root: Path | None = None
    plugins: tuple[Path, ...] = ()
    executor: str = "local"
    jobs: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.executor not in ("local", "ray"):
            raise ConfigError(f"--executor is 'local' or 'ray', got '{self.executor}'.")
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, got {self.jobs}.")
        if self.address is not None and self.executor != "ray":
            raise ConfigError("--address is for --executor ray.")

    def start(self, plan: Plan) -> Executor:
        if self.executor == "ray":
            from ipll.paper.campaigns.ray_executor import RayCluster  # Ray is an extra

            return RayCluster(self.jobs, self.device, self.address)
        from ipll.paper.campaigns.local import LocalPool, default_jobs

        jobs = self.jobs or default_jobs(self.device, [track.config for track in plan.tracks])
        return LocalPool(min(jobs, max(1, len(plan.tracks))), self.device)


def run_plan(plan: Plan, options: Options, console: Console, *, again: str, begun: Begun = lambda: None) -> list[Track]:
    """Runs what is open, to its end. -> the cells that failed. `again` is the command that would go on; `begun` is
    called once nothing that was asked for can be wrong any more."""
    campaign = Campaign(plan, options, console, begun)
    asked: Sequence[int] = ()
    if campaign.unsettled():
        asked = campaign.go()
    elif plan.tracks:
        with suppress(DiskError):  # all is done, and may be someone else's
            begun()
    done = sum(track.status.state is State.DONE for track in plan.tracks)
    if asked and campaign.unsettled():
        kept = sum(track.status.state is State.STOPPED for track in plan.tracks)
        raise Interrupted(
            f"Stopped: {done} of {len(plan.tracks)} cells are done, {kept} keep a checkpoint. Go on with: {again}",
            signal=asked[0],
        )
    return [track for track in plan.tracks if track.status.state is State.FAILED]


class Campaign:
    def __init__(self, plan: Plan, options: Options, console: Console, begun: Begun) -> None:
        self.plan, self.options, self.console, self.begun = plan, options, console, begun
        self.watch = claims.Watch(stale_seconds())
        self.by_folder = {track.folder.absolute(): track for track in plan.tracks}
        for track in plan.tracks:
            track.settled = track.status.state is State.DONE

    def unsettled(self) -> list[Track]:
        return [track for track in self.plan.tracks if not track.settled]

    def go(self) -> Sequence[int]:
        """-> the signals that asked it to stop."""
        executor = self.options.start(self.plan)
        self.board = Board(self.plan.bench.name, self.plan.tracks, executor.slots, self.console)
        try:
            self.begun()
            with _signals() as asked:
                self._loop(executor, asked)
        finally:
            self.board.close()
            executor.close()
        return asked

    def _loop(self, executor: Executor, asked: Sequence[int]) -> None:
        looked, told = 0.0, False
        while self.unsettled() and len(asked) < 2:  # a second signal does not wait
            if asked and not told:
                told = True
                executor.stop()
            if asked and not any(track.running for track in self.plan.tracks):
                return
            if not asked:
                self._dispatch(executor)
            for job, outcome in executor.finished(POLL):
                self._ended(self.by_folder[job.folder], outcome, stopping=bool(asked))
            if not any(track.running for track in self.plan.tracks):
                time.sleep(POLL)
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                self._look()
                self.board.show(stopping=bool(asked))

    def _dispatch(self, executor: Executor) -> None:
        for track in self.plan.tracks:
            if not executor.free():
                return
            if track.settled or track.running or track.elsewhere or self._settled_elsewhere(track):
                continue
            held, free = self.watch.look(track.folder)
            if free:
                executor.submit(self._job(track, held.number if held else 0))
                track.running = True
            else:
                track.elsewhere = True

    def _job(self, track: Track, judged: int) -> Job:
        options = self.options
        plugins = tuple(str(path.resolve()) for path in options.plugins)
        root = options.data_root.resolve() if options.data_root else None
        return Job(track.cell, track.folder.absolute(), options.device, root, plugins, self.watch.stale, judged)

    def _ended(self, track: Track, outcome: Outcome, *, stopping: bool) -> None:
        track.running, track.progress = False, {}
        track.status = read_status(track.folder)
        if outcome.kind == "busy":
            track.elsewhere = True
        elif outcome.kind == "done" and track.status.state is State.DONE:
            self._settle(track)
        elif outcome.kind in ("stopped", "died"):
            track.attempts += not stopping
            if track.attempts >= ATTEMPTS:
                self._fail(track, f"given up after {ATTEMPTS} attempts: {outcome.message or 'it was told to stop'}")
        else:
            self._fail(track, outcome.message or "it left no result")

    def _fail(self, track: Track, message: str) -> None:
        """Settles a cell as failed; where its own process could not leave an error.json, one is written."""
        if not track.failed_anew():
            try:
                log = track.folder / "worker.log"
                details = read_ours(log).decode("utf-8", "replace")[-4000:] if log.exists() else ""
                claim = claims.take(track.folder, stale=self.watch.stale)
                if claim:
                    with claim:
                        write_error(track.folder, message, details)
            except (OSError, ConfigError, DataError):
                pass  # it cannot be written there; it is said below
        track.status = Status(State.FAILED, error=message)
        self._settle(track)

    def _settle(self, track: Track) -> None:
        track.settled, track.progress = True, {}
        self.board.settled(track)

    def _settled_elsewhere(self, track: Track) -> bool:
        track.status = read_status(track.folder)
        if track.status.state is State.DONE or track.failed_anew():
            self._settle(track)
        return track.settled

    def _look(self) -> None:
        """Reads the claims of all cells at work, here and elsewhere."""
        for track in self.unsettled():
            if not (track.running or track.elsewhere):
                continue
            held, free = self.watch.look(track.folder)
            working = held is not None and not free
            track.progress = (held.record.get("progress") or {"share": 0.0}) if held and working else {}
            track.host = str(held.record.get("host", "another machine")) if held else ""
            if track.elsewhere and not working:
                track.elsewhere = False
                self._settled_elsewhere(track)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: asked.append(number)) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
