"""The report: one HTML file over any number of finished runs. It needs no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ipll.engine.files import write_text
from ipll.errors import RunError
from ipll.method import method_table
from ipll.pages import charts
from ipll.pages.page import NONE, Row, render_page
from ipll.report import data
from ipll.report import gallery as galleries
from ipll.report import runs as run_details
from ipll.report.data import Group
from ipll.results.conditions import scored_alike
from ipll.results.result import Result
from ipll.results.schema import TITLES, per_task

AVERAGE = "average_per_task"  # the average incremental accuracy up to each task
ACCURACIES = {
    "Average incremental accuracy": (AVERAGE, "the mean of the curve above, up to each task"),
    "Old classes": ("old_accuracy_per_task", "those of earlier tasks"),
    "New classes": ("new_accuracy_per_task", "those the task introduces"),
    "Linear head": ("linear_accuracy_per_task", "all classes, by the network’s linear head alone"),
}
DISAMBIGUATION = {
    "Pseudo-label accuracy": ("pseudo_label_accuracy_per_task", "the task’s samples whose settled label is true"),
    "Memory purity": ("memory_purity_per_task", "the kept samples whose settled label is true"),
    "Old recall": ("separation_old_recall_per_task", "the task’s samples of old classes that were judged old"),
    "New recall": ("separation_new_recall_per_task", "the task’s samples of new classes that were judged new"),
}
HEADLINES = 4  # groups whose numbers are written large
OPEN = 3  # runs whose own parts are unfolded from the start


def write_report(runs: Sequence[Path], out: Path, results: Sequence[Mapping[str, Any]] | None = None) -> list[str]:
    """Writes one page that shows finished runs, side by side if there are several.

    `results` are read from the folders unless they are given, as they are for a run that is about to finish. A damaged
    file is set aside as long as a run is left; -> a sentence on each of them, which the page shows too. Runs that were
    scored on validation samples are refused beside runs that were scored on the test set.
    """
    folders = [Path(run) for run in runs]
    warnings: list[str] = []
    if results is None:
        folders, results, warnings = _read(folders)
    if not folders:
        raise RunError(warnings[0] if warnings else "a report needs at least one run: name a finished run's folder.")
    page, more = render(folders, results, warnings)
    write_text(out, page.encode("utf-8", "replace").decode("utf-8"))  # folder names need not be valid Unicode
    return more


def _read(folders: Sequence[Path]) -> tuple[list[Path], list[Result], list[str]]:
    """-> the runs whose results can be used, and what is wrong with the others."""
    good, results, warnings = [], [], []
    for folder in folders:
        try:
            results.append(Result.load(folder))
            good.append(folder)
        except RunError as error:
            if not (folder / "result.json").exists():  # no finished run at all: most likely a slip of the hand
                raise
            warnings.append(str(error))
    return good, results, warnings


def render(
    folders: Sequence[Path], results: Sequence[Mapping[str, Any]], warnings: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """-> the page's HTML, and all warnings that it shows."""
    scored = scored_alike(dict(zip(map(str, folders), results, strict=True)))
    results = [{**result, AVERAGE: _running_mean(result["accuracy_per_task"])} for result in results]
    groups = data.grouped(folders, results, {name: entry.get("doc", "") for name, entry in method_table().items()})
    runs = sorted((run for group in groups for run in group.runs), key=lambda run: run.number)
    gallery = galleries.collect(runs)
    warnings = [*warnings, *gallery.warnings]
    settings = data.by_column([data.flat(group.runs[0].result["config"]) | {"seed": group.seeds} for group in groups])
    environments = data.by_column([data.environment_rows(run.result) for run in runs])
    page = render_page(
        __package__,
        "report",
        {"percent": data.percent, "with_spread": data.with_spread},
        groups=groups,
        runs=runs,
        scored=scored,
        warnings=warnings,
        headlines=len(groups) <= HEADLINES,
        sentences=data.sentences(groups),
        caution=data.caution(groups),
        comparison=data.comparison(groups),
        accuracy=_main_chart(groups),
        accuracies=_charts(groups, ACCURACIES, "accuracy, %"),
        disambiguation=_charts(groups, DISAMBIGUATION, "share, %"),
        per_task={title: per_task(name) for title, name in TITLES.items()},
        details=[run_details.details(run, scored) for run in runs],
        unfolded=OPEN,
        gallery=gallery,
        differing=sorted((row for row in settings if len(set(row[1])) > 1), key=lambda row: NONE in row[1]),
        settings=settings,
        environment=environments,
        one_environment=all(len(set(cells)) == 1 for _, cells in environments),
        timings=data.timings(runs),
    )
    return page, warnings


def _running_mean(values: Sequence[float]) -> list[float]:
    return [total / (i + 1) for i, total in enumerate(accumulate(values))]


class MainChart(NamedTuple):
    """The accuracy on all classes, drawn twice: for a wide and for a narrow screen."""

    title: str
    wide: str
    narrow: str
    table: list[Row]


def _main_chart(groups: Sequence[Group]) -> MainChart:
    key, title = "accuracy_per_task", "Accuracy on all classes seen so far, after each task"
    series = [group.series(key) for group in groups]
    draw = partial(charts.line_chart, series, title=title, unit="accuracy, %", ticks=_ticks(groups, key))
    wide = draw(width=912, height=max(360, 100 + 16 * len(groups)), kind="wide", end_labels=len(groups) > 1)
    return MainChart(title, wide, draw(width=340, height=290, kind="narrow"), data.task_rows(series))


class Chart(NamedTuple):
    """The curves of a metric, None where no group has it, and their numbers."""

    title: str
    meaning: str
    chart: str | None
    without: list[str]  # the groups that do not have it
    table: list[Row]


def _charts(groups: Sequence[Group], metrics: dict[str, tuple[str, str]], unit: str) -> list[Chart]:
    """One chart a metric, all on one scale."""
    ticks = _ticks(groups, *(key for key, _ in metrics.values()))
    drawn = []
    for title, (key, meaning) in metrics.items():
        series = [group.series(key) for group in groups]
        without = [line.name for line in series if all(value is None for value in line.values)]
        chart = None if len(without) == len(series) else charts.line_chart(series, title=title, unit=unit, ticks=ticks)
        drawn.append(Chart(title, meaning, chart, without, data.task_rows(series)))
    return drawn


def _ticks(groups: Sequence[Group], *keys: str) -> range:
    return charts.percent_ticks(
        value for group in groups for run in group.runs for key in keys for value in run.result[key]
    )
