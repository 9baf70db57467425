"""The paper's numbers, by method."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from ipll.method import canonical

TABLES = {
    "tab:tab1": "1", "tab:tab2": "2", "tab:tab3": "3", "tab:non-blurry": "4", "tab:fig_non": "5", "tab:tasks": "6",
    "tab:table7": "7", "tab:table8": "8", "tab:c-flat": "9", "tab:terial": "10", "tab:beta": "11", "tab:alpha": "12",
    "tab:classification": "13", "tab:pgdr_cl": "14", "tab:separation": "15", "tab:results": "16", "tab:std": "17",
    "sec:separation": "text",
}  # fmt: skip
"""The paper's labels and the numbers that its tables have in print."""

SWEEPS = {"beta": ("disambiguation.beta_start", "disambiguation.beta_end"), "alpha": ("separation.alpha",)}


class Printed(NamedTuple):
    """One number of the paper. What its table does not state is ''."""

    table: str  # label
    dataset: str
    tasks: str
    blurry: str  # percent
    q: str  # or 'banded'
    method: str
    settings: Mapping[str, float]  # besides the method's, for sweeps
    metric: str
    value: float


@cache
def cells() -> tuple[Printed, ...]:
    """Every number in the paper's tables, in their order."""
    text = resources.files("ipll").joinpath("paper/paper_results.csv").read_text(encoding="utf-8")
    return tuple(
        Printed(
            row["table"], row["dataset"], row["tasks"], row["blurry"], row["q"],
            *_method(row["disambiguation"], row["retention"], row["variant"]), row["metric"], float(row["value"]),
        )
        for row in csv.DictReader(text.splitlines())
    )  # fmt: skip


def _method(disambiguation: str, retention: str, variant: str) -> tuple[str, dict[str, float]]:
    """-> a method's name, and the settings of a sweep ('beta=0.2').

    Two tables leave the disambiguation open. There 'PGDR' is read as plain PGDR, and any other retention goes with
    PiCO, which is what the paper says of its additional experiments.
    """
    if disambiguation in ("none", "") and retention == "pgdr":
        name = "pgdr"
    else:
        name = disambiguation or "pico"
        name += "" if retention == "none" else f"+{retention}"
    swept, equals, value = variant.partition("=")
    if equals:
        return name, {key: float(value) for key in SWEEPS[swept]}
    return name + (f"/{variant}" if variant else ""), {}


def tables_of(method: str) -> tuple[str, ...]:
    """-> labels of the tables that the method appears in, in the paper's order."""
    name = canonical(method)
    found = {cell.table for cell in cells() if cell.method == name}
    return tuple(label for label in TABLES if label in found)


def paper_value(
    method: str,
    dataset: str,
    *,
    q: float | str,
    blurry: float = 10,
    tasks: int = 10,
    metric: str = "average_incremental_accuracy",
) -> float | None:
    """-> the paper's number for a method in a setting (q may be 'banded'), or None where it gives none.

    Where several tables have it, they agree.
    """
    wanted = (canonical(method), dataset, str(tasks), f"{blurry:g}", str(q), metric)
    for cell in cells():
        if (cell.method, cell.dataset, cell.tasks, cell.blurry, cell.q, cell.metric) == wanted and not cell.settings:
            return cell.value
    return None
