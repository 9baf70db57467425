"""Image files: which there are in a folder, and one of them as an array of the size that is asked for.

Images are listed and decoded nowhere else, so that a file has the same pixels wherever it is learnt from.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from ipll.engine.machine import cores
from ipll.engine.regular import check_regular
from ipll.errors import DataError

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".png", ".apng", ".bmp", ".webp"),
    *(".avif", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm", ".tga", ".gif"),
)
JUNK = frozenset({"thumbs.db", "desktop.ini"})  # what Windows leaves in folders
BLOCK_BYTES = 2**21  # of the images that a thread decodes at a time
HEADS = 256  # files whose heads a thread reads at a time
LONG = 16  # times as long as wide: more of an image than this is cut off before it is resized, and takes no memory
SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")
GREY = frozenset({"1", "L", "LA", "La", *SIXTEEN_BITS})
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

Pixels = npt.NDArray[np.uint8]
R = TypeVar("R")


class Picture(NamedTuple):
    """An image file as the index of a prepared data set keeps it."""

    path: str  # relative to the data set's folder, with slashes
    label: int
    bytes: int
    modified: int  # nanoseconds


class Head(NamedTuple):
    """What the head of an image file says."""

    side: int  # the shorter one
    grey: bool


class Unreadable(DataError):
    """An image that cannot be used."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"image '{name}' {reason}")
        self.reason = reason  # reads on from the name


def pictures(folder: Path, within: str = "", label: int = -1, *, below: float = 0) -> list[Picture]:
    """-> the image files of the folder `within` of a data set's folder, sorted by name, then those of the folders in
    it, `below` levels down; none where it is not there.

    Hidden files, links that lead nowhere and what is no image by its ending (Thumbs.db) are passed over. A link to a
    folder is followed on the last level only, so that none leads in circles.
    """
    found = []
    for path, entry in _files(folder, within, below):
        if is_picture(path):
            status = entry.stat()
            found.append(Picture(path, label, status.st_size, status.st_mtime_ns))
    return found


def passed_over(folder: Path, *, below: float = 0) -> list[str]:
    """-> the files that `pictures` passes over, without those that are hidden or that a system leaves in folders."""
    files = _files(folder, "", below)
    return [path for path, entry in files if not is_picture(path) and entry.name.lower() not in JUNK]


def is_picture(path: str) -> bool:
    """-> whether it is an image file, by its ending."""
    return os.path.splitext(path)[1].lower() in SUFFIXES


def _files(folder: Path, within: str, below: float) -> Iterator[tuple[str, os.DirEntry[str]]]:
    deeper = []
    for entry in entries(folder / within):
        path = f"{within}/{entry.name}" if within else entry.name
        if not os.path.isdir(entry):
            if os.path.exists(entry):
                yield path, entry
        elif below == 1 or (below and not entry.is_symlink()):
            deeper.append(path)
    for path in deeper:
        yield from _files(folder, path, below - 1)


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """-> what a folder holds, hidden entries left out, sorted by name; nothing where there is no such folder."""
    try:
        with os.scandir(folder) as scan:
            return sorted((e for e in scan if not e.name.startswith(".")), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror or error}. Check its permissions.") from error


def folders(folder: Path) -> list[str]:
    """-> the names of the folders in a folder, hidden ones left out, sorted."""
    return [entry.name for entry in entries(folder) if os.path.isdir(entry)]  # False for a link that leads nowhere


def open_image(what: str | Path | Pixels) -> Image.Image:
    """-> the image in a regular file, of a format that is decoded here: PostScript is a program, for another one. Or
    that of an array [channels, height, width]."""
    if isinstance(what, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(what[0] if len(what) == 1 else what.transpose(1, 2, 0)))
    check_regular(what)
    image = Image.open(what, formats=_formats())
    if image.mode == "F":
        image.close()
        raise ValueError("its pixels are decimal numbers: save it with 8 or 16 bits")
    return image


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in Image.ID if name != "EPS")


def read_head(path: str | Path) -> Head:
    """-> what the head of a file says. What is broken further down is found when it is decoded."""
    with _told(path), open_image(path) as image:
        return Head(min(image.size), image.mode in GREY)


def read_picture(
    what: str | Path | Pixels, size: int, channels: int = 3, margin: float = 1.0, resampling: str = "bilinear"
) -> Pixels:
    """-> the image the right way up, [channels, size, size], in grey or in colour.

    The shorter side becomes `size` x `margin`, the middle is cut out; at test in the official code the margin is
    256 / 224. An image that has the size already stays as it is. `resampling` is one of FILTERS.
    """
    with _told(what), open_image(what) as image:
        short, side = round(size * margin), min(image.size)
        width, height = (short * min(length, LONG * side) // side for length in image.size)
        # A JPEG is decoded at half or less of its size where that leaves twice the pixels that are needed.
        image.draft(None, (2 * width, 2 * height))
        before = image.size
        image.load()
        with suppress(Exception):  # a photograph with a damaged EXIF is a photograph
            ImageOps.exif_transpose(image, in_place=True)
        picture = _eight_bits(image).convert("L" if channels == 1 else "RGB")
        if picture.size != (size, size):
            most = LONG * min(picture.size)
            picture = _middle(picture, min(picture.width, most), min(picture.height, most))
            upright = (width, height) if image.size == before else (height, width)
            picture = picture.resize(upright, FILTERS[resampling])
            picture = _middle(picture, size, size)
        array: Pixels = np.asarray(picture)
        return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _eight_bits(image: Image.Image) -> Image.Image:
    """-> an opaque image with 8 bits: Pillow's own conversion of 16 bits would cut off all above 255, and it warns of
    palettes with transparency."""
    image.info.pop("transparency", None)
    if image.mode not in SIXTEEN_BITS:
        return image
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have more than 16 bits: save it with 8 or 16 bits")
    return Image.fromarray((values.astype(np.int64) >> 8).astype(np.uint8))


def _middle(image: Image.Image, width: int, height: int) -> Image.Image:
    if image.size == (width, height):
        return image
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


@contextmanager
def _told(name: object) -> Iterator[None]:
    """What goes wrong with an image is told by its name: each decoder has its own way to complain."""
    try:
        yield
    except Exception as error:
        raise Unreadable(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if isinstance(error, UnidentifiedImageError):
        return "is not an image"
    if isinstance(error, IsADirectoryError):
        return "is a folder"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


Found = Iterator[list[R | Unreadable]]


def read_heads(paths: Sequence[str | Path]) -> Found[Head]:
    """-> what the heads of these files say, in order, in blocks."""
    return _shared(lambda index: read_head(paths[index]), len(paths), HEADS)


def read_pictures(
    items: Sequence[str | Path] | Pixels, size: int, channels: int = 3, margin: float = 1.0, jobs: int = 0
) -> Found[Pixels]:
    """-> these images as of `read_picture`, in order, in blocks; `jobs` threads (0: one per core) work ahead."""
    step = max(1, BLOCK_BYTES // (channels * size * size))
    return _shared(lambda index: read_picture(items[index], size, channels, margin), len(items), step, jobs)


def _shared(one: Callable[[int], R], count: int, step: int, jobs: int = 0) -> Found[R]:
    """-> what `one` gives for each index, or why it cannot, `step` at a time; threads work ahead of who asks for it."""
    return in_blocks(lambda indices: [attempt(one, index) for index in indices], count, step, jobs)


def attempt(one: Callable[[int], R], index: int) -> R | Unreadable:
    """-> what `one` gives for this image, or why it cannot."""
    try:
        return one(index)
    except Unreadable as unreadable:
        return unreadable


def in_blocks(block: Callable[[range], R], count: int, step: int, jobs: int = 0) -> Iterator[R]:
    """-> what `block` gives for every `step` indices up to `count`, in order; `jobs` threads (0: one per core) work
    ahead of who asks for it."""
    jobs = jobs or cores()
    blocks = (range(start, min(start + step, count)) for start in range(0, count, step))
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            pending.extend(pool.submit(block, indices) for indices in islice(blocks, 2 * jobs))
            while pending:
                ready = pending.popleft().result()
                pending.extend(pool.submit(block, indices) for indices in islice(blocks, 1))
                yield ready
        finally:
            pool.shutdown(cancel_futures=True)  # an interruption need not wait for all the others
