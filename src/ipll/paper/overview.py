"""The overview: everything that was measured here, protocol by protocol, the best of a setting first."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from ipll.config import resolve
from ipll.engine.cells import guard
from ipll.errors import ConfigError
from ipll.paper.layout import bars
from ipll.paper.measured import Measured, Protocol, measured
from ipll.settings import check_choice

NAME = "published"  # what `ipll table` calls it
FORMATS = ("text", "markdown", "csv")
HEADS = ("setting", "method", "ours", "n", "after the last task", "paper", "paper's best")


def overview(fmt: str = "text", preset: str | None = None, only: Sequence[str] = (), to: Path | None = None) -> str:
    """Of one preset, and of methods, data sets or settings that are asked for. Links of Markdown are as from the file
    `to`, where that lies in a checkout with our results (elsewhere there are none), and else as from docs/."""
    check_choice("--format", fmt, FORMATS)
    of_preset = [one for one in measured() if preset in (None, one.protocol.preset)]
    if not of_preset and preset:
        resolve(preset)  # an unknown one is told with a suggestion
        known = sorted({one.protocol.preset for one in measured()})
        raise ConfigError(f"--preset {preset}: no number of it was published. There are some of {', '.join(known)}.")
    found = [one for one in of_preset if not only or _asked(one, only)]
    if not found:
        asked = [*([f"--preset {preset}"] if preset else []), *(f"--only {pattern}" for pattern in only)]
        raise ConfigError(f"{' '.join(asked)}: nothing of that kind was published. See: ipll table {NAME}")
    groups = [(protocol, list(own)) for protocol, own in groupby(found, key=lambda one: one.protocol)]
    for _, own in groups:
        own.sort(key=lambda one: (one.setting[:4], -one.ours))
    writers: dict[str, Callable[[Groups], str]] = {"text": _text, "markdown": partial(_markdown, to=to), "csv": _csv}
    return writers[fmt](groups)


Groups = Sequence[tuple[Protocol, Sequence[Measured]]]


def _asked(one: Measured, only: Sequence[str]) -> bool:
    names = (one.method, one.protocol.preset, one.setting.dataset)
    return any(pattern in names or pattern in str(one.setting) for pattern in only)


def _row(one: Measured) -> list[str]:
    ours = f"{one.ours:.2f}" + (f" ± {one.std:.2f}" if one.std is not None else "")
    paper = "-" if one.paper is None else f"{one.paper:.2f}"
    best = f"{one.papers_best[1]:.2f} {one.papers_best[0]}" if one.papers_best else "-"
    return [str(one.setting), one.method, ours, str(len(one.runs)), f"{one.last:.1f}", paper, best]


def _title(protocol: Protocol) -> str:
    return f"Ours under {protocol}"


def _text(groups: Groups) -> str:
    lines: list[str] = []
    for protocol, own in groups:
        rows = [HEADS, *map(_row, own)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [_title(protocol)]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        lines += [""]
    note = "Average incremental accuracy in % on the test set, mean ± std over n seeds; the paper's under its own"
    return "\n".join([*lines, f"{note} protocol."]) + "\n"


def _markdown(groups: Groups, to: Path | None) -> str:
    lines: list[str] = []
    for protocol, own in groups:
        lines += [f"{_title(protocol)}.", "", bars([*HEADS, "runs"]), bars(["---"] * (len(HEADS) + 1))]
        for one in own:
            setting, method, *rest = _row(one)
            runs = (_linked(f"{run['average_incremental_accuracy']:.2f}", run["file"], to) for run in one.runs)
            lines.append(bars([setting, f"`{method}`", *rest, ", ".join(runs)]))
        lines += [""]
    return "\n".join(lines)


def _linked(number: str, file: str, to: Path | None) -> str:
    """-> a number, with a link to its result file where the folder of the page `to`, or one above it, holds that."""
    above = [".."] if to is None else _up_to(file, to.resolve().parent)
    return number if above is None else f"[{number}]({'/'.join([*above, file])})"


def _up_to(file: str, folder: Path) -> list[str] | None:
    """-> the steps up from a folder to the nearest that holds the file; None where there is no such."""
    places = enumerate((folder, *folder.parents))
    return next(([".."] * steps for steps, place in places if (place / file).is_file()), None)


def _csv(groups: Groups) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["protocol", *HEADS, "seeds", "files"])
    for protocol, own in groups:
        for one in own:
            seeds = " ".join(str(run["seed"]) for run in one.runs)
            writer.writerow(map(guard, [str(protocol), *_row(one), seeds, " ".join(one.files)]))
    return file.getvalue()
