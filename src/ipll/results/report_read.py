"""What a report reads: result files, checked field by field, so that a damaged one can be named and set aside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipll.errors import RunError
from ipll.results.conditions import TEST, VALIDATION
from ipll.results.folder import read_result

PER_TASK = {
    "all classes": "accuracy_per_task",
    "old classes": "old_accuracy_per_task",
    "new classes": "new_accuracy_per_task",
    "linear head": "linear_accuracy_per_task",
    "pseudo-labels": "pseudo_label_accuracy_per_task",
    "old recall": "separation_old_recall_per_task",
    "new recall": "separation_new_recall_per_task",
    "separation": "separation_accuracy_per_task",
    "memory purity": "memory_purity_per_task",
}
SINCE = tuple(  # fields that older result files lack
    f"{name}_per_task"
    for name in (
        "pseudo_label_chance", "pseudo_label_first_accuracy", "pseudo_label_to_right", "pseudo_label_to_wrong",
        "old_as_new", "new_as_old",
    )
)  # fmt: skip
NUMBERS = (
    "average_incremental_accuracy", "last_accuracy", "forgetting", "seconds_per_epoch", "samples_per_second",
    "peak_memory_bytes", "wall_seconds", "seed", "epochs",
)  # fmt: skip
STREAM = {"q": float, "blurry": float, "candidates": str, "flip_scope": str}


def load(folder: Path) -> dict[str, Any]:
    """-> the result of a finished run; a RunError names the file and the field that cannot be used."""
    try:
        result = read_result(folder)
    except OSError as error:
        raise RunError(f"{folder / 'result.json'}: cannot be read ({error.strerror}).") from None
    if wrong := problem(result):
        raise RunError(f"{folder / 'result.json'}: {wrong}. Run it again with --overwrite.")
    tasks = len(result["accuracy_per_task"])
    return {key: [None] * tasks for key in SINCE} | result


def problem(result: Any) -> str | None:
    """-> what is wrong with a result, in words; None if nothing is."""
    if not isinstance(result, Mapping):
        return "not a table of fields"
    tasks = len(result["accuracy_per_task"]) if isinstance(result.get("accuracy_per_task"), list) else 0
    percents = _list_of(_number_or_none, tasks)
    checks: dict[str, Callable[[Any], bool]] = {
        "accuracy_per_task": _list_of(_number, tasks),
        **{key: percents for key in PER_TASK.values() if key != "accuracy_per_task"},
        **dict.fromkeys(NUMBERS, _number),
        "seen_classes_per_task": _list_of(_count, tasks),
        "accuracy_matrix": _list_of(percents, tasks),
        "class_names": _list_of(_text),
        "method": _text,
        "preset": _text,
        "environment": _table,
        "config": lambda value: _table(value) and _table(value.get("data")) and _stream(value.get("stream")),
        "class_prior": lambda value: _table(value) and all(key.isdigit() and _prior(v) for key, v in value.items()),
    }
    for key, good in checks.items():
        if key not in result:
            return f"'{key}' is missing"
        if not good(result[key]):
            return f"'{key}' is damaged"
    if not tasks:
        return "'accuracy_per_task' is empty"
    classes = len(result["class_names"])
    if max(result["seen_classes_per_task"]) > classes:
        return "'class_names' is too short"
    lengths = {len(counts[kind]) for counts in result["class_prior"].values() for kind in ("predicted", "true")}
    if len(lengths) > 1 or max(lengths, default=0) > classes:
        return "'class_prior' is damaged"
    confusion = result.get("confusion")  # classes seen by the end, in both directions
    if confusion and not (len(confusion) <= classes and _list_of(_list_of(_count, len(confusion)))(confusion)):
        return "'confusion' is damaged"
    later: dict[str, Callable[[Any], bool]] = dict.fromkeys(SINCE, percents) | {
        "later_epochs": _count,
        "scored_on": lambda value: value in (TEST, VALIDATION),
    }
    return next((f"'{key}' is damaged" for key, good in later.items() if key in result and not good(result[key])), None)


def _list_of(good: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return isinstance(value, list) and (length is None or len(value) == length) and all(map(good, value))

    return check


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number_or_none(value: Any) -> bool:
    return value is None or _number(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _stream(value: Any) -> bool:
    kinds: dict[type, Callable[[Any], bool]] = {float: _number, str: _text}
    return _table(value) and all(kinds[kind](value.get(key)) for key, kind in STREAM.items())


def _prior(value: Any) -> bool:
    counts = _list_of(_count)
    return _table(value) and all(counts(value.get(key)) for key in ("predicted", "true")) and len(value["true"]) > 0
