"""Curves of the report: inline SVG, built as element trees, so that every name is escaped by construction.

Colours live in the style sheet (classes s0, s1, ...); dashes and markers tell series apart without them. A group of
runs is one series: its mean, a band of one standard deviation around it, and a thin line for each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element, SubElement, tostring

COLOURS = 7  # of the style sheet
DASHES = ("", "7 4", "2 4", "10 4 2 4", "14 5")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",  # circle
    "M-3.7-3.7h7.4v7.4h-7.4z",  # square
    "M0-5 4.8 3.6h-9.6z",  # triangle
    "M0-5.2 5.2 0 0 5.2-5.2 0z",  # diamond
    "M0 5 4.8-3.6h-9.6z",  # triangle on its head
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # plus
)
LETTER = 7.8  # px: the width of a letter, on the wide side


Values = Sequence[float | None]  # one a task; None where there is nothing to measure


@dataclass(frozen=True)
class Series:
    """One line of a chart. `style` is the group's number: it picks colour, dash and marker."""

    name: str
    values: Values
    style: int
    deviations: Values = ()  # half the height of the band at each task
    members: Sequence[Values] = ()  # the lines of the single runs


def shorten(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def percent_ticks(values: Iterable[float | None]) -> range:
    """The ticks of a percentage axis that holds `values`: round numbers, at most seven, at least 10 points in all."""
    known = [value for value in values if value is not None] or [0.0, 100.0]
    highest = max(10.0, *known)
    lowest = min(highest - 10.0, *known)
    for step in (2, 5, 10, 20):
        low, high = step * math.floor(lowest / step), step * math.ceil(highest / step)
        if high - low <= 6 * step:
            break
    return range(low, high + 1, step)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    unit: str,
    ticks: range,
    width: int = 420,
    height: int = 250,
    kind: str = "",
    end_labels: bool = False,
) -> str:
    """Percentages over tasks. A series alone shows its values; `end_labels` writes names beside the last points."""
    names = [shorten(line.name, 22) for line in series]
    right = width - (24 + int(LETTER * max(map(len, names))) if end_labels else 16)
    frame = _Frame(max(len(line.values) for line in series), ticks, right, height - 44)
    svg = drawing(kind, title, "; ".join(map(_in_words, series)), width, height)
    write(svg, 0, 14, unit, "axis")
    frame.draw_axes(svg)
    ends = []
    for line, name in zip(series, names, strict=True):
        group = add(svg, "g", {"class": _style(line.style), "data-group": line.style})
        frame.draw(line, group, values_on=svg if len(series) == 1 else None)
        if end_labels and (last := next((v for v in reversed(line.values) if v is not None), None)) is not None:
            ends.append((frame.y(last), name, group))
    for at, (_, name, group) in zip(spread([end[0] for end in ends], 16, frame.bottom), ends, strict=True):
        write(group, right + 4, at + 4, name, "name")
    return tostring(svg, encoding="unicode")


@dataclass(frozen=True)
class _Frame:
    """The area of a chart: tasks from left to right, percentages from the bottom up."""

    tasks: int
    ticks: range
    right: int
    bottom: int
    left: int = 40
    top: int = 46

    def x(self, task: int) -> float:
        return self.left + 12 + (self.right - self.left - 24) * (task / (self.tasks - 1) if self.tasks > 1 else 0.5)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)

    def draw_axes(self, svg: Element) -> None:
        for tick in self.ticks:
            at = self.y(tick)
            add(svg, "line", {"class": "grid", "x1": self.left, "x2": self.right, "y1": at, "y2": at})
            write(svg, self.left - 8, at + 4, str(tick), "end")
        every = math.ceil(self.tasks / max((self.right - self.left) // 28, 1))
        for task in range(0, self.tasks, every):
            write(svg, self.x(task), self.bottom + 20, str(task + 1), "middle")
        write(svg, (self.left + self.right) / 2, self.bottom + 39, "task", "middle axis")

    def draw(self, line: Series, group: Element, values_on: Element | None) -> None:
        """Band, members, line and markers; and the values beside them, where there is room."""
        for band in _bands(line):
            add(group, "polygon", {"class": "band", "points": self._corners(band)})
        for member in line.members:
            add(group, "path", {"class": "member", "d": self._trace(member)})
        add(group, "path", {"class": "line", "d": self._trace(line.values), "stroke-dasharray": _dash(line.style)})
        roomy = self.tasks * 30 <= self.right - self.left
        for task, value in enumerate(line.values):
            if value is None:
                continue
            x, y = self.x(task), self.y(value)
            _marker(group, line.style, x, y, f"{line.name}, task {task + 1}: {value:.1f} %")
            if values_on is not None and roomy:
                write(values_on, x, y - 11, f"{value:.1f}", "middle value")

    def _trace(self, values: Values) -> str:
        drawn = ["M" if not t or values[t - 1] is None else "L" for t in range(len(values))]
        return "".join(f"{drawn[t]}{self.x(t):.1f} {self.y(v):.1f}" for t, v in enumerate(values) if v is not None)

    def _corners(self, band: Sequence[tuple[int, float, float]]) -> str:
        low, high = self.ticks[0], self.ticks[-1]
        outline = [(t, v + d) for t, v, d in band] + [(t, v - d) for t, v, d in reversed(band)]
        return " ".join(f"{self.x(t):.1f} {self.y(min(max(v, low), high)):.1f}" for t, v in outline)


def _bands(line: Series) -> list[list[tuple[int, float, float]]]:
    """-> runs of neighbouring tasks with a deviation, as (task, value, deviation)."""
    bands: list[list[tuple[int, float, float]]] = [[]]
    for task, (value, deviation) in enumerate(zip(line.values, line.deviations, strict=False)):
        if value is None or deviation is None:
            bands.append([])
        else:
            bands[-1].append((task, value, deviation))
    return [band for band in bands if len(band) > 1]


def spread(positions: Sequence[float], gap: float, most: float) -> list[float]:
    """Moves positions apart until they are `gap` from each other, none beyond `most`; their order stays."""
    placed = list(positions)
    order = sorted(range(len(placed)), key=placed.__getitem__)
    for above, below in pairwise(order):
        placed[below] = max(placed[below], placed[above] + gap)
    if order:
        placed[order[-1]] = min(placed[order[-1]], most)
    for below, above in pairwise(reversed(order)):
        placed[above] = min(placed[above], placed[below] - gap)
    return placed


def swatch(style: int) -> str:
    """A piece of a run's line, for legends; the name stands beside it."""
    svg = Element("svg", {"class": f"swatch {_style(style)}", "viewBox": "0 0 40 14", "aria-hidden": "true"})
    add(svg, "path", {"class": "line", "d": "M1 7H39", "stroke-dasharray": _dash(style)})
    _marker(svg, style, 20, 7)
    return tostring(svg, encoding="unicode")


def _in_words(line: Series) -> str:
    known = [f"{value:.1f} % after task {task + 1}" for task, value in enumerate(line.values) if value is not None]
    ends = [known[0], known[-1]] if len(known) > 1 else known
    return f"{line.name}: {', '.join(ends) or 'no values'}"


def _style(style: int) -> str:
    return f"s{style % COLOURS}"


def _dash(style: int) -> str:
    return DASHES[style % len(DASHES)] or "none"


def _marker(parent: Element, style: int, x: float, y: float, tip: str = "") -> None:
    place = {"class": "mark", "d": MARKERS[style % len(MARKERS)], "transform": f"translate({x:.1f} {y:.1f})"}
    mark = add(parent, "path", place)
    if tip:
        add(mark, "title").text = tip


def drawing(kind: str, title: str, description: str, width: float, height: float) -> Element:
    """An empty drawing with the title and description that a screen reader reads."""
    size = {"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)}
    svg = Element("svg", {"class": f"chart {kind}".strip(), "role": "img", **size})
    add(svg, "title").text = title
    add(svg, "desc").text = description
    return svg


def add(parent: Element, tag: str, attributes: Mapping[str, str | float] | None = None) -> Element:
    """A new child; numbers are rounded to what the eye can see."""
    values = {k: v if isinstance(v, str) else f"{v:.2f}".rstrip("0").rstrip(".") for k, v in (attributes or {}).items()}
    return SubElement(parent, tag, values)


def write(parent: Element, x: float, y: float, text: str, classes: str) -> None:
    add(parent, "text", {"x": x, "y": y, "class": classes}).text = text
