"""MATLAB's .mat and NumPy's .npz, as data sets of partial labels come, become the columns of a table."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import csr_matrix, issparse

from ipll.engine import machine
from ipll.engine.npz import DAMAGED, read_npz
from ipll.errors import DataError
from ipll.own.reading.mat_files import WAY_OUT, read_mat
from ipll.own.reading.problems import Problems

FIRST = {".mat": 1, ".npz": 0}  # the number of the first class and the first sample: MATLAB counts from 1
CALLED = {  # a column -> what files call it
    "features": ("features", "data", "X"),
    "candidates": ("candidates", "partial_target"),
    "label": ("label", "truth", "target"),
    "classes": ("classes", "class_names"),
    "id": ("id", "ids"),
}
ON_EITHER_SIDE = ("partial_target", "target")  # the field's own names: [classes, n] as often as [n, classes]
KNOWN = [name for names in CALLED.values() for name in names]

Arrays = dict[str, Any]  # column -> what the file has for it, a NumPy array or a sparse matrix


class Matrices(NamedTuple):
    """The columns of such a file."""

    columns: Mapping[str, Any]  # name -> Arrow array
    first: int  # the number of the first sample
    notes: list[str]


def read_matrices(path: Path) -> Matrices:
    """-> features [n, d], and candidates, labels and ids where there are any. What is wrong with it is a DataError."""
    first = FIRST[path.suffix.lower()]
    try:
        read, others = read_mat(path, KNOWN) if first else _read_npz(path)
    except (DataError, OSError):
        raise
    except (ValueError, LookupError, StopIteration, *DAMAGED) as error:
        way_out = WAY_OUT if first else "Write it again with numpy.savez."
        raise DataError(f"{path} cannot be read ({' '.join(str(error).split())}). {way_out}") from error
    called = {column: name for column, names in CALLED.items() if (name := _only(path, column, names, read))}
    if "features" not in called:
        raise DataError(
            f"{path}: no features, but {', '.join(map(repr, [*read, *others])) or 'nothing'}. Call them "
            f"{_either('features')}, [n, d]; candidate sets {_either('candidates')}; true labels {_either('label')}."
        )
    _check_room(path, {name: array.shape for name, array in read.items()})
    columns, notes = _columns(path, {column: read[name] for column, name in called.items()}, called, first)
    if others:
        notes.append(f"{path}: ignored: {', '.join(map(repr, others))}.")
    return Matrices(columns, first, notes)


def _either(column: str) -> str:
    return " or ".join(map(repr, CALLED[column]))


def _only(path: Path, column: str, names: Sequence[str], read: Arrays) -> str:
    found = [name for name in names if name in read]
    if len(found) > 1:
        raise DataError(f"{path}: both '{found[0]}' and '{found[1]}'. Keep one of them: the {column}.")
    return found[0] if found else ""


def _read_npz(path: Path) -> tuple[Arrays, list[str]]:
    found: Arrays = dict(read_npz(path, KNOWN))
    with zipfile.ZipFile(path) as archive:
        return found, [name for one in archive.namelist() if (name := one.removesuffix(".npy")) not in found]


def _check_room(path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """A DataError where the values could not be held, each in eight bytes: a sparse array says with few that it has
    billions of them."""
    sizes = {name: 8 * math.prod(map(int, shape)) for name, shape in shapes.items()}
    if sum(sizes.values()) > machine.memory():
        largest = max(sizes, key=lambda name: sizes[name])
        raise DataError(
            f"{path}: '{largest}' has {' x '.join(map(str, shapes[largest]))} values, {sizes[largest]:,} bytes, and "
            "all arrays together more than this machine's memory could hold. Write it in several files."
        )


def _columns(path: Path, arrays: Arrays, called: Mapping[str, str], first: int) -> tuple[dict[str, Any], list[str]]:
    """-> Arrow columns, and what is to be told of them."""
    features = _features(path, called["features"], arrays["features"])
    n, d = features.shape
    columns = {"features": pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), d)}
    rows = {
        column: _by_sample(path, called[column], arrays[column], n)
        for column in ("candidates", "label")
        if column in arrays and not (column == "label" and _is_vector(arrays["label"], n))
    }
    width = max((one.shape[1] for one in rows.values()), default=0)
    names = _names(path, arrays["classes"], width) if "classes" in arrays else None
    notes = [f"{path}: classes are called by their number, from {first}."] * bool(width and names is None)
    for column, matrix in rows.items():
        if matrix.shape[1] != width:
            raise DataError(f"{path}: '{called[column]}' has {matrix.shape[1]} classes, but there are {width}.")
    if "candidates" in rows:
        columns["candidates"] = _lists(rows["candidates"], names, first)
    if "label" in rows:
        columns["label"] = pa.array(_one_each(path, called["label"], rows["label"], names, first))
    elif "label" in arrays:
        columns["label"] = pa.array(_named(path, called["label"], arrays["label"], n, names, first))
    if "id" in arrays:
        columns["id"] = pa.array(_texts(path, called["id"], arrays["id"], n))
    return columns, notes


def _features(path: Path, name: str, array: Any) -> npt.NDArray[np.float32]:
    if array.ndim != 2 or array.dtype.kind not in "biuf" or not array.shape[1]:
        raise DataError(
            f"{path}: '{name}' has the shape {array.shape} and holds {array.dtype}. Features are numbers, [n, d]; "
            "images are files that a table names."
        )
    if not array.shape[0]:
        raise DataError(f"{path} has no samples. '{name}' has one row per sample.")
    dense = array.toarray() if issparse(array) else array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is found later
        return np.ascontiguousarray(dense, np.float32)


def _by_sample(path: Path, name: str, array: Any, n: int) -> Any:
    """-> a matrix of 0 and 1 as a sparse one, [n, classes], whichever side of it is the samples."""
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: '{name}' has the shape {array.shape} and holds {array.dtype}. It is a matrix of 0 and 1, "
            "[samples, classes]."
        )
    if n not in array.shape:
        raise DataError(
            f"{path}: '{name}' has the shape {array.shape}, but there are {n:,} samples, the rows of the features. One "
            "of its sides must be the samples; of features [d, n], save the transpose."
        )
    if array.shape == (n, n) and name in ON_EITHER_SIDE:
        ours = "candidates" if name in CALLED["candidates"] else "label"
        raise DataError(
            f"{path}: '{name}' has as many classes as samples, {n:,}, so that nothing tells which side is which. Call "
            f"it '{ours}', which has a row for each sample."
        )
    matrix = csr_matrix(array if array.shape[0] == n else array.T, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not (matrix.data == 1).all():
        odd = matrix.data[matrix.data != 1][0]
        raise DataError(
            f"{path}: '{name}' holds {odd}. It is a matrix of 0 and 1: is it one of the candidates, or not?"
        )
    return matrix


def _names(path: Path, given: Any, width: int) -> list[str]:
    names = _texts(path, "classes", given, width or np.size(given))
    if len(set(names)) < len(names) or "" in names:
        raise DataError(f"{path}: the classes must be different names, got {', '.join(map(repr, names[:10]))}.")
    return names


def _texts_of(codes: npt.NDArray[np.int64], names: Sequence[str] | None, first: int) -> list[str]:
    """-> the names of these classes, or their numbers: a sparse matrix may be wider than anything in it."""
    return [str(first + code) if names is None else names[code] for code in codes.tolist()]


def _texts(path: Path, name: str, array: Any, n: int) -> list[str]:
    """-> an array of text or of whole numbers as n texts."""
    array = np.asarray(array.toarray() if issparse(array) else array).reshape(-1)
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.floor(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "USiub":
        raise DataError(f"{path}: '{name}' holds {array.dtype}. Give text or whole numbers.")
    if len(array) != n:
        raise DataError(f"{path}: '{name}' has {len(array):,} entries, but {n:,} are needed.")
    texts = array.astype(str) if array.dtype.kind != "S" else np.char.decode(array, "utf-8", "replace")
    return [text.strip() for text in texts.tolist()]


def _lists(matrix: Any, names: Sequence[str] | None, first: int) -> Any:
    """-> the candidates of each sample by name."""
    used, codes = np.unique(matrix.indices, return_inverse=True)
    texts = pa.array(_texts_of(used, names, first), pa.string())
    coded = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), texts)
    return pa.LargeListArray.from_arrays(pa.array(matrix.indptr.astype(np.int64)), coded)


def _is_vector(array: Any, n: int) -> bool:
    """-> whether labels are one for each sample, and not a matrix of 0 and 1."""
    return bool(array.ndim == 1 or (array.ndim == 2 and array.shape in ((n, 1), (1, n))) or array.dtype.kind in "US")


def _one_each(path: Path, name: str, matrix: Any, names: Sequence[str] | None, first: int) -> list[str]:
    """-> the label of each sample, '' where it has none."""
    counts = np.diff(matrix.indptr)
    problems = Problems(str(path), "sample")
    several = np.flatnonzero(counts > 1) + first
    problems.add(
        several, f"several true labels in '{name}'", "Give each sample one, or none; what it may be are candidates."
    )
    problems.stop()
    labels = np.full(len(counts), "", object)
    labels[counts == 1] = _texts_of(matrix.indices, names, first)
    return list(labels)


def _named(path: Path, name: str, array: Any, n: int, names: Sequence[str] | None, first: int) -> list[str]:
    """-> labels that are given by name, or by the number of their class."""
    texts = _texts(path, name, array, n)
    if array.dtype.kind in "US" or names is None:
        return texts
    by_number = {str(first + c): one for c, one in enumerate(names)}
    return [by_number.get(text, text) for text in texts]
