"""MATLAB's .mat files of version 5 to 7, as they come from anybody: arrays of numbers, sparse ones, and text.

What scipy.io.loadmat does with a damaged one may end the process. Here nothing is taken from a place that the file does
not have, and nothing is unpacked that would not fit.

A file is a head of 128 bytes, and elements: a tag (kind, bytes) and content, packed by zlib or not. An array is an
element of elements: its class, its shape, its name, its values; of a sparse one rows, where columns begin, and values.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_matrix

from ipll.engine import machine
from ipll.errors import DataError

WAY_OUT = "Save it again in MATLAB with '-v7', or in Python with scipy.io.savemat or numpy.savez."
HEAD, START, PIECE = 128, 2**12, 2**20  # bytes: of the file's head; that hold an array's name; unpacked at a time
ORDER = {b"IM": "<", b"MI": ">"}
MATRIX, PACKED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, CHAR, SPARSE, PLAIN, COMPLEX = 1, 4, 5, range(6, 16), 0x800  # classes of arrays, and a flag
KINDS = {CELL: "cell array", 2: "struct", 3: "object", 16: "function", 17: "object"}

Parts = Iterator[tuple[int, memoryview]]  # (kind, content)


def read_mat(path: Path, wanted: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """-> those of the arrays that are wanted, and the names of the others. A file that is none, or damaged, is a
    ValueError or a DataError."""
    found: dict[str, Any] = {}
    others: list[str] = []
    with path.open("rb") as file:
        head = file.read(HEAD)
        if head.startswith((b"MATLAB 7.3", b"\x89HDF")):
            raise DataError(f"{path} is a .mat of version 7.3, which is HDF5 and cannot be read. {WAY_OUT}")
        if (order := ORDER.get(head[126:128])) is None:
            raise DataError(f"{path} is no .mat file of version 5 to 7. {WAY_OUT}")
        for kind, begin, size in _tags(file, order):
            name = _name(_content(path, file, kind, size if kind == PACKED else min(size, START), START), order)
            if name not in wanted:
                others += [name] * bool(name)
                continue
            file.seek(begin)
            found[name] = _array(_content(path, file, kind, size, machine.memory()), order, name)
    return found, others


def _tags(file: IO[bytes], order: str) -> Iterator[tuple[int, int, int]]:
    """-> kind, where the content begins, and its bytes, of each array; the file is there."""
    while tag := file.read(8):
        kind, size = struct.unpack(f"{order}II", tag)
        begin = file.tell()
        if kind not in (MATRIX, PACKED):
            raise ValueError(f"an element of the kind {kind} where an array is expected")
        yield kind, begin, size
        file.seek(begin + size)


def _content(path: Path, file: IO[bytes], kind: int, size: int, most: int) -> memoryview:
    """-> what an array consists of, as far as these bytes hold it; where that is more than `most`, its beginning, or,
    if all of it was wanted, a DataError."""
    if kind == MATRIX:
        return memoryview(file.read(size))
    unpack, content, end = zlib.decompressobj(), bytearray(), file.tell() + size
    while len(content) < most and (piece := unpack.unconsumed_tail or file.read(min(PIECE, end - file.tell()))):
        content += unpack.decompress(piece, min(PIECE, most - len(content)))
    if unpack.unconsumed_tail and most > START:
        raise DataError(f"{path} would unpack to more than this machine's memory could hold.")
    return memoryview(content)[8:]  # behind a tag of its own


def _parts(content: memoryview, order: str) -> Parts:
    """-> the elements within; up to four bytes of content may stand in the tag itself."""
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        begin, small = at + 8, kind >> 16
        if small:
            kind, size, begin = kind & 0xFFFF, small, at + 4
        at = at + 8 if small else begin + size + -size % 8
        yield kind, content[begin : begin + size]


def _name(content: memoryview, order: str) -> str:
    parts = _parts(content, order)
    return bytes([*_all(parts, 3)][2]).decode("latin-1")


def _all(parts: Parts, count: int) -> list[memoryview]:
    found = [content for _, (_, content) in zip(range(count), parts, strict=False)]
    if len(found) < count:
        raise ValueError("it ends within an array")
    return found


def _array(content: memoryview, order: str, name: str) -> Any:
    """-> a NumPy array, of text one of strings; or a sparse one."""
    parts = _parts(content, order)
    flags, dims, _ = _all(parts, 3)
    word = int(np.frombuffer(flags, f"{order}u4", 1)[0])
    kind, shape = word & 0xFF, tuple(np.frombuffer(dims, f"{order}i4").tolist())
    if kind == CELL:
        return np.array([_text(_array(cell, order, name)) for _, cell in parts]).reshape(-1)
    if kind not in (CHAR, SPARSE, *PLAIN) or word & COMPLEX:
        raise ValueError(f"'{name}' is a {KINDS.get(kind, 'thing of another kind')}, not numbers or text")
    if kind == CHAR:
        return _lines(*next(parts, (2, memoryview(b""))), shape, order)
    if kind == SPARSE:
        rows, begins, values = (_numbers(*part, order) for _, part in zip(range(3), parts, strict=False))
        held = int(begins[-1])
        found = csc_matrix((values[:held], rows[:held], begins), shape)
        found.check_format(full_check=True)  # a wrong row leads anywhere
        return found
    values = _numbers(*next(parts), order)
    if values.size != math.prod(shape) or min(shape) < 0:
        raise ValueError(
            f"'{name}' says that it has {' x '.join(map(str, shape))} values, but there are {values.size:,}"
        )
    return values.reshape(shape, order="F")


def _numbers(kind: int, content: memoryview, order: str) -> npt.NDArray[Any]:
    if kind not in NUMBERS:
        raise ValueError(f"numbers of the kind {kind}, which there are not")
    return np.frombuffer(content, f"{order}{NUMBERS[kind]}").astype(NUMBERS[kind], copy=False)


def _lines(kind: int, content: memoryview, shape: tuple[int, ...], order: str) -> npt.NDArray[np.str_]:
    """-> the rows of an array of characters."""
    coding = TEXTS[kind] + ({"<": "-le", ">": "-be"}[order] if "16" in TEXTS[kind] or "32" in TEXTS[kind] else "")
    letters = np.array([*bytes(content).decode(coding)], np.str_)
    if not letters.size:
        return np.array([""])
    return np.array(["".join(row) for row in letters.reshape(shape, order="F").reshape(shape[0], -1)])


def _text(cell: Any) -> str:
    if cell.dtype.kind != "U" or cell.size != 1:
        raise ValueError("a cell holds something else than text")
    return str(cell[0])
