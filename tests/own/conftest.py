"""Tables and images to read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from irises import NAMES, iris_rows, write_csv
from PIL import Image
from sklearn.datasets import load_digits

import ipll.cli
from ipll.errors import DataError


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """-> a function that writes text, bytes or rows (JSON Lines or Parquet, by the ending) and gives the path."""

    def to(name: str, content: str | bytes | list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        if isinstance(content, list) and path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(content), path)
            return path
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to


@pytest.fixture
def refused() -> Callable[..., str]:
    """-> a function that calls another and gives the message of the DataError that it must raise."""

    def call(function: Callable[..., object], *arguments: Any, **named: Any) -> str:
        with pytest.raises(DataError) as caught:
            function(*arguments, **named)
        return str(caught.value)

    return call


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """-> a folder with ten real digits as PNG files, photos/0.png ... photos/9.png, beside the tables."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, image in enumerate(load_digits().images[:10]):
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / f"{index}.png")
    return folder


@pytest.fixture(scope="session")
def iris(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """-> a folder with first.csv (two species; some rows for testing), second.csv (a third one), and a fitted model."""
    folder = tmp_path_factory.mktemp("iris")
    two = iris_rows(range(80), NAMES[:2], "train") + iris_rows(range(80, 100), NAMES[:2], "test")
    two += iris_rows(range(100, 103), NAMES, "later")
    write_csv(folder / "first.csv", two)
    write_csv(folder / "second.csv", iris_rows(range(103, 140), NAMES))
    return folder


@pytest.fixture
def here(iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """-> a copy of that folder, for this test alone, which is the working folder too."""
    shutil.copytree(iris, tmp_path / "iris")
    monkeypatch.chdir(tmp_path / "iris")
    return tmp_path / "iris"


@pytest.fixture
def model(here: Path, main: Any, fitted: Path) -> Path:
    shutil.copytree(fitted, here / "model")
    return Path("model")


@pytest.fixture(scope="session")
def fitted(iris: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """-> a model of first.csv; not to be changed."""
    out = tmp_path_factory.mktemp("models") / "model"
    ipll.cli.fit(out=out, table=iris / "first.csv", set_=["train.epochs=6"], device="cpu")
    return out
