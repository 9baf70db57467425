"""A fingerprint of a data set, by which a run knows its data again. It costs a few hundred images, not all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ipll.data.source import Ints, Source
from ipll.engine import processes
from ipll.engine.placement import Array, Selection
from ipll.errors import DataError

LOOKED_AT = 256  # images of each split, spread over it


class SplitPrint(TypedDict):
    samples: int
    shape: list[int]  # of one of them
    labels: str  # their SHA-256
    pixels: str  # of those that are looked at


class Print(TypedDict):
    classes: list[str]
    training: SplitPrint
    test: SplitPrint


def fingerprint(source: Source) -> Print:
    """-> what tells data sets apart, ready for JSON."""
    return {
        "classes": list(source.class_names),
        "training": _of_split(source.train_samples, source.train_labels),
        "test": _of_split(source.test_samples, source.test_labels),
    }


def _of_split(samples: Array | Selection, labels: Ints) -> SplitPrint:
    rows = np.unique(np.linspace(0, len(samples) - 1, min(len(samples), LOOKED_AT)).astype(np.int64))
    return {
        "samples": len(samples),
        "shape": list(samples.shape[1:]),
        "labels": _digest(labels),
        "pixels": _digest(samples[rows]),
    }


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def check_data(recorded: Print, source: Source, folder: Path, data_root: str | Path | None) -> None:
    """Raises a DataError that says what is new, unless these are the data that the run in `folder` was begun with."""
    if differences := list(_differences(recorded, fingerprint(source))):
        place = f"in {data_root}" if data_root else "found now"
        raise DataError(
            f"{folder}: the data {place} are not those that this run was begun with: {', '.join(differences)}. Name "
            "the folder of its own data with --data-root, or begin anew with --overwrite."
        )


def check_shared(source: Source) -> None:
    """Raises a DataError where a process of a run has found other data than the first."""
    if processes.count() == 1:
        return
    if differences := list(_differences(processes.by_first(lambda: fingerprint(source)), fingerprint(source))):
        raise DataError(
            f"the data that this process has found are not those of the first: {', '.join(differences)}. The same must "
            "lie on every machine."
        )


def _differences(before: Print, now: Print) -> Iterator[str]:
    if before["classes"] != now["classes"]:
        yield f"other classes ({_classes(before['classes'], now['classes'])})"
    for split, old, new in (
        ("training", before["training"], now["training"]),
        ("test", before["test"], now["test"]),
    ):
        if old["samples"] != new["samples"]:
            yield f"{new['samples']:,} {split} samples instead of {old['samples']:,}"
        elif old["shape"] != new["shape"]:
            yield f"{split} samples of the shape {new['shape']} instead of {old['shape']}"
        elif old["labels"] != new["labels"]:
            yield f"other labels of the {split} samples"
        elif old["pixels"] != new["pixels"]:
            yield f"other pixels in the {split} samples"


def _classes(before: list[str], now: list[str]) -> str:
    """-> in a few words, how two lists of classes differ."""
    gone, come = ([name for name in one if name not in other] for one, other in ((before, now), (now, before)))
    words = [f"{word} '{names[0]}'" for word, names in (("without", gone), ("with", come)) if names]
    return ", ".join(words) or "the same in another order"
