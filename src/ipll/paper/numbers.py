"""Numbers: what the finished runs of a table or figure say, and of every number how it was obtained."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from ipll.errors import RunError
from ipll.paper import OUT
from ipll.paper.catalogue import ACCURACY, SEEDS, Bench, Cell, Entry
from ipll.paper.published import paper_value
from ipll.paper.wording import WORDS
from ipll.plugins import loaded_files
from ipll.results.conditions import on_samples, scored_alike, scored_on, short_epochs
from ipll.results.result import Result

Record = Mapping[str, Any]


class Metric(NamedTuple):
    words: str
    short: str  # in the rows of a table that has several
    value: Callable[[Mapping[str, Any]], float | None]  # of one run


def _over_tasks(field: str) -> Callable[[Mapping[str, Any]], float | None]:
    """The plain mean over the tasks that have a value: the second and later ones, for a separation."""

    def value(result: Mapping[str, Any]) -> float | None:
        known = [one for one in result[f"{field}_per_task"] if one is not None]
        return mean(known) if known else None

    return value


METRICS = {
    ACCURACY: Metric("average incremental accuracy in %", "accuracy", lambda result: float(result[ACCURACY])),
    "std": Metric(
        "std of the average incremental accuracy over seeds, in points", "std", lambda result: float(result[ACCURACY])
    ),
    "seconds_per_epoch": Metric("seconds per epoch", "seconds", lambda result: float(result["seconds_per_epoch"])),
    "separation_accuracy_mean": Metric("separation accuracy in %", "all samples", _over_tasks("separation_accuracy")),
    "separation_accuracy_new": Metric("separation accuracy in %", "new samples", _over_tasks("separation_new_recall")),
    "separation_accuracy_old": Metric("separation accuracy in %", "old samples", _over_tasks("separation_old_recall")),
}


class Origin(NamedTuple):
    """How a run was obtained."""

    epochs: str  # of a task; '200/30': of the first and of each later one
    hardware: str
    torch: str
    commit: str
    scored_on: str

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Origin:
        environment = result["environment"]
        commit, changed, _ = (environment["commit"] or "unknown").partition("+")
        torch = environment["packages"]["torch"]
        epochs = short_epochs(int(result["epochs"]), int(result.get("later_epochs", 0)))
        return cls(epochs, str(environment["hardware"]), str(torch), commit[:10] + changed, scored_on(result))


def epochs_a_task(epochs: Sequence[str]) -> str:
    """-> '1 epoch a task', '200/30 epochs a task', '20 or 40 epochs a task'."""
    return f"{' or '.join(epochs)} epoch{'' if list(epochs) == ['1'] else 's'} a task"


def seeds_in_words(runs: Sequence[Record]) -> str:
    """-> 'seeds 0, 1'."""
    return f"seed{'s' if len(runs) > 1 else ''} {', '.join(str(run['seed']) for run in runs)}"


SEEDS_DIFFER = "Another seed is another class order and another stream: compare with care."


def unlike_seeds(runs: Mapping[str, Sequence[Record]]) -> str:
    """-> 'seeds 0, 1: pgdr, pgdr/pp; seed 1: pgdr/mp', where not all that are compared rest on the same; else ''."""
    groups: dict[str, list[str]] = {}
    for name, own in runs.items():
        if own:
            groups.setdefault(seeds_in_words(own), []).append(name)
    return "; ".join(f"{seeds}: {', '.join(names)}" for seeds, names in groups.items()) if len(groups) > 1 else ""


class Runs(NamedTuple):
    """The finished runs of a bench; those that are still to be made; and what is wrong with files that are damaged."""

    found: dict[Cell, Record]
    missing: list[Cell]
    damaged: list[str]

    def of(self, entry: Entry, seeds: Iterable[int]) -> list[Record]:
        return [run for seed in seeds if (run := self.found.get(entry.cell(seed)))] if entry.available else []

    @property
    def scored_on(self) -> str:
        """-> what all of them were scored on: `find_runs` lets no others through."""
        return scored_alike({str(cell): run for cell, run in self.found.items()})


def find_runs(bench: Bench, out: Path, seeds: Iterable[int]) -> Runs:
    """Reads result.json of the bench's cells. A damaged file is left where it is, and counts as missing. Runs that were
    scored on validation samples are refused beside others."""
    runs, by_folder = Runs({}, [], []), {}
    for cell in bench.cells(seeds):
        folder = cell.folder(out)
        if (folder / "result.json").exists():
            try:
                runs.found[cell] = by_folder[str(folder)] = _read(cell, folder)
                continue
            except RunError as error:
                if str(error) not in runs.damaged:
                    runs.damaged.append(str(error))
        runs.missing.append(cell)
    scored_alike(by_folder)
    return runs


def _read(cell: Cell, folder: Path) -> Record:
    result = Result.load(folder, remedy="Left out: the same ipll bench runs it again.")
    if (result["preset"], result["method"], result["seed"]) != (cell.preset, cell.method, cell.seed):
        raise RunError(
            f"{folder / 'result.json'}: this is the result of another run than {cell}. Left out: move "
            "it elsewhere, and the same ipll bench runs that."
        )
    return result


def command(bench: Bench, out: Path, seeds: Sequence[int]) -> str:
    """-> the command that makes the runs of a bench."""
    words = ["ipll", "bench", bench.name, *bench.options, *plugin_words()]
    if tuple(seeds) != SEEDS:
        first = tuple(seeds) == tuple(range(len(seeds)))
        words += ["--seeds", str(len(seeds)) if first else "".join(f"{seed}," for seed in seeds)]
    if out != OUT:
        words += ["--out", str(out)]
    return shlex.join(words)


def plugin_words() -> list[str]:
    """-> --plugin FILE for each that is loaded, as words of a command."""
    return [word for path in loaded_files() for word in ("--plugin", path)]


def no_runs(bench: Bench, out: Path, seeds: Sequence[int], damaged: Sequence[str]) -> RunError:
    """The error of one who asks for a table or a figure that has no runs."""
    if not any(entry.available for entry in bench.entries):
        presets = ", ".join(dict.fromkeys(entry.preset for entry in bench.entries))
        return RunError(f"{bench.name} is of {presets}, which this version has no preset for. Use --preset.")
    words = [*damaged, f"{out} holds no finished run of {bench.name}. Make them with: {command(bench, out, seeds)}"]
    return RunError("\n".join(words))


@dataclass(frozen=True)
class Number:
    """An entry of the table, with our runs of it, and, of published ones, how they were trained."""

    entry: Entry
    runs: Sequence[Record]
    protocol: str = ""

    @property
    def values(self) -> list[float]:
        value = METRICS[self.entry.metric].value
        return [one for run in self.runs if (one := value(run)) is not None]

    @property
    def mean(self) -> float | None:
        if self.entry.metric == "std":
            return stdev(self.values) if len(self.values) > 1 else None
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """With n - 1 below the line. One run has none, and a spread has none of its own."""
        return stdev(self.values) if len(self.values) > 1 and self.entry.metric != "std" else None

    @property
    def paper_std(self) -> float | None:
        """The paper gives it for one of its tables."""
        settings = self.entry.settings
        if self.entry.paper is None or self.entry.metric != ACCURACY or set(settings) - set(WORDS):
            return None
        q = settings.get("stream.candidates") or settings.get("stream.q", "")
        stream = {key: settings[f"stream.{key}"] for key in ("blurry", "tasks") if f"stream.{key}" in settings}
        return paper_value(self.entry.method, self.entry.preset, q=q, metric="std", **stream)

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.entry.paper is None else self.mean - self.entry.paper

    @property
    def mark(self) -> str:
        """'*' where mean ± std of ours and of the paper do not meet; '†' where the paper's number, whose std is not
        known, lies outside ours. Times have no mark: the machines differ."""
        if self.difference is None or self.std is None or self.entry.metric == "seconds_per_epoch":
            return ""
        if abs(self.difference) <= self.std + (self.paper_std or 0):
            return ""
        return "†" if self.paper_std is None else "*"

    @property
    def origins(self) -> list[list[str]]:
        """For each field of an Origin, its values over the runs."""
        runs = [Origin.of(run) for run in self.runs]
        return [list(dict.fromkeys(str(run[i]) for run in runs)) for i in range(len(Origin._fields))]

    @property
    def obtained(self) -> str:
        n = f"n = {len(self.runs)} ({seeds_in_words(self.runs)})"
        epochs, *others = self.origins
        hardware, torch, commit, scored = (" or ".join(values) for values in others)
        words = [n, epochs_a_task(epochs), hardware, f"torch {torch}", f"commit {commit}"]
        return ", ".join([*words, f"scored{on_samples(scored)}"] if on_samples(scored) else words)
