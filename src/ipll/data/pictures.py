"""Image files: which there are in a folder, and one of them as an array of the size that is asked for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from ipll.engine.regular import check_regular
from ipll.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"})
BLOCK_BYTES = 2**21  # of the images that a thread decodes at a time

Images = npt.NDArray[np.uint8]


class Picture(NamedTuple):
    """An image file as the index of a prepared data set keeps it."""

    path: str  # relative to the data set's folder, with slashes
    label: int
    bytes: int
    modified: int  # nanoseconds


def pictures(folder: Path, within: str, label: int) -> list[Picture]:
    """-> the image files of the folder `within` of a data set's folder, sorted by name; none where it is not there.

    Hidden files, links that lead nowhere and what is no image by its ending (Thumbs.db) are passed over.
    """
    found = []
    for entry in entries(folder / within):
        if os.path.splitext(entry.name)[1].lower() in SUFFIXES and os.path.isfile(entry):
            status = entry.stat()
            found.append(Picture(f"{within}/{entry.name}", label, status.st_size, status.st_mtime_ns))
    return found


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


def open_image(path: str | Path) -> Image.Image:
    """-> the image in a regular file, of a format that is decoded here: PostScript is a program, for another one."""
    check_regular(path)
    return Image.open(path, formats=_formats())


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in Image.ID if name != "EPS")


def read_picture(path: Path, size: int, margin: float) -> Images:
    """-> the image in colour, [3, size, size].

    The shorter side becomes `size` x `margin`, the middle is cut out, as at test in the official code (256 / 224). An
    image that has the size already stays as it is.
    """
    try:
        with open_image(path) as image:
            short = round(size * margin)
            width, height = ((short * side) // min(image.size) for side in image.size)
            if image.size == (size, size):
                picture = image.convert("RGB")
            else:
                # A JPEG is decoded at half or less of its size where that leaves twice the pixels that are needed.
                image.draft(None, (2 * width, 2 * height))
                picture = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
                left, top = round((width - size) / 2), round((height - size) / 2)
                picture = picture.crop((left, top, left + size, top + size))
            return np.asarray(picture).transpose(2, 0, 1)
    except Exception as error:  # each decoder has its own way to complain
        raise DataError(
            f"{path} cannot be read as an image ({error}). Replace it, or extract the data set again."
        ) from error


def read_pictures(paths: Sequence[Path], size: int, margin: float, jobs: int = 0) -> Iterator[Images]:
    """-> all these images, in order, in blocks [block, 3, size, size]; `jobs` threads (0: one per core) work ahead."""
    jobs, step = jobs or _cores(), max(1, BLOCK_BYTES // (3 * size * size))
    blocks = (paths[start : start + step] for start in range(0, len(paths), step))
    pending: deque[Future[Images]] = deque()

    def read(paths: Sequence[Path]) -> Images:
        return np.stack([read_picture(path, size, margin) for path in paths])

    with ThreadPoolExecutor(jobs) as pool:
        try:
            pending.extend(pool.submit(read, block) for block in islice(blocks, 2 * jobs))
            while pending:
                ready = pending.popleft().result()
                pending.extend(pool.submit(read, block) for block in islice(blocks, 1))
                yield ready
        finally:
            pool.shutdown(cancel_futures=True)


def _cores() -> int:
    """-> how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
