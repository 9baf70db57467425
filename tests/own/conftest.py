"""Tables and images to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

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
