"""Streams in files: brought back whole, or refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from streams import CIFAR, UNTIMED, cases, make_source

from ipll.data.source import Source
from ipll.data.stream import Stream, StreamConfig
from ipll.errors import DataError


@settings(UNTIMED, max_examples=20)
@given(case=cases())
def test_save_and_load_bring_everything_back(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Source, StreamConfig, int]
) -> None:
    stream = Stream.build(*case)
    path = tmp_path_factory.mktemp("streams") / "stream.npz"
    stream.save(path)
    back = Stream.load(path)
    assert back.sha256() == stream.sha256()
    for name in ("seed", "config", "source_name", "classes_per_task"):
        assert getattr(back, name) == getattr(stream, name)


def test_file_holds_exactly_the_named_arrays_without_pickles(tmp_path: Path) -> None:
    config = StreamConfig(tasks=5, q=0.2)
    stream = Stream.build(CIFAR, config, seed=3)
    stream.save(tmp_path / "stream.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["stream.npz"]
    with np.load(tmp_path / "stream.npz", allow_pickle=False) as file:
        assert set(file.files) == {"class_order", "task", "candidates", "seed", "config"}
        assert file["class_order"].dtype == file["task"].dtype == np.int64
        assert file["candidates"].dtype == np.bool_
        assert file["seed"] == 3
        written = json.loads(str(file["config"]))
    assert written == asdict(config) | {"source": "toy", "classes_per_task": [20] * 5}


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stream.npz"
    old, new = (Stream.build(CIFAR, StreamConfig(), seed) for seed in (0, 1))
    old.save(path)

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="no space"):
        new.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["stream.npz"]
    assert Stream.load(path).sha256() == old.sha256()


def test_a_path_may_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream.build(make_source(np.arange(20) % 4), StreamConfig(tasks=2), seed=0)
    monkeypatch.chdir(tmp_path)
    stream.save("stream.npz")
    assert Stream.load("stream.npz").sha256() == Stream.load(str(tmp_path / "stream.npz")).sha256() == stream.sha256()
    with pytest.raises(DataError, match=r"no stream file nowhere\.npz"):
        Stream.load("nowhere.npz")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no stream file .*nowhere\.npz"):
        Stream.load(tmp_path / "nowhere.npz")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "stream.npz"
    Stream.build(make_source(np.repeat(np.arange(6), 30)), StreamConfig(tasks=3), seed=0).save(path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_file(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"stream\.npz is cut short"):
        Stream.load(saved)


def test_flipped_bytes(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    for place in range(600, 700):
        content[place] ^= 0xFF
    saved.write_bytes(content)
    with pytest.raises(DataError, match=r"stream\.npz is cut short or damaged"):
        Stream.load(saved)


def rewrite(path: Path, **changes: np.ndarray | None) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize("name", ["class_order", "task", "candidates", "seed", "config"])
def test_lacking_array_is_named(saved: Path, name: str) -> None:
    rewrite(saved, **{name: None})
    with pytest.raises(DataError, match=f"lacks the array '{name}'"):
        Stream.load(saved)


def test_a_pickle_is_never_opened(saved: Path) -> None:
    rewrite(saved, task=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="damaged"):
        Stream.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": np.array("{")}, "settings cannot be read"),
        ({"config": np.array("3")}, "settings cannot be read"),
        (
            {"config": np.array('{"source": "toy", "classes_per_task": [2, 2, 2], "q": 7}')},
            r"stream\.q must be in \[0, 1\), got 7",
        ),
        ({"config": np.array('{"source": "toy", "classes_per_task": [2, 2], "tasks": 3}')}, "classes per task"),
        ({"class_order": np.zeros(6, np.int64)}, "not a permutation"),
        ({"candidates": np.ones((3, 6), bool)}, "types and shapes"),
        ({"candidates": np.ones((180, 6))}, "types and shapes"),
        ({"task": np.full(180, 3)}, "'task' holds numbers"),
    ],
)
def test_contents_that_do_not_fit_together(saved: Path, changes: dict[str, np.ndarray], message: str) -> None:
    rewrite(saved, **changes)
    with pytest.raises(DataError, match=message) as caught:
        Stream.load(saved)
    assert str(saved) in str(caught.value)
