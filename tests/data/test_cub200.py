"""CUB-200-2011 in its official layout, in miniature."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.data.sources.cub200 import Cub200
from ipll.errors import DataError

CLASSES = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
PER_CLASS = 4
TRAINING = ("1", "0", "0", "1")  # of each class's images


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images wider than high, each with the level of its number; the middle third is red."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Cub200, "counts", (3, 6, 6))
    monkeypatch.setattr(Cub200, "size", 56)
    folder = tmp_path / "CUB_200_2011"
    rows: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for c, name in enumerate(CLASSES):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(PER_CLASS):
            number = c * PER_CLASS + i + 1
            pixels = np.full((128, 192, 3), 10 * number, np.uint8)
            pixels[:, 64:128] = (250, 0, 0)
            Image.fromarray(pixels).save(folder / "images" / name / f"bird_{i}.jpg", quality=95)
            rows["images"].append(f"{number} {name}/bird_{i}.jpg")
            rows["image_class_labels"].append(f"{number} {c + 1}")
            rows["train_test_split"].append(f"{number} {TRAINING[i]}")
    rows["classes"] = [f"{c + 1} {name}" for c, name in enumerate(CLASSES)]
    for file, lines in rows.items():
        (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("given", [".", "CUB_200_2011", "CUB_200_2011/images"])
def test_read(tmp_path: Path, folder: Path, given: str) -> None:
    source = load_source("cub200", tmp_path / given)
    assert source.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.class_names == ("Black_footed_Albatross", "Laysan_Albatross", "Sooty_Albatross")
    assert source.train_samples.shape == source.test_samples.shape == (6, 3, 56, 56)
    assert source.mean == (0.485, 0.456, 0.406)
    # The shorter side, 128, becomes 64; of 96 x 64 the middle 56 x 56 is left: red from column 12 to 44.
    corner = source.train_samples[:, 1, 0, 0].astype(int)
    assert np.abs(corner - 10 * np.array([1, 4, 5, 8, 9, 12])).max() <= 3
    red = source.test_samples[0, 0, 28].astype(int) > 128
    assert np.flatnonzero(red).tolist() == list(range(12, 44))


def test_resized_as_at_test_in_the_official_code(folder: Path) -> None:
    """Resize(256 / 224 x size), CenterCrop(size) of torchvision, on Pillow images."""
    picture = Image.open(folder / "images" / CLASSES[0] / "bird_0.jpg").convert("RGB")
    expected = picture.resize((96, 64), Image.Resampling.BILINEAR).crop((20, 4, 76, 60))
    found = load_source("cub200", folder.parent).train_samples[0]
    np.testing.assert_array_equal(found, np.asarray(expected).transpose(2, 0, 1))


def by_class(folder: Path, test: str = "test") -> None:
    """Makes of the official layout a copy in class folders, as it is often passed on."""
    for name in CLASSES:
        for i, training in enumerate(TRAINING):
            place = folder / ("train" if training == "1" else test) / name
            place.mkdir(parents=True, exist_ok=True)
            (folder / "images" / name / f"bird_{i}.jpg").rename(place / f"bird_{i}.jpg")
    shutil.rmtree(folder / "images")
    for file in folder.glob("*.txt"):
        file.unlink()


@pytest.mark.parametrize("test", ["test", "val"])
@pytest.mark.parametrize(
    ("named", "given"),
    [("CUB_200_2011", "."), ("CUB_200_2011", "CUB_200_2011"), ("CUB", "."), ("CUB", "CUB/train"), ("birds", ".")],
)
def test_copies_in_class_folders(
    tmp_path: Path, folder: Path, named: str, given: str, test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    official = load_source("cub200", tmp_path)
    by_class(folder, test)
    folder.rename(tmp_path / named)
    (tmp_path / "another/train/bird").mkdir(parents=True)
    (tmp_path / "another/val/bird").mkdir(parents=True)
    assert Cub200().available(tmp_path / given)
    source = load_source("cub200", tmp_path / given)
    assert source.class_names == official.class_names
    for mine, theirs in ((source.train_samples, official.train_samples), (source.test_samples, official.test_samples)):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(source.test_labels, official.test_labels)
    assert (
        f"{named} holds class folders: they are read as they are, '{test}' as the test set." in capsys.readouterr().err
    )


def test_the_tables_of_a_copy_in_class_folders_may_remain(folder: Path) -> None:
    tables = {file: file.read_text() for file in folder.glob("*.txt")}
    by_class(folder)
    for file, text in tables.items():
        file.write_text(text)
    assert load_source("cub200", folder.parent).test_labels.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("test", ["test", "val"])
def test_class_folders_that_may_be_something_else_are_explained(
    tmp_path: Path, folder: Path, test: str, main: Callable[..., Any]
) -> None:
    by_class(folder, test)
    root = folder.rename(tmp_path / "birds")
    for split in ("train", test):
        (root / split / CLASSES[0]).rename(root / split / "Albatross")
    assert not Cub200().available(root)
    ended = main("prepare", "cub200", "--data-root", root)
    assert ended.status != 0
    said = " ".join(ended.err.split())
    assert f"holds no CUB_200_2011. If its folders 'train' and '{test}' hold a folder for each class: ipll" in said
    assert f"ipll prepare folder --data-root {root}, or a run with --set data.source=folder." in said
    assert main("prepare", "folder", "--size", 16, "--data-root", root).status == 0


def write(name: str, change: Callable[[str], str]) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / f"images/{CLASSES[1]}/bird_2.jpg").unlink(),
            r"CUB_200_2011 is not whole: .*images/002.Laysan_Albatross has 3 of 4 images\. Delete .* CUB_200_2011.tgz",
        ),
        (lambda folder: (folder / "classes.txt").unlink(), r"CUB_200_2011 is not whole: it has no classes.txt"),
        (
            lambda folder: (folder / f"images/{CLASSES[1]}/bird_2.jpg").write_bytes(b"no JPEG"),
            r"images/002.Laysan_Albatross/bird_2.jpg' is not an image",
        ),
        (
            write("train_test_split.txt", lambda text: text.replace("1 1\n", "1 0\n", 1)),
            r"lists 3 classes, 5 training and 7 test images, expected 3, 6 and 6",
        ),
        (write("train_test_split.txt", lambda text: text[4:]), r"train_test_split.txt and images.txt do not name the"),
        (write("image_class_labels.txt", lambda text: text.replace("12 3", "12 9")), r"names class 9, which classes"),
        (write("images.txt", lambda text: text.replace("\n", "\nx\n", 1)), r"images.txt, line 2: 'x' has not 2 col"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(DataError, match=message):
        load_source("cub200", folder.parent)


def test_preset() -> None:
    config = resolve("cub200")
    assert (config.data.source, config.model.backbone) == ("cub200", "resnet18-imagenet")
    assert config.model.expects_weights
    assert (config.train.epochs, config.train.batch_size, config.train.lr) == (20, 128, 0.01)
    assert (config.train.weight_decay, config.augment.min_scale) == (1e-3, 0.08)
    assert Cub200.size == 224
