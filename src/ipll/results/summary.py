"""Tables for the terminal: results side by side, methods, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from ipll.component import FAMILIES
from ipll.config import SECTIONS
from ipll.method import method_entry
from ipll.results.result import Result
from ipll.settings import describe


def compare(results: Sequence[Result]) -> Table:
    """Accuracy on all classes seen so far after each task, one column a run."""
    first = max(results, key=lambda result: len(result["accuracy_per_task"]))
    table = Table(title=f"{first['preset']}: accuracy on all classes seen so far, in %")
    table.add_column("after task", justify="right")
    table.add_column("classes", justify="right")
    for result in results:
        table.add_column(str(result["method"]), justify="right")
    for t in range(len(first["accuracy_per_task"])):
        cells = [result["accuracy_per_task"][t : t + 1] for result in results]
        shown = (f"{cell[0]:.1f}" if cell else "" for cell in cells)
        table.add_row(str(t + 1), str(first["seen_classes_per_task"][t]), *shown)
    table.add_section()
    rows = {
        "average": "average_incremental_accuracy",
        "forgetting": "forgetting",
        "seconds": "wall_seconds",
    }
    for label, key in rows.items():
        table.add_row(label, "", *(f"{result[key]:.1f}" for result in results))
    return table


def method_rows(methods: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """(name, members, meaning) of each method; members called 'none' are left out."""
    for name, entry in methods.items():
        members = [entry[family] for family in FAMILIES if family != "auxiliary"] + entry["auxiliary"]
        yield name, " · ".join(dict.fromkeys(m for m in members if m not in ("none", "sgd"))), entry["doc"]


def setting_rows(method: str) -> Iterator[tuple[str, ...]]:
    """(key, default, origin, meaning) of every setting that a method knows."""
    entry = method_entry(method)
    owners = [(section, settings) for section, settings in SECTIONS.items()]
    for family, registry in FAMILIES.items():
        if family == "auxiliary":
            owners += [(f"auxiliary.{kind}", registry[kind].Settings) for kind in entry[family]]
        else:
            owners.append((family, registry[entry[family]].Settings))
    for section, settings in owners:
        for name, default, meaning, origin in describe(settings):
            yield f"{section}.{name}", str(default), origin, meaning
