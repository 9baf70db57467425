"""The board and the time left; how many cells run at once; a process for each cell, as on a GPU."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipll.config import resolve
from ipll.errors import RunError
from ipll.paper.campaigns import local
from ipll.paper.campaigns.board import Board
from ipll.paper.campaigns.estimate import Estimator, epochs_a_task, in_words
from ipll.paper.campaigns.local import LocalPool, default_jobs
from ipll.paper.campaigns.plan import Plan
from ipll.paper.campaigns.state import State, Status
from ipll.paper.campaigns.worker import Job, Outcome
from ipll.paper.catalogue import Cell, find_bench


def result(method: str, seconds: float, *, epochs: int = 20) -> dict[str, Any]:
    return {"preset": "digits", "method": method, "epochs": epochs, "wall_seconds": seconds,
            "average_incremental_accuracy": 71.234}  # fmt: skip


def test_estimates_are_in_proportion_to_epochs() -> None:
    estimator, cell = Estimator(), Cell("digits", "pgdr", 0)
    assert estimator.seconds(cell, 20) is None
    estimator.learn(result("proden", 40.0))
    assert estimator.seconds(cell, 10) == pytest.approx(20.0)  # roughly, from another method
    assert not estimator.same_method(cell)
    estimator.learn(result("pgdr", 80.0))
    estimator.learn(result("pgdr", 240.0, epochs=40))
    assert estimator.seconds(cell, 10) == pytest.approx(50.0)
    assert estimator.same_method(cell)
    assert estimator.seconds(Cell("cifar100", "pgdr", 0), 10) is None
    estimator.learn({"preset": "digits", "method": "pgdr"})  # of an older version, perhaps
    assert estimator.seconds(cell, 10) == pytest.approx(50.0)


def test_estimates_know_that_later_tasks_may_have_fewer_epochs() -> None:
    """20 epochs and 4 times 5 are 8 a task."""
    estimator, cell = Estimator(), Cell("digits", "pgdr", 0)
    tables = {"stream": {"tasks": 5}, "train": {"epochs": 20, "later_epochs": 5}}
    estimator.learn(result("pgdr", 80.0) | {"later_epochs": 5, "config": tables})
    assert estimator.seconds(cell, 20) == pytest.approx(200.0)
    longer = resolve("digits", overrides={"train.epochs": 20, "train.later_epochs": 10})
    assert epochs_a_task(longer) == pytest.approx(12)
    assert estimator.seconds(cell, epochs_a_task(longer)) == pytest.approx(120.0)
    assert epochs_a_task(resolve("digits", overrides={"stream.tasks": 1, "train.later_epochs": 3})) == 20
    older = {"stream": {"tasks": 5}, "train": {"epochs": 20}}
    estimator.learn(result("pgdr", 200.0) | {"config": older})
    assert estimator.seconds(cell, 20) == pytest.approx(200.0)
    estimator.learn(result("pgdr", 1e9) | {"config": None})  # damaged: it teaches nothing
    assert estimator.seconds(cell, 20) == pytest.approx(200.0)


@pytest.mark.parametrize(("seconds", "words"), [(4.2, "4 s"), (89, "89 s"), (600, "10 min"), (12000, "3 h 20 min")])
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize("terminal", [True, False])
def test_the_board(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipll.paper.campaigns.board.EVERY", 0.0)
    tracks = Plan.make(find_bench("prior").on("digits").only(["pgdr"]), range(5), tmp_path).tracks
    file = io.StringIO()
    board = Board("prior", tracks, 2, Console(file=file, force_terminal=terminal, width=200))
    assert "prior: 5 cells, 0 done, 5 to run, 2 at a time" in file.getvalue()
    time.sleep(0.01)
    board.show()
    assert "time left not known yet" in file.getvalue()
    tracks[0].settled, tracks[0].status = True, Status(State.DONE, result("pgdr", 100.0))
    board.settled(tracks[0])
    tracks[1].settled, tracks[1].status = True, Status(State.FAILED, error="[no] luck")
    board.settled(tracks[1])
    tracks[2].progress = {"task": 2, "tasks": 5, "epoch": 3, "epochs": 20, "share": 0.5}
    tracks[3].progress, tracks[3].elsewhere, tracks[3].host = {"share": 0.0}, True, "node7"
    board.show()
    board.close()
    text = file.getvalue()
    assert "[1/5] digits pgdr stream.blurry=10 stream.q=0.2 seed 0: accuracy 71.23" in text
    assert "[2/5] digits pgdr stream.blurry=10 stream.q=0.2 seed 1 failed: [no] luck" in text
    assert "prior: 1 of 5 done, 2 running, 1 failed, about 2 min left" in text  # (50 + 100 + 100) s by two
    assert "task 2/5, epoch 3/20" in text
    assert "starting on node7" in text


def test_the_board_says_what_a_cell_was_scored_on_and_counts_the_epochs_of_all_tasks(tmp_path: Path) -> None:
    bench = find_bench("prior").on("digits").only(["pgdr"])
    tracks = Plan.make(bench.with_settings({"train.later_epochs": 5}), range(2), tmp_path).tracks
    file = io.StringIO()
    board = Board("prior", tracks, 1, Console(file=file, width=200))
    tracks[0].settled = True
    tracks[0].status = Status(State.DONE, result("pgdr", 100.0) | {"scored_on": "validation"})
    board.settled(tracks[0])
    board.close()
    assert "seed 0: validation accuracy 71.23" in file.getvalue()
    assert board.seconds_left() == pytest.approx(40.0)  # 8 epochs a task, where 20 took 100 s


def test_default_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: 8)
    digits = resolve("digits")
    assert digits.train.threads == 1
    assert default_jobs("cpu", [digits]) == 8
    assert default_jobs("cpu", [digits, resolve("cifar100")]) == 4  # two each
    assert default_jobs("cpu", [resolve("cifar100", overrides={"train.threads": 16})]) == 1


@pytest.mark.parametrize(
    ("visible", "jobs", "dealt"),
    [
        (None, 5, ["0", "1", "2", "0", "1"]),
        (None, 2, ["0", "1"]),
        ("4,GPU-8f,7", 3, ["4", "GPU-8f", "7"]),
        ("2,5,6,99,3", 4, ["2", "5", "6", "2"]),  # there is no 99, and CUDA sees none that is named after it
    ],
)
def test_each_worker_has_a_gpu_of_its_own(
    visible: str | None, jobs: int, dealt: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three devices that are none; a worker answers with the one that it sees."""
    worker = tmp_path / "worker"
    worker.write_text('#!/bin/sh\nread job\necho "[\\"done\\", \\"$CUDA_VISIBLE_DEVICES\\"]"\nread job\n')
    worker.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(worker))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert default_jobs("auto", [resolve("digits")]) == 3
    pool = LocalPool(jobs, "auto")
    try:
        for _ in range(2):  # a cell's process is new each time, and its place keeps its GPU
            for seed in range(jobs):
                pool.submit(Job(Cell("digits", "proden", seed), tmp_path / str(seed)))
            assert not pool.free()
            ended: dict[int, str] = {}
            end = time.monotonic() + 60
            while len(ended) < jobs and time.monotonic() < end:
                ended |= {job.cell.seed: outcome.message for job, outcome in pool.finished(0.2)}
            assert [ended[seed] for seed in range(jobs)] == dealt
    finally:
        pool.close()


def until_ended(pool: LocalPool, limit: float = 60) -> tuple[Job, Outcome]:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if ended := pool.finished(0.2):
            return ended[0]
    raise AssertionError("it takes too long")


@pytest.mark.slow
def test_each_cell_its_own_process(tmp_path: Path, tiny: dict[str, Any]) -> None:
    pool = LocalPool(1, "cpu")
    pool._once = True  # as on a GPU
    processes = set()
    try:
        for seed in range(2):
            job = Job(Cell("digits", "proden", seed, tuple(sorted(tiny.items()))), tmp_path / str(seed), "cpu")
            pool.submit(job)
            assert not pool.free()
            assert until_ended(pool) == (job, Outcome("done"))
            assert pool.free()
            processes.add(json.loads((job.folder / "claims" / "000001.json").read_text())["pid"])
    finally:
        pool.close()
    assert len(processes) == 2


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exec sleep 60", "the worker process was killed by SIGTERM"),  # still at its imports, deaf to its stdin
        ('echo \'"ready"\'; read job; cat; echo \'["stopped", "with a checkpoint"]\'', "with a checkpoint"),
    ],
    ids=["starting", "at work"],
)
def test_a_process_that_is_told_to_stop(script: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "worker").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "worker"))
    pool, job = LocalPool(1, "cpu"), Job(Cell("digits", "proden", 0), tmp_path / "cell", "cpu")
    try:
        pool.submit(job)
        (process,) = pool._processes
        end = time.monotonic() + 10
        while "ready" in script and process and not process.ready and time.monotonic() < end:
            time.sleep(0.01)
        pool.stop()
        assert until_ended(pool, limit=10) == (job, Outcome("stopped", how))
    finally:
        pool.close()


def test_processes_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").write_text("#!/bin/sh\necho no such library >&2\nexit 7\n")
    (tmp_path / "broken").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "broken"))
    pool, job = LocalPool(1, "cpu"), Job(Cell("digits", "proden", 0), tmp_path / "cell", "cpu")
    for _ in range(3):
        pool.submit(job)
        assert until_ended(pool) == (job, Outcome("died", "the worker process ended with status 7"))
    pool.submit(job)
    with pytest.raises(RunError, match=r"end as soon as they are started.*no such library"):
        until_ended(pool)
