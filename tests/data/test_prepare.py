"""Preparation: done once, resumed, never half, and done again where the images have changed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ipll.data import pictures as reading
from ipll.data import prepare as preparation
from ipll.data.pictures import Pixels, read_picture
from ipll.data.sources import image_source, load_source
from ipll.errors import DataError, Interrupted

COUNT = 60  # images in all
SIZE = 16


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of noise, exactly as it is read."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    noise = np.random.default_rng(0).integers(0, 256, (COUNT, SIZE, SIZE, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        place = tmp_path / "set" / ("train" if i < 40 else "test") / ("ab"[i % 2])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:02}.png")
    return tmp_path / "set"


@pytest.fixture
def place(folder: Path) -> Path:
    return folder / ".ipll" / f"folder-{SIZE}"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """-> the names of the image files that were decoded; blocks are of four."""
    names: list[str] = []

    def read(path: Path, *how: Any) -> Pixels:
        names.append(path.name)
        return read_picture(path, *how)

    monkeypatch.setattr(reading, "read_picture", read)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4 * 3 * SIZE * SIZE)
    return names


def samples(folder: Path) -> Pixels:
    source = load_source("folder", folder, size=SIZE)
    return np.concatenate([source.train_samples, source.test_samples])


def expected(folder: Path) -> Pixels:
    files = [p for split in ("train", "test") for c in "ab" for p in sorted((folder / split / c).glob("*.png"))]
    return np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files])


def test_once(folder: Path, place: Path, reads: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    np.testing.assert_array_equal(samples(folder), expected(folder))
    assert len(reads) == COUNT
    assert f"Preparing {COUNT} images of {folder} at 16 x 16 in {place}. This is done once." in capsys.readouterr().err
    source = load_source("folder", folder, size=SIZE)
    assert len(reads) == COUNT
    assert capsys.readouterr().err == ""
    assert isinstance(source.train_samples, np.memmap)
    assert not source.test_samples.flags.writeable


def test_the_index_says_what_the_images_are(folder: Path, place: Path) -> None:
    samples(folder)
    index = json.loads((place / "index.json").read_text())
    assert sorted(p.name for p in place.iterdir()) == [".lock", index["images"], "index.json"]
    images = place / index["images"]
    assert hashlib.sha256(images.read_bytes()).hexdigest() == index["sha256"]
    np.testing.assert_array_equal(np.load(images), expected(folder))
    assert (index["class_names"], index["train"], index["size"]) == (["a", "b"], 40, SIZE)
    file = folder / "train" / "a" / "00.png"
    assert index["files"][0] == ["train/a/00.png", 0, file.stat().st_size, file.stat().st_mtime_ns]


SLOW = """
import sys, time
from pathlib import Path
from ipll.data import pictures, prepare
from ipll.data.sources import load_source
read = pictures.read_picture
def slow(*arguments):
    time.sleep(0.03)
    return read(*arguments)
pictures.read_picture, pictures.BLOCK_BYTES, prepare.KEEP_SECONDS = slow, 4 * 3 * 16 * 16, 0
load_source("folder", Path(sys.argv[1]), size=16)
"""


def slowly(root: Path, folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", SLOW, str(folder)], env=environment, stderr=subprocess.DEVNULL)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kept(place: Path) -> int:
    note = place / "progress.json"
    return int(json.loads(note.read_text())["images"]) if note.exists() else 0


def test_killed_it_goes_on_where_it_was(
    root: Path, folder: Path, place: Path, reads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with slowly(root, folder) as process:
        wait_until(lambda: kept(place) >= 12)
        process.send_signal(signal.SIGKILL)
    done = kept(place)
    assert 12 <= done < COUNT
    assert not (place / "index.json").exists()
    with (place / "images.part").open("ab") as file:
        file.write(b"what was written after the last note")
    np.testing.assert_array_equal(samples(folder), expected(folder))
    assert len(reads) == COUNT - done
    assert f"after {done} that are there" in capsys.readouterr().err
    assert not (place / "images.part").exists()


def test_a_killed_preparation_of_other_images_is_not_resumed(
    folder: Path, place: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = folder / "test" / "b" / "59.png"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:200])
    with pytest.raises(DataError, match=r"59.png' cannot be read \(.*--size 16 .*--skip-bad"):
        samples(folder)
    assert kept(place) == 59  # all that are before it
    bad.write_bytes(whole)
    reads.clear()
    np.testing.assert_array_equal(samples(folder), expected(folder))
    assert len(reads) == COUNT


def test_two_at_once_prepare_it_once(
    root: Path, folder: Path, place: Path, reads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with slowly(root, folder) as process:
        wait_until(lambda: kept(place) >= 4)
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(samples, [folder, folder]))
    assert process.returncode == 0
    assert reads == []
    for result in results:
        np.testing.assert_array_equal(result, expected(folder))
    assert f"{place}: another process prepares it; waiting." in capsys.readouterr().err


def replace_one(folder: Path) -> None:
    Image.new("RGB", (SIZE, SIZE), (1, 2, 3)).save(folder / "train" / "a" / "00.png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_one, "0 image files added, 0 removed, 1 changed"),
        (lambda folder: os.utime(folder / "train" / "a" / "00.png", (1, 1)), "0 image files added, 0 removed, 1 ch"),
        (lambda folder: (folder / "train/a/00.png").rename(folder / "train/a/x.png"), "1 image files added, 1 removed"),
    ],
)
def test_changed_images_are_prepared_again(
    folder: Path,
    place: Path,
    reads: list[str],
    change: Callable[[Path], Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = samples(folder)
    mapped = load_source("folder", folder, size=SIZE).train_samples
    change(folder)
    capsys.readouterr()
    np.testing.assert_array_equal(samples(folder), expected(folder))
    assert len(reads) == 2 * COUNT
    said = capsys.readouterr().err
    assert f"{place}: the data set has changed since it was prepared ({message}" in said
    assert "It is prepared again." in said
    assert len(list(place.glob("images*"))) == 1
    np.testing.assert_array_equal(mapped, first[:40])  # a run that had the former images keeps them


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_text(file.read_text().replace('"train": 40', '"train": 41')), "its index is damaged"),
        (lambda file: file.write_text("{}"), "its index is damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:99]), "its index is damaged"),
        (lambda file: next(file.parent.glob("*.npy")).unlink(), "its images are missing or cut short"),
        (lambda file: os.truncate(next(file.parent.glob("*.npy")), 9999), "its images are missing or cut short"),
    ],
)
def test_damage_is_seen(
    folder: Path, place: Path, damage: Callable[[Path], Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    samples(folder)
    damage(place / "index.json")
    np.testing.assert_array_equal(samples(folder), expected(folder))
    assert message in capsys.readouterr().err


def test_the_command_checks_what_is_there(folder: Path, place: Path, main: Callable[..., Any]) -> None:
    arguments = ("prepare", "folder", "--size", SIZE, "--data-root", folder, "--jobs", 2)
    whole = f"folder: {COUNT} images of 16 x 16 are whole in {place}"
    ended = main(*arguments)
    assert (ended.status, ended.out.strip()) == (0, whole)
    assert "Preparing" in ended.err
    ended = main(*arguments)
    assert (ended.out.strip(), ended.err) == (whole, "")
    images = next(place.glob("*.npy"))
    content = bytearray(images.read_bytes())
    content[-1] ^= 1
    images.write_bytes(content)
    ended = main(*arguments)
    assert "its images have a wrong checksum. It is prepared again." in ended.err
    np.testing.assert_array_equal(samples(folder), expected(folder))
    ended = main("prepare", "digits")
    assert (ended.status, ended.err.split(":")[0]) == (2, "ipll")


def test_a_root_that_cannot_be_written(folder: Path, reads: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".ipll").write_text("a file, where a folder should be")
    np.testing.assert_array_equal(samples(folder), expected(folder))
    said = capsys.readouterr().err
    assert f"Cannot write {folder / '.ipll'}" in said
    assert f"the prepared images go to {Path.home() / '.cache/ipll/prepared'}/folder-16-" in said
    samples(folder)
    assert len(reads) == COUNT
    assert capsys.readouterr().err == ""


def test_a_full_disk(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(preparation.os, "fsync", full)
    with pytest.raises(DataError, match=f"cannot write {place}: No space left on device. It takes 0.0 GB; make room"):
        samples(folder)
    monkeypatch.undo()
    assert not (place / "index.json").exists()


def test_a_jpeg_decoded_at_half_its_size_looks_the_same(tmp_path: Path) -> None:
    """A JPEG of eight times the size is not decoded in full, which is faster, and hardly to be seen."""
    ramp = np.linspace(0, 255, 512)
    pixels = np.stack(
        [np.add.outer(ramp, ramp) / 2, np.broadcast_to(ramp, (512, 512)), 255 - np.add.outer(ramp, ramp) / 2]
    )
    picture = Image.fromarray(pixels.transpose(1, 2, 0).astype(np.uint8))
    picture.save(tmp_path / "x.jpg", quality=95)
    picture.save(tmp_path / "x.png")
    found, full = (read_picture(tmp_path / name, 56, margin=256 / 224).astype(int) for name in ("x.jpg", "x.png"))
    assert np.abs(found - full).max() <= 6


def test_jobs_do_not_change_the_images(folder: Path, reads: list[str]) -> None:
    for jobs in (1, 3):
        images = image_source("folder", SIZE + jobs).prepare(folder, jobs).images
        paths = [
            folder / row[0]
            for row in json.loads((folder / f".ipll/folder-{SIZE + jobs}/index.json").read_text())["files"]
        ]
        np.testing.assert_array_equal(images[33], read_picture(paths[33], SIZE + jobs))


def test_ctrl_c_says_how_to_go_on(folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    decode = reading.read_picture

    def stop(path: Path, *how: Any) -> Pixels:
        if len(reads) == 20:
            raise KeyboardInterrupt
        return decode(path, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read_picture", stop)
    with pytest.raises(Interrupted, match="is kept: the same command goes on from there"):
        load_source("folder", folder, SIZE)
    monkeypatch.setattr(reading, "read_picture", decode)
    load_source("folder", folder, SIZE)
    assert len(reads) < 20 + COUNT  # not all of it again


BAD = ("train/a/04.png", "train/b/31.png", "test/b/59.png")


def spoil(folder: Path) -> None:
    (folder / BAD[0]).write_text("no image")
    (folder / BAD[1]).write_bytes((folder / BAD[1]).read_bytes()[:200])
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / BAD[2], format="tiff")


def test_what_cannot_be_read_is_left_out_counted_and_listed(
    folder: Path, place: Path, reads: list[str], main: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = expected(folder)
    spoil(folder)
    command = ("prepare", "folder", "--size", SIZE, "--data-root", folder)
    ended = main(*command)
    assert ended.status == 2
    assert f"image '{folder / BAD[0]}' is not an image. Replace it, or leave out all that" in ended.err
    assert f"ipll {' '.join(map(str, command))} --skip-bad" in ended.err
    assert main(*command, "--skip-bad").status == 0
    reads.clear()
    ended = main(*command, "--skip-bad")
    assert ended.out.splitlines()[:3] == [
        f"folder: {COUNT - 3} images of 16 x 16 are whole in {place}",
        "Skipped 3 that cannot be read:",
        f"  {BAD[0]} is not an image",
    ]
    assert ended.out.count("cannot be read (") == 2
    assert "decimal numbers" in ended.out
    source = load_source("folder", folder, size=SIZE)
    assert f"{place}: 3 images that cannot be read were left out when it was prepared." in capsys.readouterr().err
    assert reads == []
    found = np.concatenate([source.train_samples, source.test_samples])
    np.testing.assert_array_equal(found, np.delete(whole, [2, 35, 59], axis=0))
    assert (source.train_labels.tolist(), source.test_labels.tolist()) == ([0] * 19 + [1] * 19, [0] * 10 + [1] * 9)


def test_who_does_not_skip_asks_for_all(folder: Path, main: Callable[..., Any]) -> None:
    whole = {name: (folder / name).read_bytes() for name in BAD}
    spoil(folder)
    command = ("prepare", "folder", "--size", SIZE, "--data-root", folder)
    assert main(*command, "--skip-bad").status == 0
    ended = main(*command)
    assert ended.status == 2
    assert "3 images that could not be read are not in it. It is prepared again." in ended.err
    assert BAD[0] in ended.err
    assert len(samples(folder)) == COUNT - 3  # what there is, is as it was
    for name, content in whole.items():
        (folder / name).write_bytes(content)
    np.testing.assert_array_equal(samples(folder), expected(folder))


def test_stopped_while_skipping_it_goes_on(
    folder: Path, place: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(folder)
    spoil(folder)
    source, decode = image_source("folder", SIZE), reading.read_picture

    def stop(path: Path, *how: Any) -> Pixels:
        if path.name == "58.png":
            raise KeyboardInterrupt
        return decode(path, *how)

    monkeypatch.setattr(reading, "read_picture", stop)
    with pytest.raises(Interrupted, match=f"What is prepared of {folder} is kept"):
        source.prepare(folder, 1, skip_bad=True)
    note = json.loads((place / "progress.json").read_text())
    assert [position for position, _ in note["skipped"]] == [2, 35]
    monkeypatch.setattr(reading, "read_picture", decode)
    with pytest.raises(DataError, match=BAD[0]):  # who does not skip goes on at the first that was skipped
        source.prepare(folder, 1)
    assert kept(place) == 2
    reads.clear()
    found = source.prepare(folder, 1, skip_bad=True)
    assert len(reads) == COUNT - 2
    assert [name.split()[0] for name in found.skipped] == list(BAD)
    np.testing.assert_array_equal(found.images, np.delete(whole, [2, 35, 59], axis=0))


def test_a_class_needs_an_image_that_can_be_read(folder: Path) -> None:
    for file in (folder / "test" / "b").iterdir():
        file.write_text("no image")
    with pytest.raises(DataError, match=f"none of the test images of class 'b' in {folder} can be read. Replace them"):
        image_source("folder", SIZE).prepare(folder, skip_bad=True)


def test_what_an_older_decoder_prepared_is_prepared_again(
    folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparation, "VERSION", 1)
    samples(folder)
    monkeypatch.undo()
    samples(folder)
    assert f"{place}: it was prepared by another version of ipll. It is prepared again." in capsys.readouterr().err
    assert json.loads((place / "index.json").read_text())["version"] == 2
