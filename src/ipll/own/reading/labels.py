"""Labels in their own types: a model knows its classes by text, a person may count them or call them true and false."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ipll.errors import DataError
from ipll.own.reading.arrays import SEVERAL, as_matrix

Labels = npt.NDArray[Any]  # bool, int64, float64 or text
TYPES: dict[type, tuple[type, ...]] = {  # bool is before int, since in Python it is one
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, np.floating),
    str: (str,),
}


def read_targets(y: Any) -> Any:
    """-> y as labels [n], lists of candidates, or a bool matrix [n, classes]; faults that only scikit-learn knows."""
    array = np.asarray(y) if hasattr(y, "__array__") else None
    if array is not None and array.ndim == 2 and array.shape[1] == 1 and array.dtype != np.bool_:
        array = column_or_1d(array, warn=True)
    if array is not None and array.ndim == 1:
        if array.dtype.kind != "O":
            check_classification_targets(array)
        return array
    matrix = as_matrix(y)
    return list(y) if matrix is None else matrix


def are_sets(targets: Any) -> bool:
    """-> whether what `read_targets` gives is candidate sets and not plain labels."""
    if isinstance(targets, np.ndarray) and targets.ndim == 2:
        return True
    return any(isinstance(one, SEVERAL) for one in targets)


def label_type(*groups: Any) -> type:
    """-> bool, int, float or str: the one type of all labels in these labels, lists of candidates and class names.

    What is no label at all is left to the reader of candidate sets, which can say in which sample it is.
    """
    found = [
        next((ours for ours, theirs in TYPES.items() if issubclass(kind, theirs)), None)
        for kind in set().union(*map(_types, groups))
    ]
    kinds = sorted({kind.__name__: kind for kind in found if kind is not None}.items())
    if len(kinds) > 1:
        names = " and ".join(name for name, _ in kinds)
        raise DataError(f"labels of several types: {names}. Give the labels of all samples, and classes, one type.")
    return kinds[0][1] if kinds else str


def to_labels(names: Sequence[str], kind: type) -> Labels:
    """-> class names [n] as labels of the type that `label_type` found."""
    text = np.array(names, str)
    labels: Labels = text == "True" if kind is bool else text.astype({int: np.int64, float: np.float64}.get(kind, str))
    return labels


def _types(labels: Iterable[Any]) -> set[type]:
    """-> the Python or NumPy types of the labels, also of those within lists. A bool matrix holds none."""
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return {labels.dtype.type} if labels.ndim == 1 else set()
    return set(map(type, chain.from_iterable(one if isinstance(one, SEVERAL) else (one,) for one in labels)))
