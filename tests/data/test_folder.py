"""Folders of class folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ipll.data.source import SOURCES
from ipll.data.sources import load_source
from ipll.errors import DataError


def save(path: Path, level: int, mode: str = "RGB", size: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (size, size), level).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A level for every image: ten times its label, and one more for each image before it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "birds"
    save(root / "train" / "owl" / "a.PNG", 10)
    save(root / "train" / "owl" / "images" / "b.bmp", 11)
    save(root / "train" / "hawk" / "a.png", 0, mode="L")
    save(root / "train" / "hawk" / "b.webp", 1)
    save(root / "train" / "hawk" / "c.png", 2, mode="RGBA")
    save(root / "test" / "owl" / "a.png", 110, mode="P")
    save(root / "test" / "hawk" / "a.tif", 100)
    for name in (".hidden.png", "Thumbs.db", "notes.txt"):
        (root / "train" / "owl" / name).write_bytes(b"no image")
    (root / "train" / "owl" / "gone.png").symlink_to(root / "nowhere.png")
    (root / "train" / ".cache").mkdir()
    return root


def test_read(folder: Path) -> None:
    assert SOURCES["folder"]().available(folder)
    source = load_source("folder", folder, size=16)
    assert source.class_names == ("hawk", "owl")
    assert source.train_labels.tolist() == [0, 0, 0, 1, 1]
    assert source.test_labels.tolist() == [0, 1]
    assert np.abs(source.train_samples[:, 1, 3, 5].astype(int) - [0, 1, 2, 10, 11]).max() <= 1
    assert source.test_samples[:, 2, 8, 8].tolist() == [100, 110]
    assert load_source("folder", str(folder), size=8).train_samples.shape == (5, 3, 8, 8)


def test_links_and_a_validation_folder(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "train").symlink_to(folder / "train")
    (linked / "val").symlink_to(folder / "test")
    assert load_source("folder", linked, size=16).test_labels.tolist() == [0, 1]


def test_a_test_folder_without_labels_gives_way_to_val(folder: Path) -> None:
    (folder / "test").rename(folder / "val")
    save(folder / "test" / "images" / "0.png", 5)
    assert load_source("folder", folder, size=16).test_samples[:, 2, 8, 8].tolist() == [100, 110]
    (folder / "val").rename(folder / "other")
    with pytest.raises(DataError, match=r"test/images is a class without a folder in .*train"):
        load_source("folder", folder, size=16)


def test_a_high_image_is_cut_above_and_below(folder: Path) -> None:
    pixels = np.zeros((320, 160, 3), np.uint8)
    pixels[80:240] = 200  # the middle square
    Image.fromarray(pixels).save(folder / "test" / "owl" / "a.png")
    middle = load_source("folder", folder, size=16).test_samples[1]
    assert (middle[:, 1:-1] == 200).all()
    # It is made small before it is cut, as at test in the official code. A row weighs 20 rows of the file as a triangle
    # does; of the outermost, 5 lie beyond the cut, with an eighth of the weight.
    assert (middle[:, [0, -1]] == 175).all()


@pytest.mark.parametrize("given", ["..", "train", "test"])
def test_wrong_level_is_explained(folder: Path, given: str) -> None:
    root = folder.parent if given == ".." else folder / given
    assert not SOURCES["folder"]().available(root)
    with pytest.raises(DataError, match=f"you gave {root}; the images are in {folder}: set --data-root"):
        load_source("folder", root)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: save(root / "test" / "kite" / "a.png", 1), r"test/kite is a class without a folder in .*train"),
        (lambda root: (root / "test" / "owl" / "a.png").unlink(), r"test/owl holds no images\. .*remove an empty"),
        (lambda root: (root / "train" / "lark").mkdir(), r"train/lark holds no images"),
        (
            lambda root: save(root / "train" / "lark" / "a.png", 1),
            r"test/lark is missing, but .*train/lark is there\. .*add images of the class to 'test', or",
        ),
        (lambda root: (root / "test").rename(root / "tests"), r"birds has no folders 'train' and 'test' that hold"),
        (lambda root: root.rename(root.parent / "other"), r"there is no folder .*birds\. Set --data-root"),
        (lambda root: (root / "train/owl/a.PNG").write_bytes(b"x"), r"train/owl/a.PNG' is not an image"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(DataError, match=message):
        load_source("folder", folder)
