"""The overview: everything that was measured here, protocol by protocol, the best of a setting first."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import groupby

from ipll.engine.cells import guard
from ipll.errors import ConfigError
from ipll.paper.measured import Measured, Protocol, measured
from ipll.settings import check_choice

NAME = "published"  # what `ipll table` calls it
FORMATS = ("text", "markdown", "csv")
HEADS = ("setting", "method", "ours", "n", "after the last task", "paper", "paper's best")


def overview(fmt: str = "text", preset: str | None = None, only: Sequence[str] = ()) -> str:
    """Of one preset, and of methods, data sets or settings that are asked for. Links are as from docs/."""
    check_choice("--format", fmt, FORMATS)
    found = [one for one in measured() if preset in (None, one.protocol.preset) and (not only or _asked(one, only))]
    if not found:
        asked = [*([f"--preset {preset}"] if preset else []), *(f"--only {pattern}" for pattern in only)]
        raise ConfigError(f"{' '.join(asked)}: nothing of that kind was published. See: ipll table {NAME}")
    groups = [(protocol, list(own)) for protocol, own in groupby(found, key=lambda one: one.protocol)]
    for _, own in groups:
        own.sort(key=lambda one: (one.setting[:4], -one.ours))
    return {"text": _text, "markdown": _markdown, "csv": _csv}[fmt](groups)


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


def _markdown(groups: Groups) -> str:
    lines: list[str] = []
    for protocol, own in groups:
        lines += [f"{_title(protocol)}.", "", _bars([*HEADS, "runs"]), _bars(["---"] * (len(HEADS) + 1))]
        for one in own:
            setting, method, *rest = _row(one)
            runs = (f"[{run['average_incremental_accuracy']:.2f}](../{run['file']})" for run in one.runs)
            lines.append(_bars([setting, f"`{method}`", *rest, ", ".join(runs)]))
        lines += [""]
    return "\n".join(lines)


def _bars(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _csv(groups: Groups) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["protocol", *HEADS, "seeds", "files"])
    for protocol, own in groups:
        for one in own:
            seeds = " ".join(str(run["seed"]) for run in one.runs)
            writer.writerow(map(guard, [str(protocol), *_row(one), seeds, " ".join(one.files)]))
    return file.getvalue()
