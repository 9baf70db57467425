"""Interruption and resumption: however a run is stopped, it ends in the same numbers, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipll
from ipll.engine import checkpoint
from ipll.engine.sealed import read_sealed, write_sealed
from ipll.learner import Position
from ipll.progress import Silent
from ipll.results.folder import RunFolder
from outcomes import check_equal, numbers, outcome

STEPS = 24  # reports of progress in a quick run


@pytest.fixture(scope="module")
def often(quick: dict[str, Any]) -> dict[str, Any]:
    """A quick run that keeps a checkpoint after every step."""
    return quick | {"train.checkpoint_seconds": 0}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, often: dict[str, Any]) -> Path:
    """The same run, never interrupted."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    ipll.run("digits", out=folder, **often)
    return folder


# Asked to stop


@pytest.mark.parametrize(
    ("step", "where"),
    [
        pytest.param(1, Position(0, 0, 0, 1), id="first step"),
        pytest.param(2, Position(0, 0, 0, 2), id="within the first epoch"),
        pytest.param(4, Position(0, 0, 1, 0), id="end of an epoch"),
        pytest.param(8, Position(0, 0, 2, 0), id="end of a task's last epoch"),
        pytest.param(9, Position(1, 0, 0, 1), id="first step of the second task"),
        pytest.param(15, Position(1, 0, 1, 3), id="last step of the second task"),
        pytest.param(18, Position(2, 0, 0, 2), id="within the last task"),
        pytest.param(STEPS, Position(2, 0, 2, 0), id="end of the last epoch of all"),
    ],
)
def test_stopped_and_resumed(
    step: int, where: Position, often: dict[str, Any], reference: Path, tmp_path: Path, stop_at: Any
) -> None:
    folder, reporter = tmp_path / "run", stop_at(step)
    with pytest.raises(ipll.Interrupted) as caught:
        ipll.run("digits", out=folder, reporter=reporter, **often)
    assert reporter.positions[-1] == where
    assert caught.value.signal == signal.SIGINT
    assert "Stopped" in str(caught.value)
    assert f"ipll resume {folder}" in str(caught.value)
    assert not (folder / "result.json").exists()
    assert numbers(folder / "checkpoint")
    rest = stop_at()
    result = ipll.resume(folder, reporter=rest)
    assert result["method"] == "pgdr"
    assert len(rest.positions) == STEPS - step  # nothing is done twice
    check_equal(folder, reference)


@pytest.mark.parametrize("task", [1, 2])
def test_stopped_between_two_tasks(
    task: int, often: dict[str, Any], reference: Path, tmp_path: Path, stop_at: Any
) -> None:
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=tmp_path / "run", reporter=stop_at(task=task), **often)
    ipll.resume(tmp_path / "run")
    check_equal(tmp_path / "run", reference)


def test_asked_to_stop_when_all_is_learnt(often: dict[str, Any], reference: Path, tmp_path: Path, stop_at: Any) -> None:
    """It is done sooner than it could stop."""
    ipll.run("digits", out=tmp_path / "run", reporter=stop_at(task=3), **often)
    check_equal(tmp_path / "run", reference)


def test_between_tasks_a_checkpoint_holds_no_more_than_the_next_one_needs(reference: Path) -> None:
    kinds = {name.partition(".")[0] for name in outcome(reference)["tensors"]}
    assert kinds <= {"module", "carried"}  # no pool, no momenta of steps that are done


def test_killed_between_the_last_checkpoint_and_the_result(reference: Path, tmp_path: Path, stop_at: Any) -> None:
    folder, rest = shutil.copytree(reference, tmp_path / "run"), stop_at()
    for name in ("result.json", "report.html", "gallery.npz"):
        (folder / name).unlink()
    ipll.resume(folder, reporter=rest)
    assert rest.positions == []
    check_equal(folder, reference)


def test_stopped_after_every_single_step(often: dict[str, Any], reference: Path, tmp_path: Path, stop_at: Any) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=folder, reporter=stop_at(1), **often)
    for _ in range(STEPS - 1):
        with pytest.raises(ipll.Interrupted):
            ipll.resume(folder, reporter=stop_at(1))
    ipll.resume(folder)
    check_equal(folder, reference)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pgdr", {"train.momentum_buffers": "carried"}),
        ("pgdr", {"prototypes.update": "epoch"}),
        ("pgdr", {"train.joint_views": False, "disambiguation.memory_targets": "freeze"}),
        ("pgdr", {"train.momentum": 0.0, "train.schedule": "constant"}),
        ("pgdr", {"stream.last_leftover": "drop", "stream.candidates": "banded"}),
        ("pgdr/random-memory", {}),
        ("pgdr/no-memory", {}),
        ("pgdr/no-cr", {}),
        ("proden", {}),
    ],
)
def test_every_kind_of_state_is_kept(
    method: str, settings: dict[str, Any], quick: dict[str, Any], tmp_path: Path, stop_at: Any
) -> None:
    """Resumed from the checkpoint between two tasks, and from one within the last epoch."""
    settings = quick | {"stream.tasks": 2, "train.steps_per_epoch": 2} | settings
    ipll.run("digits", method, out=tmp_path / "whole", **settings)
    folder, second, rest = tmp_path / "run", stop_at(4), stop_at()
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", method, out=folder, reporter=stop_at(task=1), **settings)
    with pytest.raises(ipll.Interrupted):
        ipll.resume(folder, reporter=second)
    assert second.positions[0] == Position(1, 0, 0, 1)
    ipll.resume(folder, reporter=rest)
    assert rest.positions[0] == Position(1, 0, 1, 2)
    check_equal(folder, tmp_path / "whole")


def test_sigterm(often: dict[str, Any], tmp_path: Path, stop_at: Any) -> None:
    with pytest.raises(ipll.Interrupted) as caught:
        ipll.run("digits", out=tmp_path / "run", reporter=stop_at(3, number=signal.SIGTERM), **often)
    assert caught.value.signal == signal.SIGTERM


def test_without_a_folder_ctrl_c_is_pythons_own(quick: dict[str, Any], stop_at: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        ipll.run("digits", reporter=stop_at(2), **quick)


def test_the_second_ctrl_c_does_not_wait(quick: dict[str, Any], tmp_path: Path) -> None:
    class Impatient(Silent):
        def step(self, position: Position, steps: int, phases: int) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ipll.run("digits", out=tmp_path / "run", reporter=Impatient(), **quick)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_time_is_counted_across_interruptions(stopped: Path) -> None:
    newest = numbers(stopped / "checkpoint")[-1]
    file = stopped / "checkpoint" / f"{newest:06d}.json"
    record = read_sealed(file)
    record["meta"]["spent"]["wall_seconds"] += 1000
    write_sealed(file, record)
    assert ipll.resume(stopped)["wall_seconds"] > 1000


# Damage


def damage_newest(folder: Path, how: str) -> None:
    newest = numbers(folder / "checkpoint")[-1]
    tensors = folder / "checkpoint" / f"{newest:06d}.safetensors"
    record = folder / "checkpoint" / f"{newest:06d}.json"
    content = tensors.read_bytes()
    middle = len(content) // 2
    if how == "tensors cut":
        tensors.write_bytes(content[:middle])
    elif how == "tensors changed":
        tensors.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "tensors gone":
        tensors.unlink()
    elif how == "record cut":
        record.write_text(record.read_text()[:-100])
    else:
        record.write_text({"record empty": "", "record foreign": "[]", "record bare": "{}"}[how])


DAMAGES = [
    "tensors cut",
    "tensors changed",
    "tensors gone",
    "record cut",
    "record empty",
    "record foreign",
    "record bare",
]


def test_a_checkpoint_is_written_while_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds what was there when it was asked for, and the caller does not wait for the disk."""
    go_on, written = threading.Event(), checkpoint.save_file
    monkeypatch.setattr(checkpoint, "save_file", lambda *args: (go_on.wait(10), written(*args)))
    folder = RunFolder.create(tmp_path / "run")
    weight, meta = torch.ones(3), {"tasks": [1]}
    folder.save_checkpoint({"weight": weight}, meta)
    weight.zero_()
    meta["tasks"].append(2)
    assert checkpoint.load_latest(folder.path / "checkpoint") is None
    go_on.set()
    folder.settle()
    found = checkpoint.load_latest(folder.path / "checkpoint")
    assert found is not None
    assert torch.equal(found.tensors["weight"], torch.ones(3))
    assert found.meta["tasks"] == [1]
    folder.close()


@pytest.mark.parametrize("asked", ["settle", "save_checkpoint", "finish"])
def test_what_the_disk_refuses_is_said(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    folder = RunFolder.create(tmp_path / "run")
    folder.save_checkpoint({}, {})
    arguments = {"settle": (), "save_checkpoint": ({}, {}), "finish": ({},)}[asked]
    with pytest.raises(ipll.DataError, match=r"cannot write .*000001.safetensors: No space left on device"):
        getattr(folder, asked)(*arguments)
    assert not (folder.path / "result.json").exists()
    folder.close()


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(how: str, stopped: Path, reference: Path, stop_at: Any) -> None:
    assert len(numbers(stopped / "checkpoint")) == 2
    damage_newest(stopped, how)
    rest = stop_at()
    ipll.resume(stopped, reporter=rest)
    assert len(rest.positions) == STEPS - 13  # it was stopped at the 14th; the checkpoint before is of the 13th
    check_equal(stopped, reference)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_without_a_whole_checkpoint_the_run_starts_over(how: str, stopped: Path, reference: Path, stop_at: Any) -> None:
    if how == "gone":
        shutil.rmtree(stopped / "checkpoint")
    else:
        for file in (stopped / "checkpoint").glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1])
    rest = stop_at()
    ipll.resume(stopped, reporter=rest)
    assert len(rest.positions) == STEPS
    check_equal(stopped, reference)


@pytest.mark.parametrize("tail", ['{"kind": "epoch", "ta', '{"kind": "epoch", "task": 1}\n{"kind": "epoch"}\n{"x'])
def test_metrics_written_after_the_checkpoint_are_cut(tail: str, stopped: Path, reference: Path) -> None:
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write(tail)
    ipll.resume(stopped)
    check_equal(stopped, reference)


def test_left_over_temporary_files_do_no_harm(stopped: Path, reference: Path) -> None:
    places = ("", "checkpoint/")
    names = (
        ".result.json.99.tmp",
        ".000099.safetensors.7.tmp",
        ".000099.json.7.tmp",
        "stream.npz.tmp",
        ".config.toml.1.tmp",
    )
    for place in places:
        for name in names:
            (stopped / f"{place}{name}").write_bytes(b"\x00half")
    (stopped / "checkpoint" / "000099.safetensors").write_bytes(b"\x00half")  # its record was never written
    ipll.resume(stopped)
    check_equal(stopped, reference)
    left = sorted(path.name for path in (stopped / "checkpoint").iterdir())
    others = [".config.toml.1.tmp", ".result.json.99.tmp", "stream.npz.tmp"]  # no names of files that are written there
    assert left[:2] + left[-1:] == others
    assert [Path(name).suffix for name in left[2:-1]] == [".json", ".safetensors"] * 2
    assert not [path for path in stopped.glob(".*.tmp") if path.name.startswith((".result", ".config"))]


def test_a_run_killed_before_it_began_can_be_started_again(
    often: dict[str, Any], reference: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("stream.npz", "environment.json"):
        shutil.copy(reference / name, folder)
    (folder / ".lock").write_text("process 1")
    ipll.run("digits", out=folder, **often)
    check_equal(folder, reference)


# Nothing is ever unpickled


def test_run_folders_hold_no_pickle(stopped: Path, finished: Path) -> None:
    for file in finished.glob("*.npz"):
        with np.load(file, allow_pickle=False) as arrays:
            assert all(arrays[key].dtype != object for key in arrays)
    files = list((stopped / "checkpoint").iterdir())
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".json":
            json.loads(content)
        else:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            assert any(name.startswith("module.network") for name in header)
            assert all(name == "__metadata__" or "dtype" in entry for name, entry in header.items())


def test_no_pickle_is_read_from_a_run_folder(stopped: Path, reference: Path, tmp_path: Path) -> None:
    """A checkpoint that was exchanged for a pickle, checksum and all, is passed over, and its code does not run."""
    mark = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(str(mark)))
    newest = numbers(stopped / "checkpoint")[-1]
    record = stopped / "checkpoint" / f"{newest:06d}.json"
    (stopped / "checkpoint" / f"{newest:06d}.safetensors").write_bytes(bomb)
    write_sealed(record, read_sealed(record) | {"sha256": hashlib.sha256(bomb).hexdigest()})
    ipll.resume(stopped)
    assert not mark.exists()
    check_equal(stopped, reference)


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_the_source_has_no_other_way_to_unpickle(root: Path) -> None:
    for file in (root / "src").rglob("*.py"):
        text = file.read_text()
        text = re.sub(r'torch\.load\(\w+, map_location="cpu", weights_only=True\)', "", text)  # runs no code
        assert not re.search(r"torch\.(load|save)\(|allow_pickle\s*=\s*True|joblib|pickle\.loads?\(", text), file
