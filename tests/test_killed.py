"""The real program, asked to stop or killed at any moment by another process: it ends in the same numbers."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ipll
from outcomes import check_equal, numbers

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def longer(quick: dict[str, Any]) -> dict[str, Any]:
    """A run long enough to be stopped by another process, with checkpoints at moments that nobody can foresee."""
    return quick | {"train.epochs": 6, "train.checkpoint_seconds": 0.03}


@pytest.fixture(scope="module")
def longer_reference(tmp_path_factory: pytest.TempPathFactory, longer: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "longer"
    ipll.run("digits", out=folder, **longer)
    return folder


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> bool:
    """-> did it come true before the process ended?"""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    raise AssertionError(f"nothing happened in {seconds} seconds")


@pytest.fixture
def processes(launch: Launch) -> Iterator[Launch]:
    """Starts the program; whatever is still running at the end of a test is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        started.append(launch(*arguments))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def newest(folder: Path) -> int:
    return max(numbers(folder / "checkpoint"), default=0)


def test_ctrl_c_and_sigterm_on_the_command_line(
    processes: Launch, longer: dict[str, Any], longer_reference: Path, as_options: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = processes("run", "digits", "--out", "run", *as_options(longer))
    assert wait_for(lambda: newest(folder) >= 1, process)
    with pytest.raises(ipll.RunError, match=f"process {process.pid} is working on this run"):
        ipll.resume(folder)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1].endswith("ipll resume run")
    assert "Traceback" not in out + err
    assert not (folder / "result.json").exists()

    reached = newest(folder)
    process = processes("resume", "run")
    assert wait_for(lambda: newest(folder) > reached, process)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "ipll resume run" in err
    assert "Traceback" not in out + err

    ipll.resume(folder)
    check_equal(folder, longer_reference)


def kill_again_and_again(
    folder: Path, command: list[str], processes: Launch, rng: random.Random, kills: int, *, anywhere: float = 0.0
) -> None:
    """Starts or resumes the run and kills it at a random moment, so many times; then lets it finish in this process.

    A moment is a few checkpoints after the process has begun to make progress, plus a few milliseconds; or, with
    probability `anywhere`, any moment since it was started, when it may not have got to the run at all.
    """
    struck = 0
    while struck < kills:
        reached = newest(folder)
        process = processes(*(["resume", str(folder)] if (folder / "config.toml").exists() else command))
        if rng.random() < anywhere:
            time.sleep(rng.uniform(0, 2))
        else:
            goal = reached + rng.randint(1, 4)
            wait_for(lambda goal=goal: newest(folder) >= goal, process)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"the run was over after {struck} kills: {err}"
        struck += 1
    ipll.resume(folder)


def test_killed(
    processes: Launch, longer: dict[str, Any], longer_reference: Path, as_options: Any, tmp_path: Path
) -> None:
    command = ["run", "digits", "--out", str(tmp_path / "run"), *as_options(longer)]
    kill_again_and_again(tmp_path / "run", command, processes, random.Random(0), 2)
    check_equal(tmp_path / "run", longer_reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pgdr", {}),
        ("pgdr", {"train.momentum_buffers": "carried", "prototypes.update": "epoch"}),
        ("pgdr/random-memory", {}),
        ("proden", {}),
    ],
)
def test_killed_many_times(
    method: str, settings: dict[str, Any], processes: Launch, quick: dict[str, Any], as_options: Any, tmp_path: Path
) -> None:
    """Eight kills each, 32 in all; about a quarter of them may strike before training has begun."""
    settings = quick | {"train.epochs": 60, "train.steps_per_epoch": 8, "train.checkpoint_seconds": 0.03} | settings
    ipll.run("digits", method, out=tmp_path / "whole", **settings)
    command = ["run", "digits", "--method", method, "--out", str(tmp_path / "run"), *as_options(settings)]
    rng = random.Random(f"{method} {settings}")
    kill_again_and_again(tmp_path / "run", command, processes, rng, 8, anywhere=0.25)
    check_equal(tmp_path / "run", tmp_path / "whole")
