"""Images of one's own: found, decoded on demand, and told of where they are broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from ipll.own import Images, read_table
from ipll.own.reading.given import read_to_predict
from ipll.own.reading.images import image_files

Write = Callable[..., Path]
Refused = Callable[..., str]


@pytest.fixture
def table(write: Write, photos: Path) -> Path:
    """-> a table of ten digits, and one more that is given by its absolute path."""
    Image.open(photos / "3.png").save(photos.parent / "more.png")
    rows = [f"photos/{k}.png,{k}|{(k + 1) % 10}" for k in range(10)]
    return write("t.csv", "image,candidates\n" + "\n".join([*rows, f"{photos.parent / 'more.png'},3|8"]) + "\n")


def broken_ones(photos: Path) -> None:
    """Number 2 is cut short, 4 is gone, 6 is text, 8 is a folder."""
    whole = (photos / "2.png").read_bytes()
    (photos / "2.png").write_bytes(whole[: len(whole) - 40])
    (photos / "4.png").unlink()
    (photos / "6.png").write_text("not an image")
    (photos / "8.png").unlink()
    (photos / "8.png").mkdir()


def test_images_are_decoded_when_asked_for(table: Path) -> None:
    samples = read_table(table)
    images = samples.images
    assert images is not None
    assert (len(images), images.side, images.channels) == (11, 8, 1)
    assert samples.ids[:2] == ["photos/0.png", "photos/1.png"]
    assert samples.features is None
    pixels = (load_digits().images[:10] * 15).astype(np.uint8)
    np.testing.assert_array_equal(images.load(8)[:10, 0], pixels)
    assert images.load(16, channels=3).shape == (11, 3, 16, 16)
    assert images.load(16).dtype == np.uint8


def test_images_decoded_at_once_are_held_as_bytes(table: Path) -> None:
    lazy, held = read_table(table), read_table(table, image_size=12)
    assert lazy.images is not None
    assert held.images is not None
    assert isinstance(held.images.items, np.ndarray)
    np.testing.assert_array_equal(held.images.load(12), lazy.images.load(12))
    assert held.images.load(12) is held.images.items
    assert held.images.load(6, channels=3).shape == (11, 3, 6, 6)


def test_broken_images_stop_the_reading(table: Path, photos: Path, refused: Refused) -> None:
    broken_ones(photos)
    message = refused(read_table, table)
    assert "3 faults" in message
    assert f"row 6: image '{photos / '4.png'}' is missing" in message
    assert f"row 8: image '{photos / '6.png'}' is not an image" in message
    assert f"row 10: image '{photos / '8.png'}' is a folder" in message
    assert "--skip-bad" in message


def test_broken_images_are_skipped_counted_and_listed(table: Path, photos: Path, refused: Refused) -> None:
    broken_ones(photos)
    samples = read_table(table, skip_bad=True)
    assert [row for row, _ in samples.skipped] == [6, 8, 10]
    assert len(samples) == 8
    # The one that is cut short has a good head: it is found when it is decoded.
    assert "row 4: image" in refused(samples.decoded, 8)
    assert "2.png' cannot be read" in refused(samples.images.load, 8)  # type: ignore[union-attr]
    for whole in (samples.decoded(8, skip_bad=True), read_table(table, skip_bad=True, image_size=8)):
        assert sorted(row for row, _ in whole.skipped) == [4, 6, 8, 10]
        assert whole.ids == [f"photos/{k}.png" for k in (0, 1, 3, 5, 7, 9)] + [str(photos.parent / "more.png")]
        assert whole.images is not None
        pixels = (load_digits().images[[0, 1, 3, 5, 7, 9, 3]] * 15).astype(np.uint8)
        np.testing.assert_array_equal(whole.images.load(8)[:, 0], pixels)
        assert all(whole.candidates.any(0))


def test_classes_of_skipped_images_are_not_known(write: Write, photos: Path) -> None:
    text = "image,candidates,label\nphotos/0.png,a|b,b\nphotos/gone.png,rare,rare\nphotos/1.png,b|c,c\n,d,d\n"
    samples = read_table(write("t.csv", text), skip_bad=True)
    assert samples.names == ("a", "b", "c")
    assert samples.labels.tolist() == [1, 2]
    assert samples.skipped[1] == (5, "no image is named")


def test_images_whose_names_are_written_otherwise(write: Write, photos: Path, refused: Refused) -> None:
    message = refused(read_table, write("t.csv", "image,candidates\nphotos\\0.png,a\nphotos\\none.png,b\n"))
    assert "0.png' is missing, but with '/' it is there. Write '/' in paths" in message
    assert message.count("but") == 1
    (photos / "0.png").rename(photos / "caf\u00e9.png")
    (photos / "1.png").rename(photos / "cafe\u0301s.png")
    (photos / "2.png").write_text("not an image")
    rows = "photos/cafe\u0301.png,a\nphotos/caf\u00e9s.png,b\nphotos/2.png,c\n"
    message = refused(read_table, write("t.csv", "image,candidates\n" + rows))
    assert "row 2: " in message
    assert "is missing, but a file whose name has its letters coded otherwise (NFC) is there" in message
    assert "coded otherwise (NFD) is there. Rename it" in message
    assert "2.png' is not an image\n" in message


def test_files_of_a_folder_that_are_no_images_are_told(photos: Path, refused: Refused) -> None:
    (photos / "more").mkdir()
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", ".hidden.txt"):
        (photos / name).write_text("1")
    samples = read_to_predict(photos, skip_bad=False)
    assert (len(samples), samples.warnings) == (10, [])
    for name in ("a.mov", "b.txt", "c.csv", "more/IMG_1.HEIC"):
        (photos / name).write_text("1")
    samples = read_to_predict(photos, skip_bad=False)
    assert len(samples) == 10
    (told,) = samples.warnings
    assert "4 files ignored (more/IMG_1.HEIC, a.mov, b.txt, ...)" in told
    assert "Convert HEIC to JPEG or PNG." in told
    message = refused(read_to_predict, photos / "more", skip_bad=False)
    assert "has no images in it" in message
    assert "1 file ignored (IMG_1.HEIC)" in message
    (photos / "more" / "IMG_1.HEIC").unlink()
    assert "HEIC" not in read_to_predict(photos, skip_bad=False).warnings[0]


def test_no_image_left(write: Write, refused: Refused) -> None:
    path = write("t.csv", "image,candidates\na.png,a|b\n")
    assert "none of its 1 images" in refused(read_table, path, skip_bad=True)


def test_the_same_image_twice(write: Write, photos: Path, refused: Refused) -> None:
    message = refused(read_table, write("t.csv", "image,candidates\nphotos/0.png,a\nphotos/0.png,b\n"))
    assert "row 3: id 'photos/0.png' is that of row 2 too. Without a column 'id', the image is the id." in message


def test_the_middle_of_a_wide_image_is_kept_and_colours_too(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40, 0] = 250
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    Image.new("L", (30, 30), 7).save(tmp_path / "grey.png")
    images, broken = image_files([str(tmp_path / "wide.png"), str(tmp_path / "grey.png")])
    assert (broken, images.side, images.channels) == ({}, 25, 3)
    loaded = images.load(10)
    assert (loaded[0, 0, :, 1:-1] == 250).all()
    assert loaded[0, 0].min() > 200  # the outermost pixels see a little of what was cut off
    assert not loaded[0, 1:].any()
    assert (loaded[1] == 7).all()


def test_the_kinds_of_image_that_people_have(tmp_path: Path) -> None:
    upright = Image.fromarray(np.repeat(np.array([[200], [0]], np.uint8), 16, 0).repeat(32, 1))
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    upright.rotate(180).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "deep.png")
    upright.point(lambda value: 255 * (value > 100)).convert("1").save(tmp_path / "ink.png")
    upright.convert("P").save(tmp_path / "palette.gif")
    upright.convert("LA").save(tmp_path / "clear.png")
    names = ["turned.jpg", "deep.png", "ink.png", "palette.gif", "clear.png"]
    loaded = image_files([str(tmp_path / name) for name in names])[0].load(16, channels=1)[:, 0].astype(int)
    assert loaded[0, :6].min() > 190
    assert loaded[0, 10:].max() < 10
    assert (loaded[1] == 40_000 >> 8).all()
    assert loaded[2, 0, 0] == 255
    assert (loaded[3:, 0] == 200).all()
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tiff")
    _, broken = image_files([str(tmp_path / "float.tiff")])[0].decode(4)
    assert "decimal numbers" in broken[0]


def test_images_in_memory_are_resized_like_files() -> None:
    array = (load_digits().images[:4, None] * 15).astype(np.uint8)
    assert Images(array, 8, 1).load(8) is array
    assert Images(array, 8, 1).load(4).shape == (4, 1, 4, 4)
