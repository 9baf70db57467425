"""Reads pickled data sets without trusting them: numbers, text and plain containers of these, nothing else.

A pickle from the internet is a program. This reader never calls what the file names. The four names that a pickled
array needs are answered with stand-ins that keep the numbers and refuse every other use; any other name is an error.
Not even numpy's own types are handed out: through `dtype.__setstate__` a file may declare raw bytes to be Python
objects, and so point numpy at any address.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ipll.engine.regular import check_regular
from ipll.errors import DataError

_NDARRAY = "numpy.ndarray"  # a file only passes this type on to `_reconstruct`, so a word in its place will do


class _Dtype:
    """Stands in for `numpy.dtype`: a type of plain numbers with a byte order."""

    def __init__(self, code: str, align: int = 0, copy: int = 1) -> None:
        if not re.fullmatch(r"b1|[iu][1248]|f[248]", code):
            raise pickle.UnpicklingError(f"arrays of type '{code}' are not admitted")
        self.dtype: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """`state`: version, byte order, then fields, sizes and flags, which a plain number does not have."""
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for `numpy._core.multiarray._reconstruct`, and for the empty array which that makes."""

    def __init__(self, kind: str, shape: tuple[int, ...], code: str | bytes) -> None:
        if kind != _NDARRAY:
            raise pickle.UnpicklingError("an array of a class of its own is not admitted")
        self.values: npt.NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """`state`: version, shape, type, is it in Fortran's order?, the bytes (Python 2 wrote them as text)."""
        _, shape, kind, fortran, raw = state
        buffer = bytearray(raw, "latin1") if isinstance(raw, str) else bytearray(memoryview(raw))
        self.values = np.frombuffer(buffer, kind.dtype).reshape(shape, order="F" if fortran else "C")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # numpy 2
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="latin1")  # as numpy asks for arrays that Python 2 wrote
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise DataError(
                f"{self.path} asks for '{module}.{name}', which no data file needs; nothing of it was run. "
                "Delete the file and fetch the data set again from a place you trust."
            )
        return _ADMITTED[module, name]


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """-> `value` with every stand-in replaced by its array. `done` holds the containers met so far, by identity."""
    if isinstance(value, _Array):
        return value.values
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in done:
        done[id(value)] = None
        if isinstance(value, dict):
            done[id(value)] = {key: _plain(item, done) for key, item in value.items()}
        else:
            done[id(value)] = type(value)(_plain(item, done) for item in value)
    if done[id(value)] is None:
        raise pickle.UnpicklingError("a container holds itself")
    return done[id(value)]


def load_pickle(path: Path) -> Any:
    """-> what the pickle holds: numbers, text, arrays of numbers, and dicts, lists and tuples of these."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            return _plain(_Unpickler(file, path).load(), {})
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    except Exception as error:  # a damaged pickle is a damaged program: it may fail in any way
        said = " ".join(str(error).split())
        raise DataError(f"{path} is damaged ({said}). Delete it and fetch the data set again.") from error
