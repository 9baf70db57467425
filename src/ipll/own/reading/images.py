"""Images, as files or in memory, that become one uint8 array when they are asked for."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from ipll.data.pictures import Pixels, Unreadable, read_heads, read_pictures
from ipll.errors import DataError
from ipll.own.reading.problems import Problems


@dataclass(frozen=True, eq=False)
class Images:
    """Images that are decoded on demand and are never held as floats."""

    items: Sequence[str] | Pixels  # paths, or [n, channels, height, width]
    side: int  # the median of their shorter sides: the size to load where nothing else decides
    channels: int  # 1 where all of them are grey, else 3

    def __len__(self) -> int:
        return len(self.items)

    def load(self, size: int, channels: int | None = None) -> Pixels:
        """-> uint8 [n, channels, size, size]; a DataError that names the files where some cannot be decoded.

        The shorter side becomes `size`, the middle is cut out.
        """
        array, broken = self.decode(size, channels)
        problems = Problems("images", "image")
        for index, reason in broken.items():
            problems.add([index], reason, "Replace the files.")
        problems.stop()
        return array

    def decode(self, size: int, channels: int | None = None) -> tuple[Pixels, dict[int, str]]:
        """-> uint8 [n, channels, size, size], and why some could not be decoded (index -> reason; these are black)."""
        channels = channels or self.channels
        if isinstance(self.items, np.ndarray) and self.items.shape[1:] == (channels, size, size):
            return self.items, {}
        array = np.zeros((len(self), channels, size, size), np.uint8)
        broken = {}
        for index, found in enumerate(chain.from_iterable(read_pictures(self.items, size, channels))):
            if isinstance(found, Unreadable):
                broken[index] = str(found)
            else:
                array[index] = found
        return array, broken

    def take(self, index: npt.NDArray[np.int64]) -> Images:
        """-> the images at these positions."""
        items = self.items[index] if isinstance(self.items, np.ndarray) else [self.items[i] for i in index.tolist()]
        return Images(items, self.side, self.channels)


def image_files(paths: Sequence[str]) -> tuple[Images, dict[int, str]]:
    """-> the images in these files, and why some cannot be used (index -> reason).

    Only the heads of the files are read: what is broken further down is found when they are decoded.
    """
    heads = list(chain.from_iterable(read_heads(paths)))
    broken = {index: str(head) for index, head in enumerate(heads) if isinstance(head, Unreadable)}
    whole = [head for head in heads if not isinstance(head, Unreadable)]
    side = int(np.median([head.side for head in whole])) if whole else 0
    return Images(paths, side, 1 if all(head.grey for head in whole) else 3), broken


def to_be_found(folder: str, name: str) -> str:
    """-> of an image that is missing: what is there under a name that is written otherwise, and what to do; else ''."""
    if os.path.lexists(os.path.join(folder, name)):
        return ""
    coded = "a file whose name has its letters coded otherwise ({}) is there. Rename it, or write its name as it is"
    others = [(name.replace("\\", "/"), "with '/' it is there. Write '/' in paths")]
    others += [(unicodedata.normalize(form, name), coded.format(form)) for form in ("NFC", "NFD")]
    return next((f", but {how}" for other, how in others if os.path.isfile(os.path.join(folder, other))), "")


def image_array(array: Pixels) -> Images:
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
