"""What stands in model.json, looked at before it is used: a stranger may have written it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipll.engine.regular import check_regular
from ipll.errors import DataError

LARGEST = 4096  # pixels of an image's side
ANOTHER = "Name a folder that `ipll fit` made."


def check_folder(path: Path) -> None:
    """A DataError unless it is a folder that may hold a model, and that we may look into."""
    if not os.path.lexists(path):
        raise DataError(f"{path} is no model: there is no such folder. {ANOTHER}")
    if not os.path.isdir(path):
        raise DataError(f"{path} is no model: it is not a folder. {ANOTHER}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(
            f"cannot read the folder {path}: Permission denied. Ask its owner, or take a copy of the model."
        )
    if not os.path.lexists(path / "model.json") and os.path.lexists(path / "config.toml"):
        raise DataError(f"{path} is no model: it holds a run. See it with: ipll report {path}, or name another folder.")
    try:
        if os.path.lexists(path / "model.json"):
            check_regular(path / "model.json")
    except OSError as error:
        raise DataError(f"cannot read {path / 'model.json'}: {error.strerror}. Take the model from a copy.") from None


def check_facts(facts: Mapping[str, Any]) -> None:
    """A ValueError that names the first value that no model has."""
    for key, fits in CHECKS.items():
        if key not in facts:
            raise ValueError(f"'{key}' is missing")
        if not fits(facts[key]):
            raise ValueError(f"'{key}' is {_short(facts[key])}, which no model has")
    names, shape, kind = facts["names"], facts["shape"], facts["kind"]
    if len(shape) != (3 if kind == "images" else 1) or (kind == "images" and max(shape) > LARGEST):
        raise ValueError(f"'shape' is {_short(shape)}, which no model of {kind} has")
    if kind == "features" and len(facts["feature_names"]) != shape[0]:
        raise ValueError("'feature_names' are not as many as 'shape' says")
    if not len(facts["mean"]) == len(facts["std"]) == shape[0]:
        raise ValueError("'mean' and 'std' are not as many as 'shape' says")
    if "through" in facts and (kind != "features" or not _is_network(facts["through"])):
        raise ValueError(f"'through' is {_short(facts['through'])}, which no model of {kind} has")
    if not len(names) <= facts["capacity"] <= max(8, 2 * len(names)):  # it doubles where classes outgrow it
        raise ValueError(f"'capacity' is {facts['capacity']}, which no model of {len(names)} classes has")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_network(value: object) -> bool:
    texts = ("name", "digest")
    return isinstance(value, dict) and set(value) == set(texts) and all(isinstance(value[key], str) for key in texts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _are_names(values: object) -> bool:
    return isinstance(values, list) and _are_texts(values) and 0 < len(values) == len(set(values))


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _are_choices(values: object) -> bool:
    texts = ("setting", "why")
    return isinstance(values, list) and all(
        isinstance(value, dict) and all(isinstance(value.get(key), str) for key in texts) for value in values
    )


CHECKS: dict[str, Callable[[Any], bool]] = {
    "names": _are_names,
    "known": _are_texts,
    "feature_names": _are_texts,
    "kind": lambda value: value in ("images", "features"),
    "shape": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "mean": _are_numbers,
    "std": _are_numbers,
    "capacity": _is_count,
    "min_class_samples": _is_count,
    "updates": _is_count,
    "voted": lambda value: isinstance(value, bool) or (isinstance(value, list) and all(map(_is_count, value))),
    "temperature": lambda value: _is_number(value) and value > 0,
    "far": _is_number,
    "missed": lambda value: _is_number(value) and 0 <= value < 1,
    "given": lambda value: isinstance(value, dict),
    "chosen": _are_choices,
    "config": lambda value: isinstance(value, dict),
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
