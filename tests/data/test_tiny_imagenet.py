"""Tiny-ImageNet in its official layout, in miniature: read, fetched, and what is said when something is not right."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ipll.config import resolve
from ipll.data.download import extract
from ipll.data.source import SOURCES
from ipll.data.sources import images, load_source
from ipll.data.sources.images import Official
from ipll.data.sources.tiny_imagenet import TinyImageNet
from ipll.errors import ConfigError, DataError

WNIDS = ("n02124075", "n04067472", "n04540053", "n04099969")  # not in order, as in the official file
NAMES = ("Egyptian cat", "reel", "volleyball", "rocking chair")
TRAIN, TEST = 6, 2


@pytest.fixture(autouse=True)
def _miniature(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in (("classes", len(WNIDS)), ("train_images", TRAIN), ("test_images", TEST)):
        monkeypatch.setattr(TinyImageNet, name, value)


def save(path: Path, colour: tuple[int, int, int], mode: str = "RGB") -> None:
    """An image of one colour in the middle; JPEG keeps that within a level or two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), colour).convert(mode).save(path, quality=95)


def colour(label: int, image: int) -> tuple[int, int, int]:
    return (40 + 50 * label, 20 + 30 * image, 200)


def write_tiny(folder: Path) -> Path:
    lines = []
    for label, wnid in enumerate(WNIDS):
        for image in range(TRAIN):
            save(folder / f"train/{wnid}/images/{wnid}_{image}.JPEG", colour(label, image))
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    for image in range(TEST):
        for label, wnid in reversed(list(enumerate(WNIDS))):
            save(folder / f"val/images/val_{len(lines)}.JPEG", colour(label, image))
            lines.append(f"val_{len(lines)}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    save(folder / "test/images/test_0.JPEG", (0, 0, 0))
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    words = [f"{wnid}\t{name}, another name\n" for wnid, name in zip(WNIDS, NAMES, strict=True)]
    (folder / "words.txt").write_text("n00001740\tentity\n" + "".join(words))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "data" / "tiny-imagenet-200")


@pytest.mark.parametrize("given", ["data", "data/tiny-imagenet-200", ".", "data/tiny-imagenet-200/train"])
def test_read_from_every_level(tmp_path: Path, folder: Path, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / f"train/{WNIDS[0]}/images/.DS_Store").write_bytes(b"x")
    (folder / f"train/{WNIDS[0]}/images/Thumbs.db").write_bytes(b"x")
    root = tmp_path / given
    assert SOURCES["tiny-imagenet"]().available(root)
    source = load_source("tiny-imagenet", root)
    assert source.train_samples.shape == (len(WNIDS) * TRAIN, 3, 64, 64)
    assert source.train_samples.dtype == np.uint8
    assert not source.train_samples.flags.writeable
    assert source.train_labels.tolist() == np.repeat(np.arange(len(WNIDS)), TRAIN).tolist()
    assert source.test_labels.tolist() == [3, 2, 1, 0] * TEST
    assert source.class_names == NAMES
    expected = [colour(label, image) for label in range(len(WNIDS)) for image in range(TRAIN)]
    assert np.abs(source.train_samples[:, :, 32, 32].astype(int) - expected).max() <= 3
    expected = [colour(label, image) for image in range(TEST) for label in (3, 2, 1, 0)]
    assert np.abs(source.test_samples[:, :, 0, 63].astype(int) - expected).max() <= 3
    assert source.mean == (0.4802, 0.4481, 0.3975)
    moved = f"You gave {root}; the images are in {folder}." in capsys.readouterr().err
    assert moved == (given in (".", "data/tiny-imagenet-200/train"))


def test_grey_images_become_colour(folder: Path) -> None:
    save(folder / f"train/{WNIDS[1]}/images/{WNIDS[1]}_0.JPEG", (90, 90, 90), mode="L")
    source = load_source("tiny-imagenet", folder.parent)
    np.testing.assert_array_equal(source.train_samples[TRAIN], np.full((3, 64, 64), 90))


def test_a_linked_folder_is_read_and_nothing_is_written_into_it(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "tiny-imagenet-200").symlink_to(folder)
    assert load_source("tiny-imagenet", tmp_path / "links").classes == len(WNIDS)
    assert (tmp_path / "links/.ipll/tiny-imagenet-64/index.json").exists()
    assert not (folder / ".ipll").exists()


def prepared(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("index.json"))


def test_prepared_once_however_the_root_is_spelled(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (folder, folder.parent, tmp_path, folder / "train"):
        load_source("tiny-imagenet", given)
    monkeypatch.chdir(folder)
    load_source("tiny-imagenet", Path())
    assert prepared(tmp_path) == [folder.parent / ".ipll/tiny-imagenet-64/index.json"]


@pytest.mark.parametrize("old", ["data/tiny-imagenet-200", "."])
def test_what_was_prepared_elsewhere_before_is_found(tmp_path: Path, folder: Path, old: str) -> None:
    load_source("tiny-imagenet", folder)
    (folder.parent / ".ipll").rename(tmp_path / old / ".ipll")
    load_source("tiny-imagenet", tmp_path / old)
    assert prepared(tmp_path) == [tmp_path / old / ".ipll/tiny-imagenet-64/index.json"]


def test_copies_side_by_side_do_not_share_what_is_prepared(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_tiny(tmp_path / name)
        load_source("tiny-imagenet", tmp_path / name)
    assert len(prepared(tmp_path)) == 2


def move_validation(folder: Path, within: str) -> None:
    """What the scripts do that make class folders of the validation images."""
    for line in (folder / "val/val_annotations.txt").read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        place = folder / "val" / wnid / within
        place.mkdir(parents=True, exist_ok=True)
        (folder / "val/images" / name).rename(place / name)


@pytest.mark.parametrize("within", ["", "images"])
@pytest.mark.parametrize("remains", ["nothing", "annotations", "an empty folder"])
def test_validation_images_in_class_folders(folder: Path, within: str, remains: str) -> None:
    move_validation(folder, within)
    if remains != "an empty folder":
        (folder / "val/images").rmdir()
    if remains != "annotations":
        (folder / "val/val_annotations.txt").unlink()
    source = load_source("tiny-imagenet", folder.parent)
    assert source.test_labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    expected = [colour(label, image) for label in range(len(WNIDS)) for image in range(TEST)]
    assert np.abs(source.test_samples[:, :, 0, 63].astype(int) - expected).max() <= 3
    next((folder / "val" / WNIDS[1] / within).glob("*.JPEG")).unlink()
    with pytest.raises(DataError, match=rf"is not whole: .*/val/{WNIDS[1]}\S* has 1 of 2 images\."):
        load_source("tiny-imagenet", folder.parent)


def test_read_as_a_folder_once_validation_images_are_in_class_folders(folder: Path) -> None:
    move_validation(folder, "images")
    (folder / "val/images").rmdir()
    assert load_source("folder", folder, size=64).test_labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_training_images_right_in_their_class_folders(folder: Path) -> None:
    official = load_source("tiny-imagenet", folder.parent).train_samples
    for images_of in list(folder.glob("train/*/images")):
        for image in images_of.iterdir():
            image.rename(images_of.parent / image.name)
        images_of.rmdir()
    np.testing.assert_array_equal(load_source("tiny-imagenet", folder.parent).train_samples, official)


def test_classes_of_one_name_are_told_apart(folder: Path) -> None:
    words = folder / "words.txt"
    words.write_text(words.read_text().replace("\treel,", "\tvolleyball,"))
    expected = (NAMES[0], f"volleyball ({WNIDS[1]})", f"volleyball ({WNIDS[2]})", NAMES[3])
    assert load_source("tiny-imagenet", folder.parent).class_names == expected


def test_other_size(folder: Path) -> None:
    source = load_source("tiny-imagenet", folder.parent, size=32)
    assert source.train_samples.shape[1:] == (3, 32, 32)
    with pytest.raises(ConfigError, match="'digits' is ready as it comes"):
        load_source("digits", size=32)
    with pytest.raises(ConfigError, match="size of images is -1"):
        load_source("tiny-imagenet", folder.parent, size=-1)


def remove(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).unlink()


def cut(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).write_bytes((folder / path).read_bytes()[:400]) and None


def annotate(line: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "val/val_annotations.txt"
        file.write_text("".join([line, *file.read_text().splitlines(keepends=True)[1:]]))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            remove(f"train/{WNIDS[2]}/images/{WNIDS[2]}_3.JPEG"),
            rf"tiny-imagenet-200 is not whole: .*/train/{WNIDS[2]}/images has 5 of 6 images\. Delete .* again",
        ),
        (remove("val/images/val_3.JPEG"), r"is not whole: .*/val/images has 7 of 8 images"),
        (
            remove("wnids.txt"),
            r"tiny-imagenet-200 is not whole: it has no wnids.txt\. If .* ipll prepare folder .* Otherwise: Delete .*",
        ),
        (remove("words.txt"), r"tiny-imagenet-200 is not whole: it has no words.txt"),
        (remove("val/val_annotations.txt"), r"val is not whole: it has no val_annotations.txt"),
        (lambda folder: (folder / "wnids.txt").write_text(WNIDS[0]), r"wnids.txt names 1 classes, expected 4"),
        (annotate("val_0.JPEG\tn1\t0\t0\t0\t0\n"), r"val_annotations.txt names the class 'n1', which is not there"),
        (annotate(f"x.JPEG\t{WNIDS[0]}\t0\t0\n"), r"names the image .*val/images/x.JPEG, which is not there"),
        (annotate("val_0.JPEG\n"), r"val_annotations.txt, line 1: 'val_0.JPEG' has not 3 columns"),
        (annotate(""), r"val_annotations.txt does not name the image .*val/images/val_0.JPEG"),
        (
            cut(f"train/{WNIDS[0]}/images/{WNIDS[0]}_1.JPEG"),
            rf"/train/{WNIDS[0]}/images/{WNIDS[0]}_1.JPEG' cannot be read \(.*\)\. Replace it",
        ),
    ],
)
def test_what_is_wrong_is_named(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(DataError, match=message):
        load_source("tiny-imagenet", folder.parent)


def test_several_short_folders_are_counted(folder: Path) -> None:
    for wnid in WNIDS[1:]:
        (folder / f"train/{wnid}/images/{wnid}_0.JPEG").unlink()
    with pytest.raises(DataError, match=rf"{WNIDS[1]}/images has 5 of 6 images, and 2 more folders differ"):
        load_source("tiny-imagenet", folder.parent)


def test_class_folders_of_another_layout_are_explained(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split / "bird" / "0.jpg", (0, 0, 0))
    with pytest.raises(DataError, match=r"holds no tiny-imagenet-200\. .* ipll prepare folder .* --set data.sou"):
        load_source("tiny-imagenet", tmp_path)


@pytest.fixture
def served(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The archive comes from a server on this machine; -> the requests that it got."""
    monkeypatch.setenv("no_proxy", "*")
    archive = tmp_path / "site" / "tiny-imagenet-200.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../outside.txt", "x")
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *arguments: object) -> None:
            requests.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(archive.parent))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        checksum = "md5:" + hashlib.md5(archive.read_bytes()).hexdigest()
        monkeypatch.setattr(TinyImageNet, "official", Official("tiny-imagenet-200", "wnids.txt", url, checksum))
        yield requests
        server.shutdown()
        thread.join()


def test_fetch_extract_read(tmp_path: Path, served: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    assert not TinyImageNet().available(root)
    assert load_source("tiny-imagenet", root).class_names == NAMES
    assert f"Extracting {root / 'tiny-imagenet-200.zip'} to {root / 'tiny-imagenet-200'}." in capsys.readouterr().err
    assert load_source("tiny-imagenet", root).class_names == NAMES
    assert served == ["/tiny-imagenet-200.zip"]
    assert sorted(p.name for p in root.iterdir()) == [".ipll", "tiny-imagenet-200", "tiny-imagenet-200.zip"]
    assert not (tmp_path / "outside.txt").exists()


def test_an_archive_in_a_root_that_cannot_be_written(
    tmp_path: Path, served: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(images.os, "access", lambda path, mode: False)
    into = Path.home() / ".cache" / "ipll" / "tiny-imagenet-200"
    for _ in range(2):
        assert load_source("tiny-imagenet", tmp_path / "site").class_names == NAMES
    assert capsys.readouterr().err.count(f"tiny-imagenet-200.zip is extracted to {into}.") == 1
    assert [p.name for p in (tmp_path / "site").iterdir()] == ["tiny-imagenet-200.zip"]
    assert served == []


def test_two_that_extract_at_once(tmp_path: Path, served: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        sources = list(pool.map(lambda _: load_source("tiny-imagenet", tmp_path / "root"), range(4)))
    assert {source.class_names for source in sources} == {NAMES}
    assert len(served) == 1


def test_one_that_is_extracted_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    folder.mkdir()
    (folder / "wnids.txt").write_text("n02124075\n")
    official = Official("tiny-imagenet-200", "wnids.txt", "https://x/tiny-imagenet-200.zip", "")
    monkeypatch.setattr(official, "find", lambda root: None)  # not yet there
    assert official.obtain(tmp_path) == folder


def test_a_damaged_archive(tmp_path: Path) -> None:
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"x.zip is damaged .* Delete it and fetch it again"):
        extract(archive, tmp_path / "x")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("other/a.txt", "x")
    with pytest.raises(DataError, match=r"x.zip holds no folder 'x'"):
        extract(archive, tmp_path / "x")
    assert [p.name for p in tmp_path.iterdir()] == ["x.zip"]


def test_the_rest_of_a_killed_extraction_is_not_taken_for_the_data_set(tmp_path: Path, served: list[str]) -> None:
    rest = tmp_path / "root" / "tiny-imagenet-200.abc.tmp" / "tiny-imagenet-200"
    rest.mkdir(parents=True)
    (rest / "wnids.txt").write_text("n02124075\n")
    assert load_source("tiny-imagenet", tmp_path / "root").class_names == NAMES


def test_preset() -> None:
    config = resolve("tiny-imagenet")
    assert (config.data.source, config.model.backbone, config.stream.tasks) == ("tiny-imagenet", "resnet18", 10)
    assert (config.train.epochs, config.train.batch_size, config.train.lr) == (300, 128, 0.1)


def test_a_run_prepares_by_itself(folder: Path, tmp_path: Path, main: Callable[..., Any]) -> None:
    settings = (
        *("train.epochs=1", "train.steps_per_epoch=1", "train.batch_size=8", "stream.tasks=2"),
        *("model.backbone=small-cnn", "memory.size=8"),
    )
    options = [word for setting in settings for word in ("--set", setting)]
    out = tmp_path / "run"
    ended = main("run", "tiny-imagenet", *options, "--data-root", folder.parent, "--out", out, "--device", "cpu")
    assert ended.status == 0, ended.err
    assert f"Preparing 32 images of {folder} at 64 x 64 in {folder.parent / '.ipll'}" in ended.err
    assert json.loads((out / "result.json").read_text())["seen_classes_per_task"] == [2, 4]


def test_our_training_leaves_the_papers_stream_memory_and_network() -> None:
    paper, ours = resolve("tiny-imagenet", "pgdr"), resolve("tiny-imagenet-fast", "pgdr")
    assert (ours.stream, ours.model, ours.parts, ours.data) == (paper.stream, paper.model, paper.parts, paper.data)
    recipe = resolve("cifar100-fast", "pgdr")
    assert ours.train.batch_size == recipe.train.batch_size
    assert ours.augment.cutmix == recipe.augment.cutmix
    assert ours.augment.test_size / 64 == recipe.augment.test_size / 32
