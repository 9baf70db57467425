"""The metrics, against loops that anyone can read."""

from __future__ import annotations

import numpy as np
import pytest

from ipll.benchmark import metrics


@pytest.mark.parametrize("seed", range(5))
def test_metrics_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, n = 6, 80
    truth, predicted = rng.integers(0, 5, n), rng.integers(0, classes, n)  # class 5 has no test sample
    confusion = metrics.confusion_matrix(truth, predicted, classes)
    for a in range(classes):
        for b in range(classes):
            assert confusion[a, b] == sum(t == a and p == b for t, p in zip(truth, predicted, strict=True))

    def accuracy(members: set[int]) -> float | None:
        rows = [i for i in range(n) if truth[i] in members]
        return 100 * sum(truth[i] == predicted[i] for i in rows) / len(rows) if rows else None

    assert metrics.class_accuracies(confusion) == [pytest.approx(accuracy({c})) for c in range(classes)]
    groups = metrics.group_accuracies(confusion, [2, 5, 6])
    assert groups == [pytest.approx(accuracy(g)) for g in ({0, 1}, {2, 3, 4}, {5})]
    assert metrics.percent(truth == predicted) == pytest.approx(accuracy(set(range(classes))))

    judged, old = rng.random(n) < 0.4, rng.random(n) < 0.3
    recalls = metrics.separation_recalls(judged, old)
    found_old = [judged[i] for i in range(n) if old[i]]
    found_new = [not judged[i] for i in range(n) if not old[i]]
    assert recalls["separation_old_recall"] == pytest.approx(100 * sum(found_old) / len(found_old))
    assert recalls["separation_new_recall"] == pytest.approx(100 * sum(found_new) / len(found_new))
    assert recalls["separation_accuracy"] == pytest.approx(100 * (sum(found_old) + sum(found_new)) / n)

    table = [[float(rng.integers(0, 101)) for _ in range(2 * t + 2)] for t in range(3)]
    drops = [max(table[t][c] for t in range(2) if c < len(table[t])) - table[2][c] for c in range(4)]
    assert metrics.forgetting(table) == pytest.approx(sum(drops) / 4)


def test_metrics_of_nothing() -> None:
    nothing = np.zeros(0, dtype=bool)
    assert metrics.percent(nothing) is None
    assert metrics.forgetting([[50.0, 60.0]]) == 0.0
    assert metrics.forgetting([[50.0, None], [20.0, None, 70.0]]) == 30.0
    none_old = metrics.separation_recalls(np.array([True, False]), np.array([False, False]))
    assert none_old["separation_old_recall"] is None
    assert none_old["separation_new_recall"] == 50.0
