"""The driver: a request to stop is acknowledged at once and obeyed soon, also at the end of a task."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_iris

import ipll
from ipll import driver
from ipll.cli import Heard
from ipll.driver import ASKED, Clock, stop_requests
from ipll.families.memory.by_class import RepresentativeDiverse
from ipll.own import Model, from_arrays
from ipll.progress import Silent
from outcomes import numbers, outcome

SLOW = """
import time
from pathlib import Path
from ipll.component import FAMILIES
from ipll.families.memory.by_class import RandomMemory

@FAMILIES["memory"].register("slow")
class Slow(RandomMemory):
    def choose(self, features, c, quota):
        for _ in range(50 if Path("slow").exists() else 0):
            Path("selecting").touch()
            time.sleep(0.1)
            self.ctx.check_stop()
        return super().choose(features, c, quota)
"""


class Noted(Silent):
    """Writes down what it is told in words."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def asks(self: RepresentativeDiverse, *_: object) -> torch.Tensor:
    """A choice of samples during which somebody asks to stop, and which takes longer than that may wait."""
    signal.raise_signal(signal.SIGINT)
    time.sleep(driver.GRACE + 0.1)
    return torch.zeros(1, dtype=torch.int64)


def test_ctrl_c_while_a_task_ends(
    launch: Callable[..., subprocess.Popen[str]], cli: Callable[..., Any], quick: dict[str, Any], as_options: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A real process that chooses samples for long: a note at once, the end within 2 s, later the same bits."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "slow").touch()
    settings = quick | {"stream.tasks": 2, "train.checkpoint_seconds": 0}
    options = as_options(settings | {"memory.kind": "slow"})
    process = launch("run", "digits", "--method", "pgdr/random-memory", "--out", "run", "--plugin", "slow.py", *options)
    while not (tmp_path / "selecting").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stderr
    assert process.stderr.readline().strip() == ASKED
    assert time.monotonic() - asked < 0.5
    again = f"ipll resume run --plugin {tmp_path / 'slow.py'}"
    assert process.stderr.readline().strip() == f"Stopped. Resume with: {again}"
    assert time.monotonic() - asked < 2
    assert process.wait(timeout=60) == 130
    process.communicate()
    newest = tmp_path / "run" / "checkpoint" / f"{numbers(tmp_path / 'run' / 'checkpoint')[-1]:06d}.json"
    assert json.loads(newest.read_text())["meta"]["position"] == [0, 0, 2, 0]
    (tmp_path / "slow").unlink()
    assert cli("resume", "run", "--plugin", "slow.py").status == 0
    ipll.run("digits", "pgdr/random-memory", out=tmp_path / "whole", **settings)
    found, expected = outcome(tmp_path / "run"), outcome(tmp_path / "whole")
    assert found["metrics"] == expected["metrics"]
    assert all(torch.equal(tensor, found["tensors"][name]) for name, tensor in expected["tensors"].items())


def test_stopped_while_a_fit_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = load_iris(return_X_y=True)
    samples = from_arrays(x, [sorted({int(c), i % 3}) for i, c in enumerate(y)])
    options: dict[str, Any] = {"method": "pgdr", "device": "cpu"}  # its memory chooses, however much there is room for
    options["settings"] = {"train.epochs": 3, "train.checkpoint_seconds": 0}
    options["settings"] |= {"model.inputs": "z-scores", "augment.drop": 0.0, "model.leave_out": "samples"}  # no trials
    whole, listener = Model.fit(samples, **options), Noted()
    with monkeypatch.context() as patched:
        patched.setattr(RepresentativeDiverse, "choose", asks)
        with pytest.raises(ipll.Interrupted, match="The same command goes on from here"):
            Model.fit(samples, **options, pending=tmp_path / "p", reporter=listener)
    assert listener.notes == [ASKED]
    again = Model.fit(samples, **options, pending=tmp_path / "p")
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in whole.tensors.items())


def test_a_learner_that_was_stopped_can_be_used(quick: dict[str, Any], tmp_path: Path, stop_at: Any) -> None:
    """Asked when all is learnt, it ends as usual; what is left of the request does no harm."""
    result = ipll.run("digits", out=tmp_path / "run", reporter=stop_at(task=3), **quick)
    assert result.folder == tmp_path / "run"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_request_waits_for_the_next_position_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Noted()
    with stop_requests("Stopped.", listener.note) as stop:
        stop.check()
        signal.raise_signal(signal.SIGTERM)
        assert (stop.asked, listener.notes) == (True, [ASKED])
        stop.check()
        monkeypatch.setattr(driver, "GRACE", -1.0)
        with pytest.raises(ipll.Interrupted, match=r"^Stopped\.$") as caught:
            stop.check()
    assert caught.value.signal == signal.SIGTERM


def test_a_request_that_was_lost_is_remembered() -> None:
    """A KeyboardInterrupt in a destructor is told and dropped; what comes next knows of it all the same."""
    usual, heard = signal.getsignal(signal.SIGINT), Heard()
    signal.signal(signal.SIGINT, heard)
    try:
        with stop_requests() as stop:
            assert not stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with stop_requests() as stop:
            assert stop.asked
    finally:
        signal.signal(signal.SIGINT, usual)


def test_before_a_task_ends_little_is_at_stake(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(60.0)
    now = clock.kept
    monkeypatch.setattr("time.monotonic", lambda: now + 3)
    assert clock.due(ending=True)
    assert not clock.due(ending=False)
    monkeypatch.setattr("time.monotonic", lambda: now + 61)
    assert clock.due(ending=False)
