"""Tables: our numbers beside the paper's, as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ipll.engine.cells import guard
from ipll.paper.catalogue import ACCURACY, SEEDS, Bench, Entry, benches
from ipll.paper.layout import Column, bars, plain_markdown, precise, tex
from ipll.paper.measured import published_numbers
from ipll.paper.numbers import (
    METRICS,
    SEEDS_DIFFER,
    Number,
    Origin,
    Runs,
    command,
    find_runs,
    no_runs,
    unlike_seeds,
)
from ipll.results.conditions import TEST, on_samples, scored_alike
from ipll.settings import check_choice

FORMATS = ("text", "markdown", "latex", "csv")
WIDTH = 100  # of a table as text: columns that do not fit go into a second block
NONE = "-"


@dataclass(frozen=True)
class Block:
    """The numbers of one data set, of published ones those of one protocol: rows x columns."""

    titles: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    numbers: Mapping[tuple[str, str], Number]

    @property
    def title(self) -> str:
        return "; ".join(self.titles)


class PaperTable:
    """A bench's numbers, to be written in one of the formats.

    The paper's are on the test set: beside numbers on validation samples they are left out.
    """

    def __init__(self, bench: Bench, numbers: Sequence[Number], makes: str, found: Runs | None = None) -> None:
        self.bench, self.makes, self.found = bench, makes, found or Runs({}, [], [])
        self.scored_on = scored_alike({str(i): run for i, one in enumerate(numbers) for run in one.runs})
        if self.scored_on != TEST:
            numbers = [replace(number, entry=replace(number.entry, paper=None)) for number in numbers]
        self.numbers = numbers
        self.published = any(number.protocol for number in numbers)
        self.with_paper = any(number.entry.paper is not None for number in numbers)
        self.obtained = list(dict.fromkeys(number.obtained for number in numbers if number.mean is not None))
        metrics = list(dict.fromkeys(number.entry.metric for number in numbers))
        self.several = len(metrics) > 1
        self.unit = "; ".join(dict.fromkeys(METRICS[metric].words for metric in metrics))
        if self.scored_on != TEST:
            self.unit += f"; scored{on_samples(self.scored_on)}"

    @classmethod
    def of_runs(cls, bench: Bench, out: Path, seeds: Sequence[int] = SEEDS) -> PaperTable:
        """From the runs under `out`. Without any, a RunError says which command makes them."""
        found = find_runs(bench, out, seeds)
        if not found.found:
            raise no_runs(bench, out, seeds, found.damaged)
        numbers = [Number(entry, found.of(entry, seeds)) for entry in bench.entries]
        return cls(bench, numbers, command(bench, out, seeds), found)

    @classmethod
    def of_published(cls, bench: Bench, out: Path, preset: str | None = None) -> PaperTable:
        """From what was measured here, under whichever protocol, or that of a preset: for one who has no runs under
        `out`. Where the paper has no number and we neither, a RunError says so too."""
        numbers = published_numbers(bench, preset)
        if not numbers:
            raise no_runs(bench.on(preset) if preset else bench, out, SEEDS, ())
        return cls(bench, numbers, command(benches().get(bench.name, bench), out, SEEDS))

    def render(self, fmt: str = "text") -> str:
        check_choice("--format", fmt, FORMATS)
        return {"text": self._text, "markdown": self._markdown, "latex": self._latex, "csv": self._csv}[fmt]()

    def groups(self) -> list[Block]:
        """One a data set and protocol. What all its columns have in common stands in its title."""
        groups = []
        presets = list(dict.fromkeys(number.entry.preset for number in self.numbers))
        pairs = dict.fromkeys((number.entry.preset, number.protocol) for number in self.numbers)
        for preset, protocol in sorted(pairs, key=lambda pair: presets.index(pair[0])):
            own = [one for one in self.numbers if (one.entry.preset, one.protocol) == (preset, protocol)]
            words = {number.entry.column: number.entry.column.split(", ") for number in own}
            common = [word for word in next(iter(words.values())) if all(word in one for one in words.values())]
            short = {column: ", ".join(w for w in one if w not in common) for column, one in words.items()}
            numbers: dict[tuple[str, str], Number] = {}
            for number in own:
                numbers.setdefault((self._row(number.entry), short[number.entry.column]), number)
            rows = tuple(dict.fromkeys(row for row, _ in numbers))
            titles = (", ".join(common), *([f"ours under {protocol}"] if protocol else ()))
            groups.append(Block(titles, tuple(dict.fromkeys(short.values())), rows, numbers))
        return groups

    def _row(self, entry: Entry) -> str:
        return f"{entry.row}, {METRICS[entry.metric].short}" if self.several else entry.row

    def _cells(self, number: Number | None) -> tuple[str, ...]:
        """-> (ours, paper, difference) of a number, without the mark."""
        if number is None:
            return ("", "", "") if self.with_paper else ("",)
        ours = NONE if number.mean is None else f"{number.mean:.2f}"
        if number.std is not None:
            ours += f" ± {number.std:.2f}"
        if number.mean is not None and len(self.obtained) > 1:
            ours += f" [{self.obtained.index(number.obtained) + 1}]"
        if not self.with_paper:
            return (ours,)
        paper = NONE if number.entry.paper is None else f"{number.entry.paper:.2f}"
        return ours, paper, NONE if number.difference is None else f"{number.difference:+.2f}"

    @property
    def notes(self) -> list[str]:
        """How the numbers were obtained, what the marks mean, what is missing, and which files are damaged."""
        known = [number for number in self.numbers if number.mean is not None]
        marks = {number.mark for number in known}
        what = "Ours: std over seeds" if self._has("std") else "Ours: mean ± std over seeds"
        if len(self.obtained) == 1:
            notes = [f"{what}, {self.obtained[0]}."]
        else:
            notes = [f"{what}.", *(f"[{i}] {words}." for i, words in enumerate(self.obtained, 1))]
        if self.published and known:
            notes.insert(0, "Ours are the numbers that ipll publishes (ipll table published), not runs of yours.")
        elif self.published:
            notes = ["We have published none of these numbers."]
        if asked := self.bench.asked:
            notes.append(f"Ours with {asked}{'; the paper with its own settings' if self.with_paper else ''}.")
        if self.scored_on != TEST and any(entry.paper is not None for entry in self.bench.entries):
            notes.append("The paper's numbers, which are on the test set, are left out: ours do not compare with them.")
        if self.with_paper:
            timed = self._has("seconds_per_epoch")
            whose = ", always under its own protocol" if self.published else ""
            notes.append(
                f"Paper: of 3 runs{whose}{', on an A6000: a difference in time is not judged' if timed else ''}."
            )
        if "*" in marks:
            notes.append("* mean ± std of ours and of the paper (its table of spreads) do not meet.")
        if "†" in marks:
            notes.append("† the paper's number, whose spread it does not give, lies outside our mean ± std.")
        if self.with_paper and any(number.std is None and number.entry.metric == ACCURACY for number in known):
            notes.append("A single run has no spread: its difference is not judged.")
        absent = dict.fromkeys(number.entry.preset for number in self.numbers if not number.entry.available)
        if absent:
            only = "; the paper's numbers only" if self.with_paper else ""
            notes.append(f"{', '.join(absent)}: this version has no such preset{only}.")
        if any(number.mean is None and number.entry.available for number in self.numbers):
            lacks = "fewer than two finished runs" if self._has("std") else "no finished run"
            notes.append(f"A dash: {f'not published; this makes them: {self.makes}' if self.published else lacks}.")
        return [*notes, *self.cautions, *self.damaged]

    @property
    def cautions(self) -> list[str]:
        """What keeps the rows from being compared: other seeds, and runs that are missing."""
        blocks = ([one.runs for one in group.numbers.values()] for group in self.groups())
        unlike = any(unlike_seeds({str(i): runs for i, runs in enumerate(block)}) for block in blocks)
        missing, every = len(self.found.missing), len(self.found.missing) + len(self.found.found)
        cautions = [f"Not all of these numbers rest on the same seeds. {SEEDS_DIFFER}"] if unlike else []
        return cautions + ([f"Missing: {missing} of its {every} runs. To make them: {self.makes}"] if missing else [])

    @property
    def damaged(self) -> list[str]:
        """Which files are damaged."""
        return [f"Warning: {message}" for message in self.found.damaged]

    def _has(self, metric: str) -> bool:
        return any(number.entry.metric == metric for number in self.numbers)

    def _text(self) -> str:
        lines = [self.bench.title, self.unit]
        for group in self.groups():
            left = max(map(len, group.rows))
            blocks = [Column(name, [self._marked(group.numbers.get((row, name))) for row in group.rows])
                      for name in group.columns]  # fmt: skip
            per_line = max(1, (WIDTH - left) // (3 + max(block.width for block in blocks)))
            for start in range(0, len(blocks), per_line):
                shown = blocks[start : start + per_line]
                lines += ["", *group.titles]
                if any(block.name for block in shown):
                    lines.append(" " * left + "".join(f"   {block.name:<{block.width}}" for block in shown))
                lines.append(" " * left + "".join(f"   {block.head}" for block in shown))
                lines += [f"{row:<{left}}" + "".join(f"   {block.lines[i]}" for block in shown)
                          for i, row in enumerate(group.rows)
                          if any(block.lines[i].strip() for block in shown)]  # fmt: skip
        return "\n".join(line.rstrip() for line in [*lines, "", *self.notes]) + "\n"

    def _marked(self, number: Number | None) -> tuple[str, ...]:
        cells = self._cells(number)
        return (*cells[:-1], f"{cells[-1]}{(number.mark if number else '') or ' '}") if self.with_paper else cells

    def _markdown(self) -> str:
        lines = [f"**{self.bench.title}**", "", self.unit]
        what = "ours / paper (difference)" if self.with_paper else "ours"
        for group in self.groups():
            heads = [f"{name}: {what}" if name else what for name in group.columns]
            lines += ["", group.title, "", bars(["method", *heads]), bars(["---", *("---:" for _ in heads)])]
            for row in group.rows:
                numbers = [group.numbers.get((row, name)) for name in group.columns]
                lines.append(bars([f"`{row}`", *map(self._markdown_cell, numbers)]))
        return "\n".join([*lines, "", *(f"- {plain_markdown(note)}" for note in self.notes)]) + "\n"

    def _markdown_cell(self, number: Number | None) -> str:
        if number is None:
            return ""
        ours, *rest = self._cells(number)
        return f"{ours} / {rest[0]} ({rest[1]}{plain_markdown(number.mark)})" if rest else ours

    def _latex(self) -> str:
        lines = [f"% {self.bench.title}; {self.unit}. Needs \\usepackage{{booktabs}}."]
        heads = ["ours", "paper", "diff."] if self.with_paper else ["ours"]
        for group in self.groups():
            k, n = len(heads), len(group.columns)
            lines += [f"\\begin{{tabular}}{{l{'r' * k * n}}}", "\\toprule"]
            lines.append(f"\\multicolumn{{{1 + k * n}}}{{l}}{{{tex(group.title)}}} \\\\")
            if any(group.columns):
                names = "".join(f" & \\multicolumn{{{k}}}{{c}}{{{tex(name)}}}" for name in group.columns)
                rules = " ".join(f"\\cmidrule(lr){{{2 + k * i}-{1 + k * (i + 1)}}}" for i in range(n))
                lines += [names.strip() + " \\\\", rules]
            lines += [" & ".join(["method", *heads * n]) + " \\\\", "\\midrule"]
            for row in group.rows:
                numbers = (group.numbers.get((row, name)) for name in group.columns)
                cells = (tex(cell) for number in numbers for cell in self._marked(number))
                lines.append(" & ".join([tex(row), *cells]) + " \\\\")
            lines += ["\\bottomrule", "\\end{tabular}", "\\par\\medskip"]
        return "\n".join([*lines, *(f"{{\\footnotesize {tex(note)}\\par}}" for note in self.notes)]) + "\n"

    def _csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV)
        for number in self.numbers:
            entry = number.entry
            row = [
                self._row(entry), entry.column, entry.method, entry.preset,
                json.dumps({**entry.settings, **entry.asked}), entry.metric,
                precise(number.mean), precise(number.std), len(number.runs),
                " ".join(str(run["seed"]) for run in number.runs), precise(entry.paper), precise(number.paper_std),
                precise(number.difference), "yes" if number.mark else "no",
                *(" | ".join(values) for values in number.origins), number.protocol,
            ]  # fmt: skip
            writer.writerow(guard(str(one)) for one in row)
        return file.getvalue()


CSV = (
    "row", "column", "method", "preset", "settings", "metric", "ours", "std", "n", "seeds", "paper", "paper_std",
    "difference", "marked", *Origin._fields, "protocol",
)  # fmt: skip


def render(bench: Bench, out: Path, seeds: Sequence[int] = SEEDS, fmt: str = "text") -> str:
    """-> the table of a bench from the runs under `out`. Without any run, a RunError says which command makes them."""
    return PaperTable.of_runs(bench, out, seeds).render(fmt)
