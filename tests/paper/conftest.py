"""What the tests of the bench share: campaigns of seconds, and ways to look at what they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ipll.engine.sealed import read_sealed
from timings import TIMINGS

TINY = {"train.epochs": 2, "stream.tasks": 2, "train.steps_per_epoch": 2, "train.batch_size": 32}
UNLIKE = TIMINGS | {"environment"}


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """Settings of a run on digits of half a second."""
    return dict(TINY)


@pytest.fixture
def command(tmp_path: Path, as_options: Callable[[Mapping[str, Any]], list[str]]) -> Callable[..., list[str]]:
    """-> the words of `ipll bench NAME` on digits, with runs of half a second, below tmp_path/out."""

    def make(name: str, *more: object, **settings: Any) -> list[str]:
        overrides = TINY | {key.replace("__", "."): value for key, value in settings.items()}
        words = ["bench", name, "--preset", "digits", "--out", tmp_path / "out", "--device", "cpu"]
        return [str(word) for word in (*words, *as_options(overrides), *more)]

    return make


@pytest.fixture(scope="session")
def outcome() -> Callable[[Path], dict[str, Any]]:
    """-> a result without its timings."""

    def read(folder: Path) -> dict[str, Any]:
        result = read_sealed(folder / "result.json")
        return {key: value for key, value in result.items() if key not in UNLIKE}

    return read


@pytest.fixture(scope="session")
def stamps() -> Callable[[Path], dict[Path, tuple[int, int]]]:
    """-> inode and time of change of every finished cell's files: they differ if one is as much as rewritten."""

    def take(out: Path) -> dict[Path, tuple[int, int]]:
        folders = [file.parent for file in out.rglob("result.json")]
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
        return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}

    return take
