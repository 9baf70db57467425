"""TensorBoard events: what a run writes, and that a resumed run continues its curves."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

import ipll
from ipll.progress import Silent
from ipll.results.schema import CURVES

EPOCHS, TASKS = 2, 3  # of a quick run


@pytest.fixture(autouse=True)
def _files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads files by name: second, process, number. Here a run is resumed in the same second and process,
    where the number 10 would come before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """-> what TensorBoard shows: for each curve (step, value)."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The same from metrics.jsonl."""
    found: dict[str, list[tuple[int, float]]] = {}
    step = 0
    for record in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        step += record["kind"] == "epoch"
        if record["kind"] == "epoch":
            values = {f"loss/{name}": value for name, value in (record["terms"] | {"total": record["loss"]}).items()}
        else:
            values = {name: record[field] for field, name in CURVES.items() if record[field] is not None}
        for name, value in values.items():
            found.setdefault(name, []).append((step, pytest.approx(value, rel=1e-5)))
    return found


def check(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = curves(folder)
    rates = found.pop("learning rate")
    assert found == expected(folder)
    assert [step for step, _ in rates] == list(range(1, 1 + EPOCHS * TASKS))
    return found | {"learning rate": rates}


def test_a_run_on_the_command_line(main: Any, quick_options: list[str], tmp_path: Path) -> None:
    status, _, err = main("run", "digits", "--out", tmp_path / "run", "--tensorboard", *quick_options)
    assert status == 0, err
    found = check(tmp_path / "run")
    lr = json.loads((tmp_path / "run" / "result.json").read_text())["config"]["train"]["lr"]
    assert [rate for _, rate in found["learning rate"]] == pytest.approx([lr, lr / 2] * TASKS)  # a cosine of two epochs
    assert [step for step, _ in found["accuracy/all"]] == [2, 4, 6]
    assert [step for step, _ in found["separation/old recall"]] == [4, 6]


def test_without_the_option_nothing_is_written(finished: Path) -> None:
    assert not (finished / "tensorboard").exists()


@pytest.mark.parametrize("step", [4, 8, 14], ids=["end of an epoch", "end of a task", "within an epoch"])
def test_a_resumed_run_continues_its_curves(step: int, quick: dict[str, Any], tmp_path: Path, stop_at: Any) -> None:
    folder = tmp_path / "run"
    settings = quick | {"train.checkpoint_seconds": 0}
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=folder, tensorboard=True, reporter=stop_at(step), **settings)
    ipll.resume(folder)
    check(folder)


class Killed(Exception):
    pass


class KilledAt(Silent):
    """A reporter whose process dies without a last checkpoint, when it is told of a step or of a task's end."""

    def __init__(self, *, steps: int = 0, tasks: int = 0) -> None:
        self.left = {"step": steps, "task": tasks}

    def _count(self, what: str) -> None:
        self.left[what] -= 1
        if self.left[what] == 0:
            raise Killed

    def step(self, *_: Any) -> None:
        self._count("step")

    def task(self, *_: Any) -> None:
        self._count("task")


@pytest.mark.parametrize("moment", [{"steps": 8}, {"steps": 15}], ids=str)
def test_events_after_the_last_checkpoint_are_withdrawn(
    moment: dict[str, int], quick: dict[str, Any], tmp_path: Path
) -> None:
    """Without checkpoints within a task, whole epochs are done again; a task's end may be recorded but not kept."""
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        ipll.run("digits", out=folder, tensorboard=True, reporter=KilledAt(**moment), **quick)
    assert curves(folder)["loss/total"]
    ipll.resume(folder)
    check(folder)


def test_a_task_end_that_was_recorded_twice_is_one_point(quick: dict[str, Any], tmp_path: Path) -> None:
    """Killed between a task's record and its checkpoint, after a checkpoint at the end of the last epoch."""
    folder = tmp_path / "run"
    settings = quick | {"train.checkpoint_seconds": 0}
    with pytest.raises(Killed):
        ipll.run("digits", out=folder, tensorboard=True, reporter=KilledAt(tasks=1), **settings)
    assert [step for step, _ in curves(folder)["accuracy/all"]] == [EPOCHS]
    ipll.resume(folder)
    check(folder)


def test_overwriting_a_run_removes_its_events(quick: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "tensorboard").mkdir(parents=True)
    (folder / "tensorboard" / "events.out.tfevents.1.of.another.run").write_bytes(b"")
    ipll.run("digits", out=folder, overwrite=True, **quick | {"stream.tasks": 1, "train.epochs": 1})
    assert not (folder / "tensorboard").exists()


def test_tensorboard_is_not_installed(quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ipll.ConfigError, match=r"pip install 'ipll\[tensorboard\]'"):
        ipll.run("digits", out=tmp_path / "run", tensorboard=True, **quick)
    assert not (tmp_path / "run").exists()


def test_events_need_a_folder(quick: dict[str, Any]) -> None:
    with pytest.raises(ipll.ConfigError, match="out="):
        ipll.run("digits", tensorboard=True, **quick)
