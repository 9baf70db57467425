"""Disks that are full or read-only: said in a sentence, with nothing lost and nothing half-written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors import SafetensorError
from sklearn.datasets import load_iris

import ipll
from ipll.engine.files import write_atomically
from ipll.errors import DataError, DiskError, IpllError
from ipll.own import Model, from_arrays
from ipll.progress import Silent
from ipll.results.folder import RunFolder

X, Y = load_iris(return_X_y=True)
FULL = "No space left on device"
Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Makes a small disk of its own; to be called again with "ro" to make it read-only."""
    place = tmp_path / "disk"
    place.mkdir()

    def call(options: str) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, capture_output=True)
        return place

    try:
        call("size=4m")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not allowed here")
    try:
        yield lambda options="": call(f"remount,{options}") if options else place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path, left: int) -> Path:
    """Leaves so many bytes of a disk -> the file to be removed to make room."""
    file = disk / "ballast"
    with file.open("ab") as ballast:
        ballast.write(b"\0" * max(shutil.disk_usage(disk).free - left, 0))
    return file


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.tmp")]


class Fills(Silent):
    """Leaves nearly no room once training is on its way."""

    def __init__(self, disk: Path) -> None:
        self.disk, self.steps = disk, 0

    def step(self, position: object, steps: int, phases: int) -> None:
        self.steps += 1
        if self.steps == 6:
            fill(self.disk, 8192)


# Full


def test_a_run_on_a_disk_that_fills_up_can_be_resumed(mount: Mount, quick: dict[str, Any]) -> None:
    disk = mount()
    with pytest.raises(DiskError, match=rf"{FULL}.*then: ipll resume {disk / 'run'}") as caught:
        ipll.run("digits", out=disk / "run", reporter=Fills(disk), **quick | {"train.checkpoint_seconds": 0})
    assert str(disk / "run" / "checkpoint") in str(caught.value)
    assert not left_over(disk)
    fill(disk, 0)
    with pytest.raises(IpllError, match="cannot write"):
        ipll.resume(disk / "run", device="cpu")
    (disk / "ballast").unlink()
    assert ipll.resume(disk / "run", device="cpu")["method"] == "pgdr"


def test_a_run_that_has_no_room_at_all(mount: Mount, quick: dict[str, Any]) -> None:
    disk = mount()
    fill(disk, 0)
    with pytest.raises(IpllError, match=FULL):
        ipll.run("digits", out=disk / "run", **quick)


@pytest.fixture(scope="module")
def model() -> Model:
    settings = {"train.epochs": 1, "train.threads": 1}
    return Model.fit(from_arrays(X, [[str(y)] for y in Y]), device="cpu", settings=settings)


@pytest.mark.parametrize("left", [4096, 100_000, 300_000])
def test_a_model_that_finds_no_room_is_as_it_was(left: int, mount: Mount, model: Model) -> None:
    disk = mount()
    model.save(disk / "model")
    before = sorted(path.name for path in (disk / "model").iterdir())
    room = sum(path.stat().st_size for path in (disk / "model").iterdir())
    fill(disk, min(left, room - 4096))
    with pytest.raises(DiskError, match=f"{FULL}. Make room"):
        model.save(disk / "model")
    assert sorted(path.name for path in (disk / "model").iterdir()) == before
    assert Model.load(disk / "model").names == model.names


def test_fit_finds_out_before_it_trains(
    mount: Mount, main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = mount()
    (tmp_path / "table.csv").write_text("candidates,features.a\n" + "".join(f"{'xy'[i % 2]},{i}\n" for i in range(40)))
    monkeypatch.setattr(Model, "fit", lambda *_, **__: pytest.fail("it trains"))
    fill(disk, 0)
    status, _, err = main("fit", tmp_path / "table.csv", "--out", disk / "model")
    assert (status, "cannot write" in err, FULL in err) == (2, True, True)
    mount("ro")
    status, _, err = main("fit", tmp_path / "table.csv", "--out", disk / "model")
    assert (status, "Read-only file system" in err) == (2, True)


@pytest.mark.parametrize("kind", ["numpy", "arrow"])
def test_what_writers_raise_on_a_full_disk(kind: str, mount: Mount) -> None:
    disk = mount()
    fill(disk, 4096)
    many = np.random.default_rng(0).random(100_000)

    def write(path: Path) -> None:
        if kind == "arrow":
            pa.parquet.write_table(pa.table({"a": many}), path)
        else:
            with path.open("wb") as file:
                np.savez(file, many=many)

    with pytest.raises(DiskError, match=FULL):
        write_atomically(disk / "a", write)
    assert [path.name for path in disk.iterdir()] == ["ballast"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, FULL),
        SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)"),
        pa.ArrowException(f"cannot write: {FULL}"),
    ],
)
def test_errors_of_all_writers_are_of_one_kind(error: Exception, tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    with pytest.raises(DataError, match=rf"cannot write {tmp_path / 'a'}: .*{FULL}"):
        write_atomically(tmp_path / "a", write)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_fails_is_told_at_the_next_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when the next checkpoint is due, which may be hours later."""

    def full(*_: object) -> None:
        raise SafetensorError(f"I/O error: {FULL} (os error 28)")

    folder = RunFolder.create(tmp_path / "run")
    monkeypatch.setattr("ipll.engine.checkpoint.save_file", full)
    folder.save_checkpoint({}, {})
    folder._writer.shutdown()
    with pytest.raises(DiskError, match=rf"000001.safetensors: {FULL}\. Make room"):
        folder.append_metrics({})
    folder.close()


# Read-only


def test_nothing_of_a_read_only_disk_is_changed(mount: Mount, stopped: Path, model: Model, main: Any) -> None:
    disk = mount("size=30m")
    shutil.copytree(stopped, disk / "run")
    model.save(disk / "model")
    (disk / "table.csv").write_text("candidates,features.a\nx,1\n")
    mount("ro")
    for command in (("resume", disk / "run"), ("update", disk / "model", disk / "table.csv")):
        status, _, err = main(*command)
        assert (status, "Read-only file system" in err) == (2, True), err
        assert "Traceback" not in err
    assert Model.load(disk / "model").names == model.names


def test_a_full_disk_under_tensorboard(mount: Mount, quick: dict[str, Any]) -> None:
    pytest.importorskip("tensorboard")
    disk = mount()
    with pytest.raises(DiskError, match="ipll resume"):
        ipll.run("digits", out=disk / "run", reporter=Fills(disk), tensorboard=True, **quick)
    assert os.listdir(disk / "run" / "tensorboard")
