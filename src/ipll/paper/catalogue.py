"""The catalogue: every table and figure of the paper as a list of runs, and where each run's folder lies.

A `Bench` has entries, the numbers that its table or figure shows; an entry asks for one method in one setting, over a
few seeds; a `Cell` is one run. Tables share cells: the folder's name comes from the settings, not from the table.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from ipll.config import Config, preset_names, resolve
from ipll.errors import ConfigError, suggest
from ipll.method import method_entry, method_table
from ipll.paper import published as paper
from ipll.paper.wording import CANDIDATES, SOURCE, WORDS, flat, freeze, frozen, option, text_of, without_a_part

SEEDS = (0, 1, 2)  # the paper's numbers are means of three runs
ACCURACY = "average_incremental_accuracy"
LONGEST = 200  # characters of a folder's name; file systems take 255 bytes


@dataclass(frozen=True)
class Entry:
    """One number: a method in a setting. `paper` is the paper's value, where it has one."""

    preset: str
    method: str
    settings: Mapping[str, Any] = field(hash=False)  # overrides, as for --set
    metric: str = ACCURACY
    paper: float | None = None
    asked: Mapping[str, Any] = field(default_factory=dict, hash=False)  # the caller's own overrides, on top

    @property
    def available(self) -> bool:
        """Is the preset there in this version?"""
        return self.preset in preset_names()

    @property
    def place(self) -> tuple[Any, ...]:
        """What entries of several methods have in common that stand side by side."""
        return self.preset, freeze(self.settings), self.metric

    def cell(self, seed: int) -> Cell:
        return Cell(self.preset, self.method, seed, freeze({**self.settings, **self.asked}))

    @property
    def told(self) -> dict[str, Any]:
        """The settings that its labels tell, with what was asked in their place."""
        told = {key: self.asked.get(key, value) for key, value in self.settings.items()}
        told |= {key: value for key, value in self.asked.items() if key == CANDIDATES}
        return {key: value for key, value in told.items() if key not in without_a_part(told)}

    def fixed(self, key: str) -> Any:
        """What the entry says of a setting; None where it leaves that to preset and method."""
        return _source_of(self.preset) if key == SOURCE and self.available else frozen(self.settings.get(key))

    @property
    def column(self) -> str:
        """The setting in words: 'cifar100, 10 tasks, 10-blurry, q 0.1'."""
        told, source = self.told, self.asked.get(SOURCE, self.fixed(SOURCE))
        learnt = self.preset if source == self.fixed(SOURCE) else f"{source} (preset {self.preset})"
        return ", ".join([learnt, *(form.format(text_of(told[key])) for key, form in WORDS.items() if key in told)])

    @property
    def row(self) -> str:
        """The method, and the setting that is swept: 'pgdr, memory.size 500'."""
        swept = [f"{key} {text_of(value)}" for key, value in self.told.items() if key not in WORDS]
        return ", ".join([self.method, *swept])


@cache
def _source_of(preset: str) -> str:
    return resolve(preset).data.source


@dataclass(frozen=True)
class Cell:
    """One run: a method in a setting with a seed. Equal cells are the same run, whichever table asks."""

    preset: str
    method: str
    seed: int
    settings: tuple[tuple[str, Any], ...] = ()  # as `freeze` makes them

    def config(self) -> Config:
        overrides = {key: list(value) if isinstance(value, tuple) else value for key, value in self.settings}
        return resolve(self.preset, self.method, seed=self.seed, overrides=overrides)

    def folder(self, out: Path) -> Path:
        """OUT/PRESET/METHOD/SETTING/seedN; SETTING names what differs from the preset, 'default' if nothing does."""
        return out / self.preset / self.method.replace("/", "--") / self._setting() / f"seed{self.seed}"

    def _setting(self) -> str:
        ours = flat(self.config().to_table())
        plain = flat(resolve(self.preset, self.method, seed=self.seed).to_table())
        parts = [f"{key}={text_of(ours[key])}" for key in sorted(ours) if ours[key] != plain.get(key)]
        name = re.sub(r"[^\w.,=+-]", "_", ",".join(parts)) or "default"
        return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{sha256(','.join(parts).encode()).hexdigest()[:12]}"

    def __str__(self) -> str:
        settings = "".join(f" {key}={text_of(value)}" for key, value in self.settings)
        return f"{self.preset} {self.method}{settings} seed {self.seed}"


@dataclass(frozen=True)
class Bench:
    """A table or a figure. `figure` names how it is drawn; a table has none. `options` are those of `ipll bench` that
    make it of the paper's."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    figure: str | None = None
    options: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The caller's own settings, in words."""
        return ", ".join(option(*one) for one in self.entries[0].asked.items())

    def on(self, preset: str) -> Bench:
        """The same methods and settings on another data set, with its own number of tasks; no number of the paper's."""
        entries: dict[Hashable, Entry] = {}
        for entry in self.entries:
            settings = {key: value for key, value in entry.settings.items() if key != "stream.tasks"}
            moved = replace(entry, preset=preset, settings=settings, paper=None)
            entries.setdefault((moved.method, tuple(sorted(settings.items())), moved.metric), moved)
        return replace(self, entries=tuple(entries.values()), options=(*self.options, "--preset", preset))

    def beside(self, methods: Sequence[str]) -> Bench:
        """And below them further methods, in every setting that the table has; without a number of the paper's."""
        if methods and self.figure == "separation":
            raise ConfigError(
                f"--method: {self.name} is of one method, whose separation it takes apart. That of others stands in "
                "the report of their runs: ipll report."
            )
        places = {entry.place: entry for entry in self.entries}
        there = {(entry.method, entry.place) for entry in self.entries}
        wanted = [(method, place) for method in dict.fromkeys(methods) for place in places]
        added = [replace(places[p], method=m, paper=None) for m, p in wanted if (m, p) not in there]
        for entry in added:
            self._check_goes(entry)
        options = (word for method in methods for word in ("--method", method))
        return replace(self, entries=(*self.entries, *added), options=(*self.options, *options))

    def _check_goes(self, entry: Entry) -> None:
        """Raises where an added method is not known, or has not what the table varies."""
        method_entry(entry.method)
        swept = {key: value for key, value in entry.settings.items() if key not in WORDS}
        families = {key.partition(".")[0] for key in swept}
        try:
            for part in entry.cell(0).config().parts if entry.available else ():
                if part.kind == "none" and part.family in families:
                    raise ConfigError(f"it has no {part.family}.")
        except ConfigError as error:
            varied = f", which varies {', '.join(swept)}" if swept else ""
            raise ConfigError(f"--method {entry.method} cannot join {self.name}{varied}: {error}") from None

    def with_settings(self, overrides: Mapping[str, Any]) -> Bench:
        """With settings of the caller's for every cell, but for those that would make a label false, or a number of
        the paper's beside it."""
        for key, value in overrides.items():
            for told in (key, *without_a_part({key: value})):
                if wrong := self._taken(told, value):
                    raise ConfigError(f"--set {option(key, value)}: {wrong} {self._ways_out(told, key, value)}")
        entries = (replace(entry, asked={**entry.asked, **overrides}) for entry in self.entries)
        options = (word for one in overrides.items() for word in ("--set", option(*one)))
        return replace(self, entries=tuple(entries), options=(*self.options, *options))

    def _taken(self, key: str, value: Any) -> str:
        """-> why a setting cannot have this value here; '' if it can."""
        own = dict.fromkeys(entry.fixed(key) for entry in self.entries)
        values = ", ".join(text_of(one) for one in own if one is not None)
        if len(own) > 1:
            return f"{self.name} itself varies {key} ({values}), so its labels would be false."
        if values and frozen(value) not in own and any(entry.paper is not None for entry in self.entries):
            return f"{self.name} is of {key}={values}, as the paper's numbers in it are."
        return ""

    def _ways_out(self, told: str, key: str, value: Any) -> str:
        first = self.entries[0]
        columns = dict.fromkeys(entry.fixed(told) for entry in self.entries) if told in WORDS else ()
        labels = [shlex.quote(WORDS[told].format(text_of(one))) for one in columns if one is not None]
        ways = [f"choose a column with {' or '.join(f'--only {label}' for label in labels)}"] if len(labels) > 1 else []
        if not self.on(first.preset)._taken(told, value):
            ways.append(f"leave the paper's numbers out with --preset {first.preset}")
        words = ["ipll", "run", first.preset, "--method", first.method, "--set", option(key, value)]
        text = ", or ".join([*ways, f"make a run of your own: {shlex.join(words)}"])
        return text[0].upper() + text[1:]

    def only(self, patterns: Sequence[str]) -> Bench:
        """The entries of one of these methods, of one of these presets, whose column holds one of these words."""
        methods = {entry.method for entry in self.entries} & {*patterns}
        presets = {entry.preset for entry in self.entries} & {*patterns}
        words = [pattern for pattern in patterns if pattern not in methods | presets]
        kept = tuple(
            entry
            for entry in self.entries
            if (not methods or entry.method in methods)
            and (not presets or entry.preset in presets)
            and (not words or any(word in entry.column for word in words))
        )
        if not kept:
            columns = "; ".join(dict.fromkeys(entry.column for entry in self.entries))
            further = "".join(f" {word} joins with --method {word}." for word in words if word in method_table())
            raise ConfigError(
                f"--only {', '.join(patterns)}: no cell of {self.name} is of that kind. Besides methods and data sets, "
                f"words of these choose: {columns}.{further}"
            )
        options = (word for pattern in patterns for word in ("--only", pattern))
        return replace(self, entries=kept, options=(*self.options, *options))

    def cells(self, seeds: Iterable[int] = SEEDS) -> tuple[Cell, ...]:
        """The runs that the entries need, each once, seed by seed; those of presets that are not there are left out."""
        found = (entry.cell(seed) for seed in seeds for entry in self.entries if entry.available)
        return tuple(dict.fromkeys(found))


@cache
def benches() -> dict[str, Bench]:
    """All of them, by name, in the paper's order."""
    rows = tomllib.loads(resources.files("ipll").joinpath("paper/catalogue.toml").read_text(encoding="utf-8"))
    return {name: _bench(name, row) for name, row in rows.items()}


def find_bench(name: str) -> Bench:
    if name not in benches():
        raise ConfigError(f"there is no table or figure '{name}'.{suggest(name, benches())} See: ipll bench --list")
    return benches()[name]


def _bench(name: str, row: Mapping[str, Any]) -> Bench:
    if "labels" in row:
        unstated = row.get("unstated", {})
        entries = [
            _of_paper(cell, unstated) for label in row["labels"] for cell in paper.cells() if cell.table == label
        ]
    else:
        keys, values = list(row["settings"]), list(row["settings"].values())
        combined = [dict(zip(keys, one, strict=True)) for one in product(*values)]
        entries = [Entry(row["preset"], method, settings) for settings in combined for method in row["methods"]]
    return Bench(name, row["title"], tuple(entries), row.get("figure"))


def _of_paper(cell: paper.Printed, unstated: Mapping[str, Any]) -> Entry:
    settings: dict[str, Any] = dict(unstated)
    if cell.tasks:
        settings["stream.tasks"] = int(cell.tasks)
    if cell.blurry:
        settings["stream.blurry"] = float(cell.blurry)
    if cell.q == "banded":
        settings["stream.candidates"] = "banded"
    elif cell.q:
        settings["stream.q"] = float(cell.q)
    return Entry(cell.dataset, cell.method, settings | dict(cell.settings), cell.metric, cell.value)
