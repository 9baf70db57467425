"""What was measured here: the published runs, a line each in measured.jsonl, which ships with the package.

`results/publish.py` makes that file from the result files in the repository, so that nobody types a number. A line
holds fields of a result file as they are there, and where the run belongs: its setting and its protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import PurePath
from statistics import mean, stdev
from typing import Any, NamedTuple

from ipll.config import preset_names, resolve
from ipll.method import canonical, our_methods
from ipll.paper.catalogue import ACCURACY, Bench, Entry
from ipll.paper.numbers import Number, Record, Runs
from ipll.paper.published import cells, paper_value
from ipll.paper.wording import WORDS, flat, freeze, text_of
from ipll.results.conditions import epochs_in_words, scored_on, short_epochs
from ipll.results.schema import per_task

FILE = "paper/measured.jsonl"
FIELDS = ("preset", "method", "seed", "epochs", ACCURACY, "last_accuracy")
PER_TASK = (
    "accuracy", "old_accuracy", "new_accuracy", "separation_accuracy", "separation_new_recall", "separation_old_recall",
)  # fmt: skip
TOLD = {*WORDS, "seed", "preset", "method", "data.source", "model.weights_sha256"}  # told otherwise
HOW = {"data.residence", "train.threads", "train.compile", "train.graphs", "train.checkpoint_seconds"}  # on any machine
FORMER = {"retention.weighting": "classes"}  # what was done before there was a setting, where that was another thing
TRAINING = ("data.", "augment.", "model.", "train.")  # settings that make another protocol; others, another setting


class Setting(NamedTuple):
    """What is to be learnt, and settings of the method that are not its own, as in a sweep."""

    dataset: str
    tasks: int
    blurry: float
    q: str  # or 'banded'
    swept: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        q = self.q if self.q == "banded" else f"q {self.q}"
        words = [self.dataset, f"{self.tasks} tasks", f"{self.blurry:g}-blurry", q]
        return ", ".join([*words, *(f"{key} {text_of(value)}" for key, value in self.swept)])


class Protocol(NamedTuple):
    """How was it trained: as a preset says, but for these settings."""

    preset: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def is_papers(self) -> bool:
        """The paper's protocol on a data set is the preset of that name."""
        return not self.settings and self.preset in {cell.dataset for cell in cells()}

    def __str__(self) -> str:
        own = {key: value for key, value in self.settings if key.startswith("train.")}
        train = resolve(self.preset, overrides=own).train
        epochs = re.sub(" each$", " a task", epochs_in_words(train.epochs, train.later_epochs))
        whose = "the paper's protocol" if self.is_papers else f"our training, preset {self.preset}"
        but = "".join(f", {key}={text_of(value)}" for key, value in self.settings)
        return f"{whose}{but}: {epochs}, batches of {train.batch_size}"


def place(config: Mapping[str, Any], preset: str, method: str) -> tuple[Setting, Protocol]:
    """Where a run belongs, by its whole configuration. Settings that were not known then are as they are now."""
    here, plain, stream = flat(config), flat(resolve(preset, method).to_table()), config["stream"]
    here |= {key: value for key, value in FORMER.items() if key in plain and key not in here}
    dataset = config["data"]["source"]
    if dataset in preset_names():  # whose stream is the paper's, whichever preset trains
        plain |= {key: one for key, one in flat(resolve(dataset).to_table()).items() if key.startswith("stream.")}
    changed = {key: here[key] for key in here if here[key] != plain.get(key, here[key]) and key not in TOLD | HOW}
    if "model.weights" in changed:  # wherever it lay
        changed["model.weights"] = PurePath(changed["model.weights"]).name
    training = {key: value for key, value in changed.items() if key.startswith(TRAINING)}
    swept = freeze({key: value for key, value in changed.items() if key not in training})
    q = stream["candidates"] if stream["candidates"] != "uniform" else f"{stream['q']:g}"
    setting = Setting(dataset, stream["tasks"], float(stream["blurry"]), q, swept)
    return setting, Protocol(preset, freeze(training))


def line_of(result: Record, file: str) -> str:
    """-> the line of a result file. Only what was scored on the test set is published."""
    if scored_on(result) != "test":
        raise ValueError(f"{file} was scored on validation samples: only numbers on the test set are published")
    setting, protocol = place(result["config"], result["preset"], result["method"])
    environment = result["environment"]
    kept = {
        "file": file,
        **{name: result[name] for name in FIELDS},
        "later_epochs": result.get("later_epochs", 0),
        "setting": setting._asdict() | {"swept": dict(setting.swept)},
        "training": dict(protocol.settings),
        **{per_task(name): result[per_task(name)] for name in PER_TASK},
        "environment": {
            "hardware": environment["hardware"],
            "commit": environment["commit"],
            "packages": {"torch": environment["packages"]["torch"]},
        },
    }
    return json.dumps(_rounded(kept))


def _rounded(value: Any) -> Any:
    """Four decimals are enough."""
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


@dataclass(frozen=True)
class Measured:
    """A method in a setting under a protocol, measured on the test set: a run a seed."""

    method: str
    setting: Setting
    protocol: Protocol
    runs: tuple[Record, ...]

    @property
    def values(self) -> list[float]:
        return [run[ACCURACY] for run in self.runs]

    @property
    def ours(self) -> float:
        return mean(self.values)

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.runs) > 1 else None

    @property
    def last(self) -> float:
        """After the last task."""
        return mean(float(run["last_accuracy"]) for run in self.runs)

    @property
    def paper(self) -> float | None:
        """The paper's number of the same method in the same setting, under its own protocol."""
        where = self.setting
        if where.swept:
            return None
        return paper_value(self.method, where.dataset, q=where.q, blurry=where.blurry, tasks=where.tasks)

    @cached_property
    def papers_best(self) -> tuple[str, float] | None:
        """-> the method that is best in this setting in the paper, and its number."""
        dataset, tasks, blurry, q, _ = self.setting
        wanted = (dataset, str(tasks), f"{blurry:g}", q, ACCURACY)
        found = {
            cell.method: cell.value
            for cell in cells()
            if (cell.dataset, cell.tasks, cell.blurry, cell.q, cell.metric) == wanted and not cell.settings
        }
        return max(found.items(), key=lambda one: one[1]) if found else None

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(run["file"] for run in self.runs)

    def __str__(self) -> str:
        paper = "-" if self.paper is None else f"{self.paper:.2f}"
        epochs = f"{short_epochs(self.runs[0]['epochs'], self.runs[0]['later_epochs'])} epochs"
        how = epochs if self.protocol.is_papers else f"{epochs}, {str(self.protocol).partition(':')[0]}"
        first, *more = self.files
        where = f"{first} and {len(more)} more" if more else first
        return f"{self.ours:.2f} (paper {paper}), {self.setting}, {how}, n = {len(self.runs)}: {where}"


@cache
def measured() -> tuple[Measured, ...]:
    """All of it: what was measured under the paper's protocol first, then by preset; most runs first."""
    found: dict[tuple[str, Setting, Protocol], list[Record]] = {}
    for line in resources.files("ipll").joinpath(FILE).read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        where = dict(run["setting"])
        setting = Setting(**where | {"swept": freeze(where["swept"])})
        protocol = Protocol(run["preset"], freeze(run["training"]))
        found.setdefault((canonical(run["method"]), setting, protocol), []).append(run)
    every = (Measured(*key, tuple(runs)) for key, runs in found.items())
    return tuple(sorted(every, key=lambda one: (not one.protocol.is_papers, one.protocol, -len(one.runs))))


def measured_of(method: str) -> tuple[Measured, ...]:
    return tuple(one for one in measured() if one.method == canonical(method))


# As numbers of the paper's tables and figures


def with_ours(bench: Bench) -> Bench:
    """The bench, and below it the methods of ours that were measured in its settings."""
    columns = dict.fromkeys(
        (entry.preset, freeze(entry.settings))
        for entry in bench.entries
        if entry.paper is not None and entry.metric == ACCURACY and not set(entry.settings) - set(WORDS)
    )
    asked = (Entry(preset, method, dict(own)) for method in our_methods() for preset, own in columns)
    return replace(bench, entries=(*bench.entries, *(entry for entry in asked if any(_found(entry)))))


def published_numbers(bench: Bench, preset: str | None = None) -> list[Number]:
    """The entries of a bench with what was measured here: under the paper's protocol, all of them, also those that were
    not; then what was measured under another. Or of one preset's alone."""
    papers, others = [], []
    for entry in bench.entries:
        found = {one.protocol: one.runs for one in _found(entry)}
        protocol = Protocol(entry.preset)
        runs = found.pop(protocol, ())
        if preset in (None, entry.preset) and (entry.paper is not None or runs):
            papers.append(Number(entry, runs, str(protocol) if entry.available else "the paper's protocol"))
        found = {protocol: runs for protocol, runs in found.items() if preset in (None, protocol.preset)}
        others += [(protocol, Number(entry, runs, str(protocol))) for protocol, runs in found.items()]
    return papers + [one for _, one in sorted(others, key=lambda other: other[0]) if one.mean is not None]


def published_runs(bench: Bench) -> dict[str, Runs]:
    """-> what was measured of a bench, by protocol, to be drawn."""
    numbers = [number for number in published_numbers(bench) if number.runs]
    found: dict[str, Runs] = {number.protocol: Runs({}, [], []) for number in numbers}
    for number in numbers:
        found[number.protocol].found.update({number.entry.cell(run["seed"]): run for run in number.runs})
    return found


def _found(entry: Entry) -> Iterator[Measured]:
    """What was measured of an entry. No times: runs shared their GPU."""
    if entry.available and entry.metric != "seconds_per_epoch" and measured_of(entry.method):
        setting, _ = place(entry.cell(0).config().to_table(), entry.preset, entry.method)
        yield from (one for one in measured_of(entry.method) if one.setting == setting)
