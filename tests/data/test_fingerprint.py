"""A run knows its data again: where they are, and that they are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipll
from ipll.data.fingerprint import LOOKED_AT, check_data, fingerprint
from ipll.data.source import SOURCES, Source, SourceLoader
from ipll.data.sources import load_source
from ipll.data.sources.digits import Digits
from ipll.engine.placement import Selection
from ipll.errors import DataError


@pytest.fixture(scope="module")
def digits() -> Source:
    return load_source("digits")


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if digits were files: they are where a folder holds the file 'digits', and inverted where that says so."""

    class Placed(SourceLoader):
        name, description = "digits", "digits of a folder"

        def available(self, data_root: Path) -> bool:
            return True

        def load(self, data_root: Path) -> Source:
            if not (data_root / "digits").exists():
                raise DataError(f"{data_root} would be fetched")
            source = Digits().load(data_root)
            inverted = (data_root / "digits").read_text() == "inverted"
            return replace(source, train_samples=255 - source.train_samples) if inverted else source

    monkeypatch.setitem(SOURCES.members, "digits", Placed)


def place(folder: Path, how: str = "") -> Path:
    folder.mkdir()
    (folder / "digits").write_text(how)
    return folder


@pytest.fixture
def stopped_there(
    placed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any], stop_at: Any
) -> Path:
    """A run whose data root was named relative to another working directory."""
    place(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out="run", data_root="data", reporter=stop_at(10), **quick)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "run"


def test_resume_remembers_where_the_data_are(stopped_there: Path) -> None:
    assert ipll.resume(stopped_there).folder == stopped_there


def test_data_that_have_moved_are_named(stopped_there: Path, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(DataError, match="data would be fetched"):
        ipll.resume(stopped_there)
    assert ipll.resume(stopped_there, data_root=tmp_path / "moved").folder == stopped_there


def test_resume_refuses_other_data(stopped_there: Path, tmp_path: Path, snapshot: Callable[..., Any]) -> None:
    before = snapshot(stopped_there)
    other = place(tmp_path / "other", "inverted")
    with pytest.raises(DataError, match=rf"run: the data in {other} .*: other pixels in the training samples\. "):
        ipll.resume(stopped_there, data_root=other)
    assert snapshot(stopped_there) == before


def test_a_run_of_an_older_version_is_resumed_as_before(stopped_there: Path, tmp_path: Path) -> None:
    (stopped_there / "manifest.json").unlink()
    ipll.resume(stopped_there, data_root=tmp_path / "data")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: {"class_names": ("zero", *s.class_names[1:])}, "other classes (without '0', with 'zero')"),
        (lambda s: {"class_names": s.class_names[::-1]}, "other classes (the same in another order)"),
        (
            lambda s: {"train_samples": s.train_samples[:-1], "train_labels": s.train_labels[:-1]},
            "training samples instead of",
        ),
        (lambda s: {"train_labels": s.train_labels[::-1]}, "other labels of the training samples"),
        (lambda s: {"test_samples": s.test_samples[:, :, ::-1]}, "other pixels in the test samples"),
        (
            lambda s: {"test_samples": s.test_samples[:, :, 1:]},
            "test samples of the shape [1, 7, 8] instead",
        ),
    ],
)
def test_what_differs_is_said(change: Callable[[Source], dict[str, Any]], says: str, digits: Source) -> None:
    recorded = json.loads(json.dumps(fingerprint(digits)))
    check_data(recorded, digits, Path("run"), None)
    with pytest.raises(DataError) as caught:
        check_data(recorded, replace(digits, **change(digits)), Path("run"), None)
    assert says in str(caught.value)


def test_a_mapped_file_is_not_read_whole(digits: Source, tmp_path: Path) -> None:
    """Of a selection of many rows, a few hundred are asked for."""

    class Counted(Selection):
        asked = 0

        def __getitem__(self, rows: Any) -> Any:
            self.asked += len(rows)
            return super().__getitem__(rows)

    array = np.zeros((5000, 1, 8, 8), np.uint8)
    large = replace(digits, train_samples=Counted(array, np.arange(5000)), train_labels=np.zeros(5000, np.int64))
    fingerprint(large)
    assert isinstance(large.train_samples, Counted)
    assert large.train_samples.asked == LOOKED_AT
