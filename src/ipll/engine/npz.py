"""NumPy archives that may be damaged: read only once their headers say what can be true."""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipll.engine.files import open_ours

DENSEST = 1032  # bytes that one byte of deflate can stand for, at most


def read_npz(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """-> those of the arrays that are there. ValueError where the file is damaged; OSError where it cannot be read.

    Nothing is unpickled, and no room is made for what the file is too small to hold.
    """
    try:
        with open_ours(path) as file, zipfile.ZipFile(file) as archive:
            there, size = set(archive.namelist()), os.fstat(file.fileno()).st_size
            return {name: _read(archive, f"{name}.npy", size) for name in names if f"{name}.npy" in there}
    except OSError:
        raise
    except (
        EOFError, RuntimeError, SyntaxError, MemoryError, OverflowError, TypeError, AttributeError, struct.error,
        tokenize.TokenError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise ValueError(str(error) or type(error).__name__) from None


def _read(archive: zipfile.ZipFile, name: str, size: int) -> npt.NDArray[Any]:
    _check_size(archive, name, size)
    with archive.open(name) as member:
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array


def _check_size(archive: zipfile.ZipFile, name: str, size: int) -> None:
    """Raises ValueError where an array claims more than an archive of so many bytes can hold."""
    entry = archive.getinfo(name)
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"{name} is of no known version")
        shape, _, kind = read[version](member)
    if kind.hasobject:
        raise ValueError(f"{name} is a pickle, which is never read")
    if math.prod(shape) * kind.itemsize > min(entry.file_size, DENSEST * min(entry.compress_size, size)):
        raise ValueError(f"{name} claims to be larger than the file")
