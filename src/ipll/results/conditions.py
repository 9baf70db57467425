"""Conditions of a number that everyone who shows it must tell: the samples that were scored, the epochs of a task.

Accuracies on validation samples (`data.validation`) and on the test set never stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipll.errors import RunError

TEST, VALIDATION = "test", "validation"
NAMED = 3  # runs of a kind that an error names


def scored_on(result: Mapping[str, Any]) -> str:
    """-> 'test' or 'validation': the samples that a result's accuracies are on. Older results do not say: the test."""
    return str(result.get("scored_on", TEST))


def scored_alike(results: Mapping[str, Mapping[str, Any]]) -> str:
    """-> what all results, by name, were scored on; a RunError where some were on the test set and some were not."""
    kinds: dict[str, list[str]] = {}
    for name, result in results.items():
        kinds.setdefault(scored_on(result), []).append(name)
    if len(kinds) > 1:
        parts = "; ".join(f"on {kind} samples: {_some(names)}" for kind, names in kinds.items())
        raise RunError(
            f"these runs were not scored alike ({parts}). Accuracies on validation samples, taken out of the training "
            "samples by data.validation, cannot stand beside those on the test set. Show each kind by itself, or run "
            "one of them again with the data.validation of the other."
        )
    return next(iter(kinds), TEST)


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def on_samples(scored: str) -> str:
    """-> ' on validation samples'; nothing where the test set is scored, as everyone expects."""
    return "" if scored == TEST else f" on {scored} samples"


def accuracy_word(scored: str) -> str:
    """-> what an accuracy is called in a line of progress: 'accuracy', or 'validation accuracy'."""
    return "accuracy" if scored == TEST else f"{scored} accuracy"


def short_epochs(first: int, later: int = 0) -> str:
    """-> the epochs of a task: '200', or '200/30' where the first task has 200 and each later one 30; `later` is 0
    where all have as many."""
    return str(first) if later in (0, first) else f"{first}/{later}"


def epochs_in_words(first: int, later: int = 0) -> str:
    """-> '200 epochs each', or '200 epochs in the first task, 30 in each later one'."""
    epochs = f"{first} epoch{'' if first == 1 else 's'}"
    return f"{epochs} each" if later in (0, first) else f"{epochs} in the first task, {later} in each later one"
