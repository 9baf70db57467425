"""Claims: of any number of rivals one gets a cell; the dead and the silent lose theirs, and a sleeper notices."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipll.paper.campaigns import claims
from ipll.paper.campaigns.worker import Job, work
from ipll.paper.catalogue import Cell
from ipll.results.folder import read_result

FORK = multiprocessing.get_context("fork")
RIVALS = 6


def rival(folder: Path, judged: int, start: Any, over: Any, wins: Any) -> None:
    start.wait()
    claim = claims.take(folder, judged=judged)
    if claim:
        with claim:
            wins.put(claim.number)
            over.wait()  # until all have tried
    else:
        over.wait()


def compete(folder: Path, judged: int = 0) -> list[int]:
    """-> the numbers of the claims that rivals in processes of their own have got at the same time."""
    start, over, wins = FORK.Barrier(RIVALS), FORK.Barrier(RIVALS), FORK.Queue()
    processes = [FORK.Process(target=rival, args=(folder, judged, start, over, wins)) for _ in range(RIVALS)]
    for process in processes:
        process.start()
    got = [wins.get(timeout=20)]
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    while not wins.empty():
        got.append(wins.get())
    return got


def holder(folder: Path, machine: str | None, stale: float, checks: bool, ready: Any) -> None:
    """Holds the cell until its end, and tells by its exit status whether it has lost it."""
    if machine:
        claims._machine = lambda: machine  # type: ignore[assignment]
    claim = claims.take(folder, stale=stale)
    assert claim
    try:
        with claim:
            ready.set()
            while True:
                time.sleep(0.01)
                if checks:
                    claim.check()
    except claims.ClaimLost:
        os._exit(3)


@pytest.fixture
def hold(tmp_path: Path) -> Any:
    """Starts a process that holds the cell tmp_path."""
    started = []

    def start(machine: str | None = None, stale: float = claims.STALE, checks: bool = True) -> Any:
        ready = FORK.Event()
        process = FORK.Process(target=holder, args=(tmp_path, machine, stale, checks, ready))
        process.start()
        started.append(process)
        assert ready.wait(20)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def wait_until_free(watch: claims.Watch, folder: Path, limit: float = 10.0) -> int:
    """-> the number of the claim that was found to be free."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        held, free = watch.look(folder)
        if free:
            assert held
            return held.number
        time.sleep(0.02)
    raise AssertionError("it never became free")


def test_of_many_rivals_one_wins(tmp_path: Path) -> None:
    for n in range(10):
        assert compete(tmp_path / str(n)) == [1]


def test_a_released_cell_can_be_taken_again_by_one(tmp_path: Path) -> None:
    for n in range(1, 6):
        assert compete(tmp_path) == [n]


def test_a_claim_that_is_held_is_not_to_be_had(tmp_path: Path, hold: Any) -> None:
    hold()
    assert claims.take(tmp_path) is None
    held, free = claims.Watch().look(tmp_path)
    assert held
    assert not free


def test_a_dead_ones_claim_is_free_at_once(tmp_path: Path, hold: Any) -> None:
    process = hold()
    os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while " Z " not in Path(f"/proc/{process.pid}/stat").read_text():  # a zombie: no one has waited for it yet
        assert time.monotonic() < end
    assert claims.Watch().look(tmp_path)[1]
    assert compete(tmp_path) == [2]


def test_a_process_number_that_was_given_out_again_is_not_the_holder(tmp_path: Path) -> None:
    with claims.take(tmp_path):  # type: ignore[union-attr]
        assert claims.take(tmp_path) is None
        file = tmp_path / "claims" / "000001.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"started": "1"}))
        assert claims.Watch().look(tmp_path)[1]


def test_another_machines_claim_is_free_once_it_is_silent(tmp_path: Path, hold: Any) -> None:
    process, watch = hold("elsewhere", 0.4), claims.Watch(0.4)
    for _ in range(10):  # as long as it beats, it holds
        assert not watch.look(tmp_path)[1]
        time.sleep(0.1)
    process.kill()
    since = time.monotonic()
    number = wait_until_free(watch, tmp_path)
    assert time.monotonic() - since > 0.3
    assert claims.take(tmp_path) is None  # one who has not watched cannot know
    assert compete(tmp_path, judged=number) == [2]


def test_one_who_judges_late_does_not_take_the_successors_claim(tmp_path: Path, hold: Any) -> None:
    process, watch = hold("elsewhere", 0.2), claims.Watch(0.2)
    process.kill()
    number = wait_until_free(watch, tmp_path)
    with claims.take(tmp_path, judged=number) as claim:  # type: ignore[union-attr]
        assert claim.forced
        assert claims.take(tmp_path, judged=number) is None


def test_clocks_are_not_compared(tmp_path: Path, hold: Any) -> None:
    process, watch = hold("elsewhere", 0.4), claims.Watch(0.4)
    file = tmp_path / "claims" / "000001.json"
    for _ in range(8):  # a clock that is a day behind: it beats all the same
        os.utime(file, (time.time() - 86400,) * 2)
        assert not watch.look(tmp_path)[1]
        time.sleep(0.1)
    process.kill()
    os.utime(file, (time.time() + 86400,) * 2)  # and one that is a day ahead
    wait_until_free(watch, tmp_path)


def test_the_holders_own_patience_counts_too(tmp_path: Path, hold: Any) -> None:
    hold("elsewhere", 1000.0)
    watch = claims.Watch(0.1)
    watch.look(tmp_path)
    time.sleep(0.3)
    assert not watch.look(tmp_path)[1]


def test_a_claim_that_was_never_written(tmp_path: Path) -> None:
    """Its process died between making the file and filling it."""
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "000001.json").touch()
    assert claims.take(tmp_path) is None
    number = wait_until_free(claims.Watch(0.1), tmp_path)
    assert compete(tmp_path, judged=number) == [2]


@pytest.mark.parametrize("checks", [True, False])
def test_a_sleeper_notices_that_it_has_lost(tmp_path: Path, hold: Any, checks: bool) -> None:
    """Also where it is far from its next check: waking up is one."""
    process, watch = hold("elsewhere", 0.4, checks), claims.Watch(0.4)
    os.kill(process.pid, signal.SIGSTOP)
    number = wait_until_free(watch, tmp_path)
    with claims.take(tmp_path, judged=number) as claim:  # type: ignore[union-attr]
        os.kill(process.pid, signal.SIGCONT)
        process.join(10)
        assert process.exitcode == 3
        claim.check()


def test_a_sleeper_whom_nobody_missed_goes_on(tmp_path: Path, hold: Any) -> None:
    """Under a new number, so that whoever is about to take the old one over comes too late."""
    process, watch = hold("elsewhere", 0.4), claims.Watch(0.4)
    os.kill(process.pid, signal.SIGSTOP)
    number = wait_until_free(watch, tmp_path)
    os.kill(process.pid, signal.SIGCONT)
    end = time.monotonic() + 10
    while claims.newest(tmp_path).number == number and time.monotonic() < end:  # type: ignore[union-attr]
        time.sleep(0.02)
    assert claims.take(tmp_path, judged=number) is None
    assert process.is_alive()


def test_one_who_could_not_beat_does_not_trust_its_claim(tmp_path: Path) -> None:
    claim = claims.take(tmp_path, stale=0.2)  # it was never entered, so it does not beat
    assert claim
    claim.check()
    time.sleep(0.15)
    assert claims.take(tmp_path, judged=1)
    with pytest.raises(claims.ClaimLost):
        claim.check()


SLEEPER = """
import sys
from ipll.paper.campaigns import claims
from ipll.paper.campaigns.worker import Job, work
claims._machine = lambda: "elsewhere"
print(work(Job.from_json(sys.stdin.readline())).kind)
"""


def test_a_run_that_was_suspended_writes_nothing_when_it_wakes(
    tmp_path: Path, tiny: dict[str, Any], snapshot: Callable[[Path], dict[str, bytes | None]]
) -> None:
    settings = tiny | {"train.epochs": 12, "train.checkpoint_seconds": 0.2}
    job = Job(Cell("digits", "pgdr", 0, tuple(sorted(settings.items()))), tmp_path / "cell", "cpu", stale=1.0)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as sleeper:
        try:
            assert sleeper.stdin
            assert sleeper.stdout
            sleeper.stdin.write(job.to_json() + "\n")
            sleeper.stdin.flush()
            while not list(job.folder.glob("checkpoint/*.json")):
                assert sleeper.poll() is None
                time.sleep(0.02)
            sleeper.send_signal(signal.SIGSTOP)
            assert work(job).kind == "busy"
            number = wait_until_free(claims.Watch(1.0), job.folder)
            taken = Job(job.cell, job.folder, "cpu", stale=1.0, judged=number)
            assert work(taken).kind == "done"
            result, before = read_result(job.folder), snapshot(job.folder)
            sleeper.send_signal(signal.SIGCONT)
            out, _ = sleeper.communicate(timeout=30)
        finally:
            sleeper.kill()
    assert out.strip() == "busy"
    assert snapshot(job.folder) == before
    assert result["epochs"] == 12


def test_a_disk_that_is_full_at_the_end_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell was done: that its claim could not be released is no failure, and no descriptor is left open."""
    claim = claims.take(tmp_path)
    assert claim
    full = OSError(errno.ENOSPC, "No space left on device")
    with claim:
        monkeypatch.setattr(claims.Claim, "_write", raising(full))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(claim._descriptor)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space left"):
        claims.take(tmp_path / "other")
    assert len(os.listdir("/proc/self/fd")) == before


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail
