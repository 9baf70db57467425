"""Images, as files or in memory, that become one uint8 array when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from ipll.data.pictures import open_image
from ipll.errors import DataError
from ipll.own.reading.problems import Problems

Bytes = npt.NDArray[np.uint8]
BLOCK = 256  # images that a thread takes at a time
SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")
GREY = frozenset({"1", "L", "LA", "La", *SIXTEEN_BITS})


@dataclass(frozen=True, eq=False)
class Images:
    """Images that are decoded on demand and are never held as floats."""

    items: Sequence[str] | Bytes  # paths, or [n, channels, height, width]
    side: int  # the median of their shorter sides: the size to load where nothing else decides
    channels: int  # 1 where all of them are grey, else 3

    def __len__(self) -> int:
        return len(self.items)

    def load(self, size: int, channels: int | None = None) -> Bytes:
        """-> uint8 [n, channels, size, size]; a DataError that names the files where some cannot be decoded.

        The shorter side becomes `size`, the middle is cut out.
        """
        array, broken = self.decode(size, channels)
        problems = Problems("images", "image")
        for index, reason in broken.items():
            problems.add([index], reason, "Replace the files.")
        problems.stop()
        return array

    def decode(self, size: int, channels: int | None = None) -> tuple[Bytes, dict[int, str]]:
        """-> uint8 [n, channels, size, size], and why some could not be decoded (index -> reason; these are black)."""
        channels = channels or self.channels
        if isinstance(self.items, np.ndarray) and self.items.shape[1:] == (channels, size, size):
            return self.items, {}
        array = np.zeros((len(self), channels, size, size), np.uint8)

        def one(index: int) -> None:
            with self._open(index) as image:
                array[index] = _square(image, size, channels)

        return array, _each(self.items, one)

    def take(self, index: npt.NDArray[np.int64]) -> Images:
        """-> the images at these positions."""
        items = self.items[index] if isinstance(self.items, np.ndarray) else [self.items[i] for i in index.tolist()]
        return Images(items, self.side, self.channels)

    def _open(self, index: int) -> Image.Image:
        if isinstance(self.items, np.ndarray):
            pixels = self.items[index].transpose(1, 2, 0)
            return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if self.channels == 1 else pixels))
        return open_image(self.items[index])


def image_files(paths: Sequence[str]) -> tuple[Images, dict[int, str]]:
    """-> the images in these files, and why some cannot be used (index -> reason).

    Only the heads of the files are read: what is broken further down is found when they are decoded.
    """
    sides = np.zeros(len(paths), np.int64)
    colour = np.zeros(len(paths), np.bool_)

    def one(index: int) -> None:
        with open_image(paths[index]) as image:
            sides[index], colour[index] = min(image.size), image.mode not in GREY

    broken = _each(paths, one)
    side = int(np.median(sides[sides > 0])) if sides.any() else 0
    return Images(paths, side, 3 if colour.any() else 1), broken


def image_array(array: Bytes) -> Images:
    """-> the images of an array [n, height, width], [n, height, width, channels] or [n, channels, height, width].

    Where the last axis has the length 1 or 3 it is the channels, else the second one is.
    """
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3):
        raise DataError(
            f"X has the shape {array.shape}: images are [n, height, width], [n, height, width, channels] or "
            "[n, channels, height, width], with 1 or 3 channels."
        )
    return Images(array, min(array.shape[2:]), array.shape[1])


def _each(items: Sequence[str] | Bytes, one: Callable[[int], None]) -> dict[int, str]:
    """Calls `one` with the index of each item, in as many threads as there are cores. -> what went wrong, by index."""
    n = len(items)

    def block(start: int) -> dict[int, str]:
        broken = {}
        for index in range(start, min(start + BLOCK, n)):
            try:
                one(index)
            except Exception as error:  # each decoder has its own way to complain
                broken[index] = f"image '{items[index]}' {_reason(error)}"
        return broken

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        try:
            found = list(pool.map(block, range(0, n, BLOCK)))
        finally:
            pool.shutdown(cancel_futures=True)  # an interruption need not wait for all the others
    return {index: reason for broken in found for index, reason in broken.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is missing"
    if isinstance(error, UnidentifiedImageError):
        return "is not an image"
    if isinstance(error, IsADirectoryError):
        return "is a folder"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


def _square(image: Image.Image, size: int, channels: int) -> Bytes:
    """-> uint8 [channels, size, size]: the middle of the image, the right way up."""
    if image.size != (size, size):
        # A JPEG is decoded at half or less of its size where that leaves twice the pixels that are needed.
        image.draft(None, (2 * size, 2 * size))
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in SIXTEEN_BITS:
        image = _eight_bits(image)
    elif image.mode == "F":
        raise ValueError("its pixels are decimal numbers: save it with 8 or 16 bits")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size, size):
        width, height = image.size
        short = min(image.size)
        left, top = (width - short) / 2, (height - short) / 2
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + short, top + short))
    array: Bytes = np.asarray(image, np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """-> a 16-bit grey image with 8 bits: Pillow's own conversion would cut off all above 255."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have more than 16 bits: save it with 8 or 16 bits")
    return Image.fromarray((values.astype(np.int64) >> 8).astype(np.uint8))
