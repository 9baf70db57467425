"""Iris in tables, for the commands."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

NAMES = ("setosa", "versicolor", "virginica")


QUICK = ("--set", "train.epochs=6", "--device", "cpu")


def iris_rows(chosen: Any, known: tuple[str, ...], split: str = "", seed: int = 0) -> list[dict[str, Any]]:
    """Flowers with candidates: the true species, and each other one with a chance of 0.3."""
    iris, rng = load_iris(), np.random.default_rng(seed)
    rows = []
    for i in chosen:
        name = NAMES[iris.target[i]]
        candidates = [k for k in known if k == name or rng.random() < 0.3]
        features = {f"features.{k}": v for k, v in zip("abcd", iris.data[i], strict=True)}
        rows.append({"id": f"flower{i}", "candidates": "|".join(candidates), "label": name, "split": split} | features)
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
