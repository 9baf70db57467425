"""`ipll augment`: the picture it writes, and what it refuses before any data are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ipll.data.grid import DRAWS, GAP, draw_grid, write_grid
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.engine.files import check_out
from ipll.errors import ConfigError
from ipll.views.augment import AugmentConfig


@pytest.fixture(scope="module")
def digits() -> Source:
    return load_source("digits")


def tiles(picture: Image.Image, size: int, rows: int) -> np.ndarray:
    """[rows, 1 + 2 DRAWS, size, size, 3]: the images in the picture, found from its lower right corner."""
    pixels = np.asarray(picture)
    right, bottom = picture.width - 3 * GAP, picture.height - 2 * GAP
    lefts = [right - (k + 1) * size - k * GAP - 2 * GAP * (k // DRAWS) for k in range(1 + 2 * DRAWS)][::-1]
    tops = [bottom - (k + 1) * size - k * GAP for k in range(rows)][::-1]
    return np.array([[pixels[y : y + size, x : x + size] for x in lefts] for y in tops])


def test_the_picture_shows_originals_weak_and_strong_views(digits: Source) -> None:
    config = AugmentConfig(weak="identity", strong="warp", flip=False)
    found = tiles(draw_grid(digits, config, samples=5, seed=3), 96, 5)
    originals = found[:, 0, ::12, ::12, 0]
    known = {sample.tobytes() for sample in digits.train_samples[:, 0]}
    assert all(np.ascontiguousarray(image).tobytes() in known for image in originals)
    assert (found[:, 1 : 1 + DRAWS] == found[:, :1]).all()  # identity
    strong = found[:, 1 + DRAWS :]
    assert (strong != found[:, :1]).any((2, 3, 4)).all()
    assert (strong[:, 0] != strong[:, 1]).any()


def test_large_and_coloured_images(digits: Source) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (4, 3, 100, 100), dtype=np.uint8)
    source = Source("x", levels, np.arange(4), levels, np.arange(4), tuple("abcd"), (0.5,) * 3, (0.2,) * 3)
    found = tiles(draw_grid(source, AugmentConfig(), samples=4), 100, 4)
    assert {image.tobytes() for image in found[:, 0]} == {i.transpose(1, 2, 0).tobytes() for i in levels}


def test_the_seed_decides_everything(digits: Source) -> None:
    config = AugmentConfig(weak="shift", strong="pico")
    first, again, other = (draw_grid(digits, config, samples=3, seed=seed).tobytes() for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_the_command_writes_the_picture_and_nothing_else(main: Any, tmp_path: Path, snapshot: Any) -> None:
    out = tmp_path / "new" / "grid.png"
    status, said, _ = main(
        *("augment", "digits", "--out", out, "--samples", 2, "--seed", 4),
        *("--set", "augment.strong=pico", "--data-root", tmp_path),
    )
    assert status == 0
    assert str(out) in said
    assert list(snapshot(tmp_path)) == ["new", "new/grid.png"]
    config = AugmentConfig(weak="shift", strong="pico", flip=False, min_scale=0.6)  # the preset's, and the one given
    expected = draw_grid(load_source("digits"), config, samples=2, seed=4)
    with Image.open(out) as picture:
        assert picture.format == "PNG"
        assert np.array_equal(np.asarray(picture), np.asarray(expected))


def test_the_command_looks_for_data_where_a_run_does(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both places a damaged archive lies."""
    for name in ("data", "else"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cifar-100-python.tar.gz").write_bytes(b"no archive")
    monkeypatch.setenv("IPLL_DATA", str(tmp_path / "data"))
    command = ("augment", "cifar100", "--out", tmp_path / "a.png")
    assert str(tmp_path / "data") in main(*command).err
    assert str(tmp_path / "else") in main(*command, "--data-root", tmp_path / "else").err
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("samples", [0, -1, 1438])
def test_a_wrong_number_of_samples_is_refused(digits: Source, samples: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--samples must be from 1 to 1437"):
        write_grid(tmp_path / "a.png", digits, AugmentConfig(), samples=samples)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(main: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    for out, why in (
        ("grid.jpg", "must end in .png"),
        ("grid", "must end in .png"),
        ("file/grid.png", "no folder"),
        ("file/deeper/grid.png", "no folder"),
        ("folder.png", "is a folder"),
    ):
        # The data are not there either: the message is about the picture.
        options = ("--out", tmp_path / out, "--data-root", tmp_path / "none")
        status, _, err = main("augment", "cifar100", *options)
        assert status == 2, out
        assert why in err, out
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="everything is writable to root")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="no folder that can be written to"):
        check_out(tmp_path / "closed" / "grid.png", ".png")
