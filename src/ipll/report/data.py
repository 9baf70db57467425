"""What the report says of its runs side by side, as plain data: names, groups, curves, tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ipll.pages import charts
from ipll.pages.page import NONE, Row
from ipll.results.conditions import VALIDATION, epochs_in_words, scored_on, short_epochs

SUMMARY = ("average_incremental_accuracy", "last_accuracy", "forgetting")


@dataclass(frozen=True)
class Run:
    """A finished run, with the name it goes by in this report."""

    folder: Path
    number: int
    name: str
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed. `number` picks the colour."""

    number: int
    name: str
    runs: list[Run]
    meaning: str  # of the method, in words

    @property
    def swatch(self) -> str:
        return charts.swatch(self.number)

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.result["seed"]) for run in self.runs)

    def series(self, key: str) -> charts.Series:
        lines = [run.result[key] for run in self.runs]
        columns = list(zip(*lines, strict=True))
        means, deviations = [mean(column) for column in columns], [deviation(column) for column in columns]
        several = len(lines) > 1
        return charts.Series(self.name, means, self.number, deviations if several else (), lines if several else ())

    def summary(self) -> list[tuple[float | None, float | None]]:
        """-> (mean, standard deviation) of each field of SUMMARY."""
        columns = [[run.result[key] for run in self.runs] for key in SUMMARY]
        return [(mean(column), deviation(column)) for column in columns]


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def deviation(values: Sequence[float | None]) -> float | None:
    """The sample standard deviation; None of fewer than two values."""
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) == len(values) > 1 else None


def grouped(folders: Sequence[Path], results: Sequence[Mapping[str, Any]], meanings: Mapping[str, str]) -> list[Group]:
    """Puts runs together that differ only in the seed, and names groups and runs as shortly as tells them apart."""
    members: list[list[int]] = []
    keys: list[str] = []
    for i, result in enumerate(results):
        config = {key: value for key, value in result["config"].items() if key != "seed"}
        key = json.dumps([config, len(result["accuracy_per_task"])], sort_keys=True)
        for own, known in zip(members, keys, strict=True):
            if key == known and all(results[j]["seed"] != result["seed"] for j in own):
                own.append(i)
                break
        else:
            members.append([i])
            keys.append(key)
    names = _names([results[own[0]] for own in members], [folders[own[0]] for own in members])
    groups = []
    for number, (own, name) in enumerate(zip(members, names, strict=True)):
        several, meaning = len(own) > 1, meanings.get(results[own[0]]["method"], "")
        titles = [f"{name} seed {results[i]['seed']}" if several else name for i in own]
        runs = [Run(folders[i], i, title, results[i]) for i, title in zip(own, titles, strict=True)]
        groups.append(Group(number, name, runs, meaning))
    return groups


def _names(results: Sequence[Mapping[str, Any]], folders: Sequence[Path]) -> list[str]:
    """The method, then preset, seed, differing settings and folder where they are needed; a number if all fails."""
    settings = [flat(result["config"]) for result in results]
    apart = [
        key for key, cells in by_column(settings) if len(set(cells)) > 1 and key not in ("method", "preset", "seed")
    ]
    rows = [
        (
            str(result["method"]),
            f"on {result['preset']}",
            f"seed {result['seed']}",
            ", ".join(f"{key}={own.get(key, NONE)}" for key in apart[:2]),
            folder.resolve().name,
            f"({i + 1})",
        )
        for i, (folder, result, own) in enumerate(zip(folders, results, settings, strict=True))
    ]
    names = [row[0] for row in rows]
    for column in range(1, 6):
        if len(set(names)) == len(names):
            break
        if len({row[column] for row in rows}) > 1:
            names = [f"{name} {row[column]}" for name, row in zip(names, rows, strict=True)]
    return names


def sentences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """What was done, in words, and the names of the groups that it holds for."""
    found: dict[str, list[str]] = {}
    for group in groups:
        found.setdefault(_sentence(group.runs[0].result), []).append(group.name)
    return found


def _sentence(result: Mapping[str, Any]) -> str:
    stream, tasks = result["config"]["stream"], len(result["accuracy_per_task"])
    others = "class of its superclass" if stream["flip_scope"] == "superclass" else "class"
    flips = {
        "uniform": f"each other {others} seen so far joins it with probability q = {stream['q']:g}",
        "banded": "each of the five classes that arrived just before it joins with a probability from 0.5 to 0.1",
    }.get(stream["candidates"], f"others join it by the rule “{stream['candidates']}” with q = {stream['q']:g}")
    late = "that part of each class arrives only after its own task" if stream["blurry"] else "no class arrives late"
    return (
        f"{len(result['class_names'])} classes of {result['config']['data'].get('source', 'unknown data')} arrive in "
        f"{tasks} {'tasks' if tasks > 1 else 'task'}, {epochs_in_words(*_epochs(result))}. "
        f"A sample comes with a set of candidate labels instead of its true one: the true label is in it, and {flips}. "
        f"The blurry share is {stream['blurry']:g} %: {late}.{_held_out(result)}"
    )


def _epochs(result: Mapping[str, Any]) -> tuple[int, int]:
    """-> the epochs of the first task, and of each later one where that is another number; else 0."""
    several = len(result["accuracy_per_task"]) > 1
    return result["epochs"], result.get("later_epochs", 0) if several else 0


def _held_out(result: Mapping[str, Any]) -> str:
    if scored_on(result) != VALIDATION:
        return ""
    share = result["config"]["data"].get("validation", 0.0)
    return (
        f" The validation samples are {100 * share:g} % of every class’s training samples, taken out before the stream "
        "was built."
    )


def caution(groups: Sequence[Group]) -> str:
    """Why the groups cannot simply be compared; empty if they can."""
    configs = [g.runs[0].result["config"] for g in groups]
    streams = [  # those of earlier versions lack a setting
        json.dumps([{"validation": 0.0} | config["data"], {"given": ""} | config["stream"]], sort_keys=True)
        for config in configs
    ]
    if len(set(streams)) > 1:
        return "These runs did not learn from the same stream: their data set or stream settings differ."
    if len({frozenset(run.result["seed"] for run in group.runs) for group in groups}) > 1:
        return "These runs did not learn from the same streams: their seeds differ."
    return ""


class Compared(NamedTuple):
    """A row of the table of runs. `cells` are those of SUMMARY, and whether each is the best."""

    name: str
    group: Group | None  # None: one of the runs of the group above
    setting: str
    seeds: str
    cells: list[tuple[str, bool]]
    time: str
    hardware: str


def comparison(groups: Sequence[Group]) -> list[Compared]:
    """The table of runs: a row a group, and below it a row a run where it has several; the best groups are marked."""
    summaries = [group.summary() for group in groups]
    best = [max((s[c][0] or 0.0 for s in summaries), default=0.0) for c in range(2)]
    best.append(min(s[2][0] or 0.0 for s in summaries))
    rows = []
    for group, summary in zip(groups, summaries, strict=True):
        cells = [
            (with_spread(*pair), len(groups) > 1 and pair[0] == top) for pair, top in zip(summary, best, strict=True)
        ]
        rows.append(_compared(group.name, group, group.runs, group.seeds, cells))
        if len(group.runs) > 1:
            for run in group.runs:
                single = [(percent(run.result[key]), False) for key in SUMMARY]
                rows.append(_compared(run.name, None, [run], str(run.result["seed"]), single))
    return rows


def _compared(
    name: str, group: Group | None, runs: Sequence[Run], seeds: str, cells: list[tuple[str, bool]]
) -> Compared:
    first = runs[0].result
    stream = first["config"]["stream"]
    setting = (
        f"{first['preset']} · {len(first['accuracy_per_task'])} tasks · q {stream['q']:g} · "
        f"blurry {stream['blurry']:g} % · {short_epochs(*_epochs(first))} epochs"
    )
    time = duration(float(np.mean([run.result["wall_seconds"] for run in runs])))
    environments = (one for r in runs for one in (*r.result.get("earlier_environments", ()), r.result["environment"]))
    hardware = dict.fromkeys(str(one.get("hardware", NONE)) for one in environments)
    return Compared(name, group, setting if group else "", seeds, cells, time, ", ".join(hardware))


def task_rows(series: Sequence[charts.Series]) -> list[Row]:
    """The numbers of curves, a cell a task; of a group, its mean and deviation."""
    tasks = max(len(line.values) for line in series)
    rows = []
    for line in series:
        spreads = line.deviations or [None] * len(line.values)
        cells = [with_spread(v, d) for v, d in zip(line.values, spreads, strict=True)]
        rows.append((line.name, cells + [NONE] * (tasks - len(cells))))
    return rows


def timings(runs: Sequence[Run]) -> list[Row]:
    return [
        (
            run.name,
            [
                duration(run.result["wall_seconds"]),
                f"{run.result['seconds_per_epoch']:.3g} s",
                f"{run.result['samples_per_second']:,.0f}",
                f"{run.result['peak_memory_bytes'] / 2**20:,.0f} MiB",
            ],
        )
        for run in runs
    ]


def environment_rows(result: Mapping[str, Any]) -> dict[str, str]:
    """-> where a run ended; and where it was before, if anywhere else: in what that was different."""
    last = flat(result["environment"])
    rows = dict(last)
    for number, earlier in enumerate(result.get("earlier_environments", []), 1):
        other = flat(earlier)
        different = [f"{key} {other.get(key, NONE)}" for key in {**last, **other} if other.get(key) != last.get(key)]
        rows[f"before it was resumed ({number})"] = ", ".join(different)
    return rows


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Nested tables -> {'a.b': 'value'}, values as a user would write them."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{path}{key}.")
        elif value is None:
            found[path + key] = NONE
        else:
            found[path + key] = value if isinstance(value, str) else json.dumps(value)
    return found


def by_column(tables: Sequence[Mapping[str, str]]) -> list[Row]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, [table.get(key, NONE) for table in tables]) for key in keys]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def with_spread(value: float | None, spread: float | None) -> str:
    return percent(value) if spread is None else f"{percent(value)} ± {spread:.1f}"
