"""What a campaign was asked for, kept in its folder, so that a table or figure need not be told again.

OUT/campaigns/NAME.DIGEST.json holds the options of `ipll bench NAME`, a file for each way it was asked: processes that
write at once never write different things to one file. Campaigns that differ in seeds, --only and --method alone are
shown as one: that of all seeds and methods.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ipll.config import parse_overrides, resolve
from ipll.engine.files import make_folder
from ipll.engine.sealed import read_sealed, write_sealed
from ipll.errors import ConfigError, NewerVersion, RunError
from ipll.paper import OUT
from ipll.paper.campaigns.plan import parse_seeds
from ipll.paper.catalogue import Bench, find_bench
from ipll.paper.numbers import plugin_words

FOLDER = "campaigns"
WHOLE = (
    "The file itself is whole. Where its campaign is of a plugin, name that: --plugin FILE. Where it is of another "
    "version of ipll, move the file elsewhere to be shown the others."
)
DAMAGED = "Remove it, and name its campaign by the options that it was made with (--preset, --set, --seeds)."


@dataclass(frozen=True)
class Asked:
    """The options that say which runs, as they are given on the command line."""

    name: str
    preset: str | None = None
    set: tuple[str, ...] = ()
    seeds: str | None = None  # None: the usual ones
    only: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # beside those of the paper's

    @property
    def plainly(self) -> bool:
        """Does it leave open which campaign is meant?"""
        return self.preset is None and not self.set and self.seeds is None

    def bench(self) -> Bench:
        bench = find_bench(self.name)
        if self.preset is not None:
            resolve(self.preset)  # an unknown one is told with a suggestion
            bench = bench.on(self.preset)
        return bench.beside(self.methods).with_settings(parse_overrides(self.set)).only(self.only)

    def beside(self, methods: tuple[str, ...]) -> Asked:
        """The same, and further methods, whichever rows were chosen of it."""
        rows = {entry.method for entry in self.bench().entries} & {*self.only}
        joined = tuple(dict.fromkeys((*self.methods, *methods)))
        return replace(self, methods=joined, only=(*self.only, *methods) if rows else self.only)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The seeds."""
        return parse_seeds(self.seeds or "3")

    def command(self, verb: str, out: Path) -> str:
        """-> the command that shows just this campaign, or goes on with it."""
        words = ["ipll", verb, self.name, *(["--preset", self.preset] if self.preset else [])]
        words += [word for one in self.methods for word in ("--method", one)]
        words += [word for one in self.set for word in ("--set", one)]
        words += ["--seeds", self.seeds or "3"]
        words += [word for one in self.only if verb != "figure" for word in ("--only", one)]
        return shlex.join([*words, *(["--out", str(out)] if out != OUT else []), *plugin_words()])

    def done(self, out: Path) -> tuple[int, int]:
        """-> how many of its cells have a result, of how many."""
        cells = self.bench().cells(self.numbers)
        found = [(cell.folder(out) / "result.json").exists() for cell in cells]
        return sum(found), len(found)

    def told(self, verb: str, out: Path) -> str:
        """-> a line that lists it."""
        return f"\n  {self.command(verb, out)}  ({'{} of {} runs done'.format(*self.done(out))})"

    def fits(self, asked: Asked) -> bool:
        """Was it made with the preset and the settings that are asked for, whatever others?"""
        own, wanted = parse_overrides(self.set), parse_overrides(asked.set)
        return asked.preset in (None, self.preset) and wanted.items() <= own.items()

    def keep(self, out: Path) -> None:
        """Writes it down, unless it is."""
        options = asdict(replace(self, seeds=self.seeds or "3"))
        if not self.methods:
            del options["methods"]  # as earlier versions write it
        digest = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:12]
        file = out / FOLDER / f"{self.name}.{digest}.json"
        try:
            _read(file, self.name)
        except NewerVersion:
            raise
        except (FileNotFoundError, RunError):
            make_folder(file.parent)
            write_sealed(file, options)


def kept(out: Path, name: str) -> list[Asked]:
    """-> the campaigns of a table or figure that a folder holds, by preset and settings."""
    found: dict[tuple[str | None, str], Asked] = {}
    for file in sorted((out / FOLDER).glob(f"{name}.*.json")):
        one = _read(file, name)
        key = one.preset, repr(sorted(parse_overrides(one.set).items()))
        if (other := found.get(key)) is not None:
            seeds = sorted({*one.numbers, *other.numbers})
            only = (*other.only, *one.only) if one.only and other.only else ()
            usual = seeds == list(range(len(seeds)))
            text = str(len(seeds)) if usual else "".join(f"{seed}," for seed in seeds)
            methods = dict.fromkeys((*other.methods, *one.methods))
            one = replace(one, seeds=text, only=tuple(dict.fromkeys(only)), methods=tuple(methods))
        found[key] = one
    return list(found.values())


def to_show(asked: Asked, out: Path, verb: str) -> Asked | None:
    """-> the campaign that `ipll table` or `ipll figure` is to show: the one with just these options, else the one that
    the folder holds and that they fit. None where there are no such runs, but what we published may do; a RunError
    lists several, or what is there instead."""
    held = kept(out, asked.name)
    found = [one for one in held if one.fits(asked)]
    just = next((replace(asked, seeds=asked.seeds or one.seeds, methods=one.beside(asked.methods).methods)
                 for one in found if asked.fits(one)), asked)  # fmt: skip
    if not asked.plainly and replace(just, only=()).done(out)[0]:
        return just
    if asked.plainly and not found:
        found = [Asked(asked.name)]  # folders of earlier versions keep none
    if len(found) > 1:
        lines = "".join(one.told(verb, out) for one in found)
        raise RunError(f"{out} holds several campaigns of {asked.name}. Show one of them:{lines}")
    for one in found:
        shown = replace(one, seeds=asked.seeds or one.seeds).beside(asked.methods)
        if shown.done(out)[0]:
            return replace(shown, only=asked.only or shown.only)
    if held and not asked.plainly:
        lines = "".join(one.told(verb, out) for one in held)
        raise RunError(f"{out} holds no finished run of {asked.name} with these options. It holds:{lines}")
    return asked if asked.set or asked.seeds or asked.methods else None


def hints(asked: Asked, out: Path) -> list[str]:
    """-> what to say to one who is shown what we published: of campaigns that have just begun, and of runs in a folder
    of an earlier version, which does not hold which campaigns they are of."""
    if begun := kept(out, asked.name):
        lines = "".join(one.told("bench", out) for one in begun)
        return [f"{out} holds no finished run of {asked.name} yet. To go on:{lines}"]
    presets = sorted({file.parents[3].name for file in out.glob("*/*/*/seed*/result.json")})
    if not presets or any((out / FOLDER).glob("*.json")):
        return []
    return [
        f"{out} holds runs on {', '.join(presets)}, but not which campaigns they are of: it is of an earlier version. "
        "Give the options that they were made with (--preset, --set, --seeds), or call "
        f"ipll bench {asked.name} with them once more: what is done stays, and the folder knows from then on."
    ]


def _read(file: Path, name: str) -> Asked:
    """-> what a file keeps; a RunError where it is damaged, or says what cannot be."""
    try:
        one = _checked(read_sealed(file), name)
        for cell in one.bench().cells(one.numbers)[:1]:
            cell.config()  # what it names is there
    except FileNotFoundError:
        raise
    except ConfigError as error:
        raise RunError(f"{file} cannot be used here: {error} {WHOLE}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{file} {error}. {DAMAGED}") from None
    return one


def _checked(values: dict[str, Any], name: str) -> Asked:
    values = {"methods": [], **values}  # earlier versions have none
    texts: dict[str, Any] = {key: values.get(key) for key in ("set", "only", "methods")}
    good = values.keys() == Asked.__dataclass_fields__.keys() and values["name"] == name
    good = good and isinstance(values["preset"], str | None) and isinstance(values["seeds"], str)
    if not good or not all(isinstance(t, list) and all(isinstance(one, str) for one in t) for t in texts.values()):
        raise ValueError("is no record of a campaign of this name")
    listed = {key: tuple(text) for key, text in texts.items()}
    return Asked(name, preset=values["preset"], seeds=values["seeds"], **listed)
