"""The paper's numbers by method, and which of them were measured here too."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from ipll.method import canonical
from ipll.results.conditions import short_epochs

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


class Verified(NamedTuple):
    """A setting of the paper in which a method was measured here, on the test set, with one seed a file."""

    dataset: str
    tasks: int
    blurry: float
    q: str
    epochs: int
    ours: float
    paper: float | None
    files: tuple[str, ...]
    later_epochs: int = 0  # of each task after the first; 0: as the first

    def __str__(self) -> str:
        paper = "-" if self.paper is None else f"{self.paper:.2f}"
        epochs = short_epochs(self.epochs, self.later_epochs)
        setting = f"{self.tasks} tasks, {self.blurry:g}-blurry, q {self.q}, {epochs} epochs, n = {len(self.files)}"
        return f"{self.ours:.2f} (paper {paper}), {self.dataset}, {setting}: {', '.join(self.files)}"


def verified(method: str) -> tuple[Verified, ...]:
    """-> the cells of this method that were measured here."""
    return tuple(
        Verified(
            **{key: value for key, value in row.items() if key != "files"},
            paper=paper_value(method, row["dataset"], q=row["q"], blurry=row["blurry"], tasks=row["tasks"]),
            files=tuple(row["files"]),
        )
        for row in _measured().get(canonical(method), ())
    )


@cache
def _measured() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(resources.files("ipll").joinpath("paper/verified.toml").read_text(encoding="utf-8"))
