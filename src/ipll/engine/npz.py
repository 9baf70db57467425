"""NumPy's archives, read without trusting them: what a member is and how large, its header says before any of it is
read. Nothing is unpickled, and nothing is allocated that the file does not hold."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipll.engine.regular import check_regular

LARGEST = 2**31  # bytes of a compressed member; a few kilobytes of those could fill any memory
DAMAGED = (
    EOFError, RuntimeError, SyntaxError, MemoryError, OverflowError, TypeError, AttributeError, KeyError, struct.error,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_npz(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """-> those of these arrays that the archive holds, by name.

    What is no archive, or is damaged, is a ValueError that names the member; what cannot be read at all an OSError.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            found = set(archive.namelist())
            return {name: _member(archive, f"{name}.npy") for name in names if f"{name}.npy" in found}
    except DAMAGED as error:
        raise ValueError(str(error) or type(error).__name__) from None


def _member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    info = archive.getinfo(name)
    if info.flag_bits & 1:
        raise ValueError(f"'{name}' is encrypted")
    if info.compress_type != zipfile.ZIP_STORED and info.file_size > LARGEST:
        raise ValueError(f"'{name}' would unpack to {info.file_size:,} bytes, more than {LARGEST:,}")
    try:
        with archive.open(info) as file:
            _check_header(file, name, info.file_size)
        with archive.open(info) as file:
            array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except DAMAGED as error:  # or a method of compression that nobody has
        raise ValueError(f"'{name}' cannot be unpacked ({error})") from None


def _check_header(file: IO[bytes], name: str, size: int) -> None:
    """A ValueError unless the header is that of plain values, just as many as the member has bytes for."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(file)
    except (ValueError, *DAMAGED) as error:
        raise ValueError(f"'{name}' has a damaged header ({error})") from None
    if dtype.hasobject:
        raise ValueError(f"'{name}' is a pickle, which may hold any code: it is not read")
    claimed = math.prod(shape) * dtype.itemsize
    if file.tell() + claimed != size:
        raise ValueError(f"'{name}' says that it has {claimed:,} bytes of values, but there are {size - file.tell():,}")
