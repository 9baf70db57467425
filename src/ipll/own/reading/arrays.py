"""NumPy arrays as samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipll.errors import DataError
from ipll.own.reading.images import Images, image_array
from ipll.own.reading.problems import Problems
from ipll.own.reading.samples import Samples, checked, duplicates, recurring, with_candidates

Sets = tuple[tuple[str, ...], npt.NDArray[np.bool_]]  # class names, bool [n, names]
SOURCE = "the arrays"
SEVERAL = (list, tuple, set, frozenset, np.ndarray)


def from_arrays(
    X: Any,
    y: Any = None,
    classes: Iterable[object] | None = None,
    ids: Sequence[object] | None = None,
    *,
    allow_one_class: bool = False,
) -> Samples:
    """-> samples from arrays; what is wrong with them is a DataError that counts the samples from 0.

    X: features [n, d], NaN where a number is missing; or uint8 images [n, h, w], [n, h, w, c] or [n, c, h, w] with 1
        or 3 channels; where both the last axis and the second one could be the channels, the last one is.
    y: labels [n]; or a list, tuple, set or array of candidates per sample; or a matrix [n, classes] of booleans or of
        0 and 1, which may be sparse; None: no candidates.
    classes: all class names, in their order; of a matrix without them, its columns' names or numbers. Names are kept as
        text: 7 is '7'.
    ids: one per sample; without them, '0', '1', ...
    """
    features, images = _samples(X)
    n = len(features) if features is not None else len(images or ())
    if not n:
        raise DataError("X has no samples. Give at least one.")
    problems = Problems(SOURCE, "sample")
    rows = np.arange(n)
    texts = [str(name) for name in (rows.tolist() if ids is None else ids)]
    _check_length("ids", len(texts), n)
    duplicates(texts, rows, problems, "Each sample has an id of its own.")
    if features is not None:
        bad = np.isinf(features).any(1)
        problems.add(rows[bad], "an infinite or too large number", "Correct it, or make it NaN: missing.")
        problems.add(rows[np.isnan(features).all(1)], "no number at all", "Leave it out.")
    names, candidates, notes = _sets(y, classes, n, problems)
    problems.stop()
    feature_names = () if features is None else tuple(map(str, range(features.shape[1])))
    samples = Samples.bare(SOURCE, texts, rows, "sample")
    numbered_in = "" if ids is None else None
    samples = replace(samples, features=features, feature_names=feature_names, images=images, numbered_in=numbered_in)
    return checked(replace(with_candidates(samples, names, candidates), warnings=notes), allow_one_class)


def _samples(X: Any) -> tuple[npt.NDArray[np.float32] | None, Images | None]:
    if hasattr(X, "toarray"):
        raise DataError("X is sparse, which cannot be learnt from as it is. Give X.toarray().")
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise DataError(f"X is not one array ({error}). Give all samples the same features.") from error
    if array.ndim in (3, 4):
        if array.dtype != np.uint8:
            raise DataError(f"X has {array.ndim} axes and holds {array.dtype}. Images are uint8, 0 to 255.")
        return None, image_array(array)
    if array.ndim != 2 or not array.shape[1]:
        raise DataError(f"X has the shape {array.shape}. Features are [n, d]; images are uint8 [n, height, width, 3].")
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which is found later
            return array.astype(np.float32), None
    except (TypeError, ValueError) as error:
        raise DataError(f"X holds {array.dtype} that are not all numbers ({error}). Features are numbers.") from error


def _sets(
    y: Any, classes: Iterable[object] | None, n: int, problems: Problems
) -> tuple[tuple[str, ...], npt.NDArray[np.bool_], list[str]]:
    """-> class names, candidate sets, and warnings; samples without any, or with a strange one, are `problems`."""
    classes = classes_of(y) if classes is None else classes
    known = None if classes is None else tuple(class_name(one) or "" for one in classes)
    if known is not None and (len(set(known)) < len(known) or "" in known):
        raise DataError(f"classes must be different names, got {', '.join(map(repr, known))}.")
    if y is None:
        return known or (), np.zeros((n, len(known or ())), np.bool_), []
    notes: list[str] = []
    if (matrix := as_matrix(y)) is not None:
        if matrix.shape[1] == n != len(matrix):
            raise DataError(f"y has the shape {matrix.shape}, but X has {n:,} samples. Give its transpose, y.T.")
        _check_length("y", len(matrix), n)
        names, candidates = _columns(known, matrix.shape[1]), matrix
    else:
        y = np.asarray(y).tolist() if hasattr(y, "__array__") else list(y)
        _check_length("y", len(y), n)
        notes = _bars([one for one in y if isinstance(one, str)], known or ())
        names, candidates = _lists(y, known, problems)
    problems.add(np.flatnonzero(~candidates.any(1)), "no candidates", "Give each sample at least one candidate.")
    return names, candidates, notes


def as_matrix(y: Any) -> npt.NDArray[np.bool_] | None:
    """-> candidates [n, classes] where y is a matrix of them: sparse, an array of two axes, or lists of booleans or of
    0 and 1; None where it is labels or lists of candidates. A matrix of anything else is a DataError."""
    if hasattr(y, "toarray"):  # a sparse one
        y = y.toarray()
    elif not hasattr(y, "__array__"):
        y = list(y)
        if not _is_matrix(y):
            return None
        if len(widths := {len(row) for row in y}) > 1:
            raise DataError(f"y has rows of {min(widths)} to {max(widths)} booleans. Give each row one for each class.")
    array = np.asarray(y)
    if array.ndim == 1:
        return None
    if array.ndim != 2 or not np.isin(array, (False, True)).all():
        raise DataError(
            f"y has the shape {array.shape} and holds {array.dtype}. A matrix of candidates is [n, classes], of "
            "booleans or of 0 and 1; candidates by name are a list for each sample."
        )
    return array.astype(np.bool_)


def classes_of(y: Any) -> list[Any] | None:
    """-> what the columns of a matrix of candidates are called: as a data frame has them, else by their numbers. None
    where y is no matrix, or lists of 0 and 1, which may as well be labels of several people."""
    if isinstance(y, list):
        booleans = bool(y) and _is_matrix(y) and isinstance(y[0][0], bool | np.bool_)
        return [*range(len(y[0]))] if booleans else None
    shape: tuple[int, ...] = np.asarray(y).shape if hasattr(y, "__array__") else getattr(y, "shape", ())
    if len(shape) != 2 or (shape[1] == 1 and not hasattr(y, "toarray")):
        return None
    return [*getattr(y, "columns", range(shape[1]))]


def _is_matrix(rows: list[Any]) -> bool:
    """-> whether lists are rows of booleans, or of 0 and 1: then one holds a number twice, as no candidates do."""
    if not rows or not all(isinstance(row, list) and row for row in rows):
        return False
    if all(isinstance(value, bool | np.bool_) for row in rows for value in row):
        return True
    bits = all(type(value) is int and value in (0, 1) for row in rows for value in row)
    return bits and len({len(row) for row in rows}) == 1 and any(len(set(row)) < len(row) for row in rows)


def _columns(known: tuple[str, ...] | None, width: int) -> tuple[str, ...]:
    if known is None or len(known) != width:
        given = "none" if known is None else str(len(known))
        raise DataError(f"y has {width} columns, but classes names {given}. Name each column: classes=[...].")
    return known


def _lists(y: list[Any], known: tuple[str, ...] | None, problems: Problems) -> Sets:
    position = {} if known is None else {name: index for index, name in enumerate(known)}
    rows: list[int] = []
    codes: list[int] = []
    for row, given in enumerate(y):
        # A set has no order of its own: sorted, it gives the same classes in every process.
        values = sorted(given, key=str) if isinstance(given, set | frozenset) else given
        for value in values if isinstance(values, SEVERAL) else [values]:
            name = class_name(value)
            if name is None:
                problems.add([row], f"{value!r} is no class name", "Names are text or whole numbers.")
            elif known is not None and name not in position:
                problems.add([row], f"candidate '{name}' is not in classes", "Add it there, or leave classes out.")
            else:
                rows.append(row)
                codes.append(position.setdefault(name, len(position)))
    candidates = np.zeros((len(y), len(position)), np.bool_)
    candidates[rows, codes] = True
    return tuple(position), candidates


def _bars(labels: Iterable[str], known: Iterable[str]) -> list[str]:
    """-> a warning where labels hold a bar, which separates nothing here; a DataError where they seem to be lists."""
    known = frozenset(known)
    names = dict.fromkeys(labels)
    held = next((name for name in names if "|" in name and name not in known), None)
    if held is None:
        return []
    if recurring(known.union(names), "|") >= 0.5:
        raise DataError(
            f"{SOURCE}: y has the label {held!r}, and other labels hold the same names. Give candidates as lists: "
            "[one.split('|') for one in y]. Where '|' is part of a name, give [[one] for one in y]."
        )
    return [
        "labels contain '|', which separates nothing here: each is taken as one name. Candidates are lists: "
        "[one.split('|') for one in y]."
    ]


def class_name(value: object) -> str | None:
    """-> a class name as text; None for what is none."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    if isinstance(value, str | int | np.integer | np.bool_):
        return str(value) if str(value).strip() else None
    return None


def _check_length(what: str, length: int, n: int) -> None:
    if length != n:
        raise DataError(f"{what} has {length:,} entries, but X has {n:,} samples. Give one for each sample.")
