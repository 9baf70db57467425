"""What result.json holds: one row of measures a task, and the checks that every reader relies on.

`TaskRow` is the one table of what is measured at the end of a task: the observer fills it, result.json has each measure
as a list over tasks ('accuracy_per_task'), the report and TensorBoard take titles and names of curves from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ipll.results.conditions import TEST, VALIDATION

PERCENTS = ("average_incremental_accuracy", "last_accuracy")
TIMES = ("seconds_per_epoch", "samples_per_second", "peak_memory_bytes", "wall_seconds")
NUMBERS = ("forgetting", *TIMES, "seed", "epochs")
STREAM = {"q": float, "blurry": float, "candidates": str, "flip_scope": str}

Check = Callable[[Any], bool]


def measure(title: str = "", curve: str = "", *, later: bool = False) -> Any:
    """A measure: its title in the report's table of tasks and the name of its curve, where it has them. Files of
    earlier versions lack one that came `later`."""
    return field(default=None, metadata={"title": title, "curve": curve, "later": later})


@dataclass(frozen=True)
class TaskRow:
    """What is measured at the end of a task, in percent; None where there is nothing to measure, such as old classes in
    the first task."""

    seen_classes: int
    accuracy: float
    old_accuracy: float | None = measure("old classes", "accuracy/old")
    new_accuracy: float | None = measure("new classes", "accuracy/new")
    linear_accuracy: float | None = measure("linear head", "accuracy/linear head")
    pseudo_label_accuracy: float | None = measure("pseudo-labels", "pseudo-labels/accuracy")
    separation_old_recall: float | None = measure("old recall", "separation/old recall")
    separation_new_recall: float | None = measure("new recall", "separation/new recall")
    separation_accuracy: float | None = measure("separation", "separation/accuracy")
    memory_purity: float | None = measure("memory purity", "memory/purity")
    pseudo_label_chance: float | None = measure(later=True)
    pseudo_label_first_accuracy: float | None = measure(later=True)
    pseudo_label_to_right: float | None = measure(later=True)
    pseudo_label_to_wrong: float | None = measure(later=True)
    old_as_new: float | None = measure(later=True)
    new_as_old: float | None = measure(later=True)


MEASURES = tuple(f.name for f in fields(TaskRow))
LATER = tuple(f.name for f in fields(TaskRow) if f.metadata.get("later"))
TITLES = {"all classes": "accuracy"} | {f.metadata["title"]: f.name for f in fields(TaskRow) if f.metadata.get("title")}
CURVES = {"accuracy": "accuracy/all"} | {
    f.name: f.metadata["curve"] for f in fields(TaskRow) if f.metadata.get("curve")
}


def per_task(name: str) -> str:
    """-> the field of result.json that has a measure of every task."""
    return f"{name}_per_task"


def columns(records: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """-> the fields of result.json for what was measured after each task."""
    return {per_task(name): [record.get(name) for record in records] for name in MEASURES}


def task_rows(values: Mapping[str, Any]) -> tuple[TaskRow, ...]:
    """-> what `columns` gave, a row a task."""
    lists = [values[per_task(name)] for name in MEASURES]
    return tuple(TaskRow(*row) for row in zip(*lists, strict=True))


def problem(result: Any) -> str | None:
    """-> what is wrong with the values of a result file, in words; None if nothing is."""
    if not isinstance(result, Mapping):
        return "not a table of fields"
    tasks = len(result["accuracy_per_task"]) if isinstance(result.get("accuracy_per_task"), list) else 0
    for name, good in _required(tasks).items():
        if name not in result:
            return f"'{name}' is missing"
        if not good(result[name]):
            return f"'{name}' is damaged"
    if not tasks:
        return "'accuracy_per_task' is empty"
    damaged = (name for name, good in _optional(tasks).items() if name in result and not good(result[name]))
    return _inconsistent(result) or next((f"'{name}' is damaged" for name in damaged), None)


def _required(tasks: int) -> dict[str, Check]:
    percents = _list_of(_percent_or_none, tasks)
    return {
        "accuracy_per_task": _list_of(_percent, tasks),
        **{per_task(name): percents for name in MEASURES if name not in (*LATER, "accuracy")},
        "seen_classes_per_task": _list_of(_is_count, tasks),
        **dict.fromkeys(NUMBERS, _number),
        **dict.fromkeys(PERCENTS, _percent),
        "accuracy_matrix": _list_of(percents, tasks),
        "class_names": _list_of(_text),
        "method": _text,
        "preset": _text,
        "environment": _environment,
        "config": lambda value: _table(value) and _table(value.get("data")) and _stream(value.get("stream")),
        "class_prior": lambda value: _table(value) and all(key.isdigit() and _prior(v) for key, v in value.items()),
    }


def _optional(tasks: int) -> dict[str, Check]:
    """Fields that files of earlier versions lack."""
    return {
        **{per_task(name): _list_of(_percent_or_none, tasks) for name in LATER},
        "later_epochs": _is_count,
        "earlier_environments": _list_of(_environment),
        "scored_on": lambda value: value in (TEST, VALIDATION),
    }


def _inconsistent(result: Mapping[str, Any]) -> str | None:
    """-> what does not fit together, though each field is what it should be."""
    classes = len(result["class_names"])
    if max(result["seen_classes_per_task"]) > classes:
        return "'class_names' is too short"
    lengths = {len(counts[kind]) for counts in result["class_prior"].values() for kind in ("predicted", "true")}
    if len(lengths) > 1 or max(lengths, default=0) > classes:
        return "'class_prior' is damaged"
    confusion = result.get("confusion")  # classes seen by the end, in both directions
    if confusion and not (len(confusion) <= classes and _list_of(_list_of(_is_count, len(confusion)))(confusion)):
        return "'confusion' is damaged"
    return None


def _list_of(good: Check, length: int | None = None) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, list) and (length is None or len(value) == length) and all(map(good, value))

    return check


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _percent(value: Any) -> bool:
    return _number(value) and 0 <= value <= 100


def _percent_or_none(value: Any) -> bool:
    return value is None or _percent(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _environment(value: Any) -> bool:
    """Does it tell on what a number was made?"""
    if not _table(value) or not _table(value.get("packages")):
        return False
    return "hardware" in value and isinstance(value.get("commit"), str | None) and "torch" in value["packages"]


def _stream(value: Any) -> bool:
    kinds: dict[type, Check] = {float: _number, str: _text}
    return _table(value) and all(kinds[kind](value.get(name)) for name, kind in STREAM.items())


def _prior(value: Any) -> bool:
    counts = _list_of(_is_count)
    return _table(value) and all(counts(value.get(name)) for name in ("predicted", "true")) and len(value["true"]) > 0
