"""Data and estimators for tests of ipll.IncrementalClassifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_iris

from ipll import IncrementalClassifier

X, TRUTH = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[TRUTH]


OLD, NEW = np.flatnonzero(TRUTH < 2), np.flatnonzero(TRUTH > 0)
DIGITS = load_digits()


IMAGES = (DIGITS.images[:400] * 15).astype(np.uint8)


QUICK = {"epochs": 4, "random_state": 0}


Change = Callable[[IncrementalClassifier, Path], IncrementalClassifier]


def quick(**parameters: Any) -> IncrementalClassifier:
    return IncrementalClassifier(**(QUICK | parameters))


def ambiguous(labels: np.ndarray, names: list[Any], share: float = 0.4) -> list[list[Any]]:
    """-> candidate sets: the label, and each other name with this probability."""
    extra = np.random.default_rng(0).random((len(labels), len(names))) < share
    return [[n for n, e in zip(names, row, strict=True) if e or n == y] for y, row in zip(labels, extra, strict=True)]


def same(one: IncrementalClassifier, other: IncrementalClassifier, samples: Any = X) -> None:
    """Bit for bit."""
    assert np.array_equal(one.predict_proba(samples), other.predict_proba(samples))
    for name in ("classes_", "pseudo_labels_", "label_confidence_"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours.dtype.kind == theirs.dtype.kind
        assert ours.tolist() == theirs.tolist()
    assert one.n_features_in_ == other.n_features_in_
