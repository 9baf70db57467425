"""Digits as tables of features, with candidate sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from ipll.own import Samples, from_arrays

X, Y = load_digits(return_X_y=True)
QUICK: dict[str, Any] = {"train.epochs": 12, "model.width": 32, "train.threads": 1}


def ambiguous(rows: np.ndarray, seen: int, q: float = 0.3) -> Samples:
    """Digits with candidates among the first `seen`, each false one with probability q."""
    rng = np.random.default_rng(seen)
    sets = rng.random((len(rows), seen)) < q
    sets[np.arange(len(rows)), Y[rows]] = True
    return from_arrays(X[rows], sets, [str(c) for c in range(seen)], [f"row {row}" for row in rows])


def rows_of(classes: range, start: int, count: int) -> np.ndarray:
    return np.flatnonzero(np.isin(Y, classes))[start : start + count]
