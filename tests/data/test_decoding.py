"""One decoder: a file has the same pixels as a data set's image and as one of people's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from ipll.data.pictures import Pixels, Unreadable, pictures, read_picture
from ipll.data.sources import load_source
from ipll.errors import DataError
from ipll.own import read_table
from ipll.own.reading.images import image_files

SIZE = 16
NOISE = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
DEEP = np.random.default_rng(1).integers(0, 65536, (SIZE, SIZE), dtype=np.uint16)
INVERSE = {  # EXIF orientation -> what a camera held that way does to an upright picture
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def in_colour(grey: npt.NDArray[np.generic]) -> Pixels:
    return np.broadcast_to(grey.astype(np.uint8), (3, *grey.shape))


def both_ways(path: Path, size: int = SIZE) -> Pixels:
    """-> the pixels of a file, [3, size, size], after `data.source=folder` and `ipll.own` gave the same."""
    root = path.parent / f"{path.stem}-{size}"
    for split in ("train", "test"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            (root / split / name / path.name).symlink_to(path)
    table = root / "t.csv"
    table.write_text(f"image,candidates\n{path},a|b\n")
    source = load_source("folder", root, size=size)
    own = read_table(table).decoded(size, 3).images
    assert own is not None
    for pixels in (*source.train_samples, *source.test_samples):
        np.testing.assert_array_equal(pixels, own.items[0])
    return np.array(source.train_samples[0])


def photograph(width: int, height: int) -> Image.Image:
    """-> a picture in which no two corners are alike."""
    x, y = np.linspace(0, 255, width), np.linspace(0, 255, height)
    bands = [np.broadcast_to(x, (height, width)), np.broadcast_to(y[:, None], (height, width)), np.add.outer(y, x) / 2]
    return Image.fromarray(np.stack(bands, -1).astype(np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("ending", "tolerance"), [("png", 0), ("tiff", 0), ("webp", 0), ("jpg", 6)])
def test_orientation_is_followed(tmp_path: Path, ending: str, tolerance: int, orientation: int) -> None:
    upright = photograph(61, 40)
    upright.save(tmp_path / "upright.png")
    exif = Image.Exif()
    exif[0x0112] = orientation
    taken = upright.transpose(INVERSE[orientation]) if orientation > 1 else upright
    how = {"quality": 98, "subsampling": 0} if ending == "jpg" else {"lossless": True} if ending == "webp" else {}
    taken.save(tmp_path / f"taken.{ending}", exif=exif, **how)
    expected = read_picture(tmp_path / "upright.png", SIZE)
    np.testing.assert_allclose(both_ways(tmp_path / f"taken.{ending}").astype(int), expected, atol=tolerance)


@pytest.mark.parametrize("orientation", [3, 6])
def test_orientation_of_a_jpeg_that_is_decoded_at_a_fraction(tmp_path: Path, orientation: int) -> None:
    upright = photograph(640, 431)
    upright.save(tmp_path / "upright.jpg", quality=98)
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright.transpose(INVERSE[orientation]).save(tmp_path / "taken.jpg", exif=exif, quality=98)
    taken, expected = (read_picture(tmp_path / f"{name}.jpg", SIZE).astype(int) for name in ("taken", "upright"))
    np.testing.assert_allclose(taken, expected, atol=3)


def test_a_photograph_with_a_damaged_exif_is_a_photograph(tmp_path: Path) -> None:
    photograph(SIZE, SIZE).save(tmp_path / "x.png", exif=b"Exif\0\0no TIFF at all")
    np.testing.assert_array_equal(both_ways(tmp_path / "x.png"), np.asarray(photograph(SIZE, SIZE)).transpose(2, 0, 1))


def palette(path: Path) -> Pixels:
    image = Image.fromarray(NOISE).quantize(16)
    image.save(path, transparency=bytes(range(0, 256, 16)))  # an opacity for each colour
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def gif(path: Path) -> Pixels:
    image = Image.fromarray(NOISE).quantize(16)
    image.save(path, transparency=3)
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def cmyk(path: Path) -> Pixels:
    image = Image.fromarray(NOISE).convert("CMYK")
    image.save(path)
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def grey_alpha(path: Path) -> Pixels:
    Image.fromarray(np.stack([NOISE[..., 0], NOISE[..., 1]], -1)).save(path)
    return in_colour(NOISE[..., 0])


def colour_alpha(path: Path) -> Pixels:
    Image.fromarray(np.concatenate([NOISE, NOISE[..., :1]], -1)).save(path)
    return NOISE.transpose(2, 0, 1)


def one_bit(path: Path) -> Pixels:
    Image.fromarray(NOISE[..., 0] > 127).save(path)
    return in_colour(255 * (NOISE[..., 0] > 127))


def sixteen_bits(path: Path) -> Pixels:
    Image.fromarray(DEEP).save(path)
    return in_colour(DEEP >> 8)


def sixteen_bits_turned(path: Path) -> Pixels:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(DEEP).transpose(INVERSE[6]).save(path, exif=exif)
    return in_colour(DEEP >> 8)


def sixteen_bits_big_endian(path: Path) -> Pixels:
    image = Image.frombytes("I;16B", DEEP.shape, DEEP.astype(">u2").tobytes())
    image.save(path)
    return in_colour(DEEP >> 8)


def thirty_two_bits_of_sixteen(path: Path) -> Pixels:
    Image.fromarray(DEEP.astype(np.int32)).save(path)
    return in_colour(DEEP >> 8)


def sixteen_bits_portable(path: Path) -> Pixels:
    path.write_bytes(b"P5 %d %d 65535\n" % (SIZE, SIZE) + DEEP.astype(">u2").tobytes())
    return in_colour(DEEP >> 8)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("palette.png", palette),
        ("palette.gif", gif),
        ("cmyk.tiff", cmyk),
        ("grey_alpha.png", grey_alpha),
        ("colour_alpha.png", colour_alpha),
        ("one_bit.png", one_bit),
        ("one_bit.tiff", one_bit),
        ("deep.png", sixteen_bits),
        ("deep.tiff", sixteen_bits),
        ("turned.png", sixteen_bits_turned),
        ("turned.tiff", sixteen_bits_turned),
        ("big_endian.tiff", sixteen_bits_big_endian),
        ("int32.tiff", thirty_two_bits_of_sixteen),
        ("deep.pgm", sixteen_bits_portable),
    ],
)
def test_the_kinds_of_image_that_people_have(tmp_path: Path, name: str, write: Callable[[Path], Pixels]) -> None:
    expected = write(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(both_ways(tmp_path / name), expected)


def test_a_cmyk_jpeg(tmp_path: Path) -> None:
    photograph(SIZE, SIZE).convert("CMYK").save(tmp_path / "x.jpg", quality=98)
    expected = np.asarray(photograph(SIZE, SIZE)).transpose(2, 0, 1)
    np.testing.assert_allclose(both_ways(tmp_path / "x.jpg").astype(int), expected, atol=12)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.ones((4, 4), np.float32), "its pixels are decimal numbers: save it with 8 or 16 bits"),
        (np.full((4, 4), 70_000, np.int32), "its pixels have more than 16 bits: save it with 8 or 16 bits"),
    ],
)
def test_what_has_no_grey_levels_is_refused_by_name(
    tmp_path: Path, values: npt.NDArray[np.generic], reason: str
) -> None:
    Image.fromarray(values).save(tmp_path / "x.tiff")
    with pytest.raises(Unreadable) as refused:
        read_picture(tmp_path / "x.tiff", 4)
    assert str(refused.value) == f"image '{tmp_path / 'x.tiff'}' cannot be read ({reason})"
    images, _ = image_files([str(tmp_path / "x.tiff")])
    with pytest.raises(DataError, match=reason):
        images.load(4)


def test_decimal_numbers_are_found_before_anything_is_decoded(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tiff")
    assert "decimal numbers" in image_files([str(tmp_path / "x.tiff")])[1][0]


@pytest.mark.parametrize("shape", [(61, 40), (40, 61), (33, 33), (16, 50), (7, 9)])
def test_pictures_of_any_shape(tmp_path: Path, shape: tuple[int, int]) -> None:
    photograph(*shape).save(tmp_path / "x.png")
    pixels = both_ways(tmp_path / "x.png")
    grey = read_picture(tmp_path / "x.png", SIZE, channels=1)
    assert (pixels.shape, grey.shape) == ((3, SIZE, SIZE), (1, SIZE, SIZE))
    assert abs(float(pixels.mean()) - 127.5) < 4  # the middle


def test_a_strip_takes_no_more_memory_than_its_middle(tmp_path: Path) -> None:
    """Resized as a whole, it would be of 224 x 13,440,000 pixels."""
    pixels = np.zeros((1, 60_000), np.uint8)
    pixels[:, 29_900:30_100] = 77
    Image.fromarray(pixels).save(tmp_path / "strip.png")
    assert (read_picture(tmp_path / "strip.png", 224) == 77).all()


def test_folders_are_listed_one_way(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "in/c.jfif", "in/deep/d.tif", ".hidden/e.png", "in/.f.png", "notes.txt", "x.pdf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "in" / "again").symlink_to(tmp_path)  # in circles
    (tmp_path / "in" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert [picture.path for picture in pictures(tmp_path)] == ["a.JPG", "b.png"]
    assert [picture.path for picture in pictures(tmp_path, below=1)] == ["a.JPG", "b.png", "in/c.jfif"]
    everything = [picture.path for picture in pictures(tmp_path, below=float("inf"))]
    assert everything == ["a.JPG", "b.png", "in/c.jfif", "in/deep/d.tif"]
    through = [picture.path for picture in pictures(tmp_path, "in", below=1)]
    assert through == ["in/c.jfif", "in/again/a.JPG", "in/again/b.png", "in/deep/d.tif"]
