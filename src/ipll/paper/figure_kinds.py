"""The kinds of figures that the paper has: class prior, curves over tasks, sweeps, bars, separation.

Each function takes series, one an entry of the bench, and returns a figure. It needs matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ipll.errors import ConfigError
from ipll.paper.catalogue import ACCURACY, Bench, Entry
from ipll.paper.numbers import Runs
from ipll.paper.wording import WORDS

WIDTH = 3.3  # inches: a column of a paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
LINES = ("-", "--", "-.", ":", (0, (5, 1.5, 1, 1.5, 1, 1.5)), (0, (8, 2)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "----", "++++", "oooo")
OLD, NEW = "0.93", "#E3F0F9"  # shades of the old and the new classes


@dataclass(frozen=True)
class Curve:
    """An entry of the figure with its runs, one a seed. `style` is its place among all, also where some are missing."""

    entry: Entry
    name: str  # what tells it from the others
    runs: Sequence[Mapping[str, Any]]
    style: int

    def per_task(self, field: str) -> list[list[float]]:
        """-> for each task, the values of the runs that have one."""
        rows = [run[f"{field}_per_task"] for run in self.runs]
        return [[v for v in values if v is not None] for values in zip(*rows, strict=False)]


def series_of(bench: Bench, runs: Runs, seeds: Iterable[int]) -> list[Curve]:
    """The entries that have runs, each named by what differs between them."""
    seeds = tuple(seeds)
    words = [[*entry.row.split(", "), *entry.column.split(", ")] for entry in bench.entries]
    common = [word for word in words[0] if all(word in one for one in words)]
    found = []
    for place, (entry, own) in enumerate(zip(bench.entries, words, strict=True)):
        if results := runs.of(entry, seeds):
            name = ", ".join(word for word in own if word not in common) or entry.method
            found.append(Curve(entry, name, results, place))
    return found


def curves(series: Sequence[Curve]) -> Figure:
    """Accuracy after each task: on all classes, on the task's new ones, on the old ones."""
    figure = Figure(figsize=(WIDTH, 4.6))
    panels = figure.subplots(3, 1, sharex=True)
    fields = {"all classes": "accuracy", "new classes": "new_accuracy", "old classes": "old_accuracy"}
    for axes, (title, field) in zip(panels, fields.items(), strict=True):
        for one in series:
            _line(axes, one.name, one.per_task(field), one.style)
        _percent(axes)
        axes.set_title(title, loc="left", pad=3)
    figure.supylabel("accuracy (%)", fontsize=7.5)
    _tasks(panels[-1], series)
    _legend(figure, panels[0])
    return figure


def separation(series: Sequence[Curve]) -> Figure:
    """Samples that the separation judges right in each task: all, the new ones, the old ones."""
    figure = Figure(figsize=(WIDTH, 2.5))
    axes = figure.subplots()
    names = {"all": "separation_accuracy", "new": "separation_new_recall", "old": "separation_old_recall"}
    for style, (name, field) in enumerate(names.items()):
        _line(axes, name, series[0].per_task(field), style)
    _percent(axes)
    axes.set_ylabel("samples judged right (%)")
    _tasks(axes, series, first=2)
    _legend(figure, axes)
    return figure


def sweep(series: Sequence[Curve]) -> Figure:
    """Average incremental accuracy against the setting that is swept, a line for each method."""
    figure = Figure(figsize=(WIDTH, 2.4))
    axes = figure.subplots()
    key = _swept(series)
    methods = list(dict.fromkeys(one.entry.method for one in series))
    for style, method in enumerate(methods):
        own = [one for one in series if one.entry.method == method]
        numbers = [[float(run[ACCURACY]) for run in one.runs] for one in own]
        axes.errorbar(
            [float(one.entry.settings[key]) for one in own], list(map(mean, numbers)), yerr=list(map(_std, numbers)),
            **_look(style), label=method, elinewidth=0.9, capthick=0.9,
        )  # fmt: skip
    if len(methods) > 1:
        _legend(figure, axes)
    at = sorted({float(one.entry.settings[key]) for one in series})
    if min(at) > 0 and max(at) / min(at) >= 10:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(at))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{value:g}" for value in at])
    axes.set_xlabel(SYMBOLS.get(key, key))
    _percent(axes)
    axes.set_ylabel("avg. incremental accuracy (%)")
    return figure


SYMBOLS = {
    "memory.neighbours": "K, neighbours of a region (memory.neighbours)",
    "memory.diverse_share": "share of diverse samples (memory.diverse_share)",
}


def bars(series: Sequence[Curve]) -> Figure:
    """Average incremental accuracy, a group of bars for each setting, a bar for each method."""
    figure = Figure(figsize=(WIDTH, 2.4))
    axes = figure.subplots()
    methods = list(dict.fromkeys(one.entry.method for one in series))
    words = {one.entry.column: one.entry.column.split(", ") for one in series}
    common = [word for word in next(iter(words.values())) if all(word in own for own in words.values())]
    groups = {column: "\n".join(word for word in own if word not in common) for column, own in words.items()}
    width = 0.8 / len(methods)
    for style, method in enumerate(methods):
        own = [one for one in series if one.entry.method == method]
        numbers = [[float(run[ACCURACY]) for run in one.runs] for one in own]
        at = [list(groups).index(one.entry.column) + (style - (len(methods) - 1) / 2) * width for one in own]
        heights = list(map(mean, numbers))
        drawn = axes.bar(
            at, heights, 0.92 * width, yerr=list(map(_std, numbers)), label=method, color=_look(style)["color"],
            hatch=HATCHES[style % len(HATCHES)], edgecolor="white", linewidth=0,
            error_kw={"linewidth": 0.8, "ecolor": "0.1"},
        )  # fmt: skip
        axes.bar_label(drawn, [f"{height:.1f}" for height in heights], padding=1.5, fontsize=6)
    axes.set_xticks(range(len(groups)), list(groups.values()))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("avg. incremental accuracy (%)")
    axes.set_ylim(0, min(112, 1.12 * axes.get_ylim()[1]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    _legend(figure, axes)
    return figure


def prior(series: Sequence[Curve]) -> Figure:
    """Samples per class in the second task: true counts, and predicted ones after its first epochs."""
    series = [one for one in series if one.runs[0]["class_prior"]]
    if not series:
        raise ConfigError("the class prior is looked at in the second task, but these runs have only one.")
    figure = Figure(figsize=(WIDTH, 0.7 + 1.5 * len(series)))
    panels = figure.subplots(len(series), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, one in zip(panels, series, strict=True):
        epochs = sorted(one.runs[0]["class_prior"], key=int)
        true = _counts(one, epochs[-1], "true").mean(axis=0)
        classes, old = len(true), int(one.runs[0]["seen_classes_per_task"][0])
        axes.axvspan(-0.5, old - 0.5, color=OLD, linewidth=0)
        axes.axvspan(old - 0.5, classes - 0.5, color=NEW, linewidth=0)
        axes.stairs(true, np.arange(classes + 1) - 0.5, color="0.1", linewidth=1, label="true", baseline=None)
        for i, epoch in enumerate(epochs):
            counts = _counts(one, epoch, "predicted")
            spread = counts.std(axis=0, ddof=1) if len(counts) > 1 else None
            place = np.arange(classes) + 0.24 * (i - (len(epochs) - 1) / 2)
            axes.errorbar(
                place, counts.mean(axis=0), yerr=spread, linestyle="none", marker=MARKERS[i], color=COLOURS[i],
                markersize=2.6, elinewidth=0.6, capsize=0, label=f"predicted, epoch {epoch}",
            )  # fmt: skip
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.5, classes - 0.5)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.text(0.02, 0.95, one.name, transform=axes.transAxes, va="top")  # over the old classes, which are few
        axes.set_ylabel("samples")
    for text, x in (("old classes", (old - 1) / 2), ("new classes", (old + classes - 1) / 2)):
        panels[0].annotate(
            text, (x, 1), (0, 3), xycoords=("data", "axes fraction"), textcoords="offset points", ha="center",
            color="0.35", fontsize=6.5,
        )  # fmt: skip
    panels[-1].set_xlabel("class, in order of arrival")
    _legend(figure, panels[0])
    return figure


KINDS: dict[str, Callable[[Sequence[Curve]], Figure]] = {
    "curves": curves, "separation": separation, "sweep": sweep, "bars": bars, "prior": prior,
}  # fmt: skip


def _line(axes: Axes, name: str, values: Sequence[Sequence[float]], style: int) -> None:
    """Means over seeds against the task, in a band of ± std."""
    known = [(task, numbers) for task, numbers in enumerate(values, 1) if numbers]
    if not known:
        return
    tasks = np.array([task for task, _ in known])
    middle = np.array([mean(numbers) for _, numbers in known])
    look = _look(style)
    axes.plot(tasks, middle, label=name, **look, markeredgecolor="white", markeredgewidth=0.4)
    if any(len(numbers) > 1 for _, numbers in known):
        spread = np.array([_std(numbers) for _, numbers in known])
        axes.fill_between(tasks, middle - spread, middle + spread, color=look["color"], alpha=0.18, linewidth=0)


def _look(style: int) -> dict[str, Any]:
    """Colour, marker and line of a series; where the colours begin again, they meet other markers and lines."""
    place = style + style // len(COLOURS)
    return {
        "color": COLOURS[style % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place % len(LINES)],
    }


def _percent(axes: Axes) -> None:
    """A percentage axis; it spans 5 points or more, so that noise looks like noise, and ends near 0 and 100."""
    axes.margins(y=0.08)
    low, high = axes.get_ylim()
    more = max(0.0, 5.0 - (high - low)) / 2
    axes.set_ylim(max(low - more, -2.0), min(high + more, 102.0))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _tasks(axes: Axes, series: Sequence[Curve], first: int = 1) -> None:
    last = max(len(run["accuracy_per_task"]) for one in series for run in one.runs)
    axes.set_xlabel("task")
    axes.set_xticks(range(first, last + 1, math.ceil(last / 12)))


def _legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    longest = max(map(len, names), default=0)
    columns = min(len(names), 1 if longest > 30 else 2 if longest > 12 else 3)
    figure.legend(handles, names, loc="outside upper center", ncols=max(columns, 1), columnspacing=1.4)


def _swept(series: Sequence[Curve]) -> str:
    """-> the setting that takes most values; one of the stream only where there is no other."""
    known = dict.fromkeys(key for one in series for key in one.entry.settings)
    keys = [key for key in known if key not in WORDS] or known
    return max(keys, key=lambda key: len({one.entry.settings.get(key) for one in series}))


def _counts(one: Curve, epoch: str, kind: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """-> [runs, classes]."""
    return np.array([run["class_prior"][epoch][kind] for run in one.runs], dtype=np.float64)


def _std(numbers: Sequence[float]) -> float:
    return stdev(numbers) if len(numbers) > 1 else 0.0
