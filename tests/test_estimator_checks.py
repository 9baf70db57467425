"""scikit-learn's own checks of an estimator: all hold; docs/estimator.md says which need more than our tests have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from ipll import IncrementalClassifier


@parametrize_with_checks([IncrementalClassifier(epochs=3)])
def test_scikit_learn(estimator: IncrementalClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)
