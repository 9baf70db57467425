"""Metrics, in percent. Classes are in order of arrival throughout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def percent(right: Mask) -> float | None:
    """The share of True in percent; None of nothing."""
    return float(100.0 * right.mean()) if right.size else None


def confusion_matrix(truth: Ints, predicted: Ints, classes: int) -> Ints:
    """-> counts [true class, predicted class]."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_accuracies(confusion: Ints) -> list[float | None]:
    """The accuracy of each class; None for a class without test samples."""
    totals = confusion.sum(axis=1)
    return [float(100.0 * confusion[c, c] / totals[c]) if totals[c] else None for c in range(len(totals))]


def group_accuracies(confusion: Ints, bounds: Sequence[int]) -> list[float | None]:
    """The accuracy over the classes of each task; `bounds` are the classes seen after each of them."""
    starts = [0, *bounds[:-1]]
    hits, totals = confusion.diagonal(), confusion.sum(axis=1)
    return [
        float(100.0 * hits[a:b].sum() / totals[a:b].sum()) if totals[a:b].sum() else None
        for a, b in zip(starts, bounds, strict=True)
    ]


def forgetting(per_task: Sequence[Sequence[float | None]]) -> float:
    """The mean over classes of best earlier minus final accuracy; classes of the last task have no earlier one.

    `per_task[t][c]` is the accuracy of class c after task t, for the classes seen by then.
    """
    final = per_task[-1]
    drops = []
    for c, last in enumerate(final):
        earlier = [row[c] for row in per_task[:-1] if c < len(row)]
        best = max((value for value in earlier if value is not None), default=None)
        if best is not None and last is not None:
            drops.append(best - last)
    return float(np.mean(drops)) if drops else 0.0


def separation_recalls(judged_old: Mask, truly_old: Mask) -> dict[str, float | None]:
    """Old recall: the share of all true-old samples judged old; new recall likewise; accuracy their weighted mean."""
    return {
        "separation_old_recall": percent(judged_old[truly_old]),
        "separation_new_recall": percent(~judged_old[~truly_old]),
        "separation_accuracy": percent(judged_old == truly_old),
    }
