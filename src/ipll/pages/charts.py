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
    tasks = max(len(line.values) for line in series)
    names = [shorten(line.name, 22) for line in series]
    left, top, bottom = 40, 46, height - 44
    right = width - (24 + int(LETTER * max(map(len, names))) if end_labels else 16)
    low, high = ticks[0], ticks[-1]

    def x(task: int) -> float:
        return left + 12 + (right - left - 24) * (task / (tasks - 1) if tasks > 1 else 0.5)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    def trace(values: Values) -> str:
        drawn = ["M" if not t or values[t - 1] is None else "L" for t in range(len(values))]
        return "".join(f"{drawn[t]}{x(t):.1f} {y(v):.1f}" for t, v in enumerate(values) if v is not None)

    svg = drawing(kind, title, "; ".join(map(_in_words, series)), width, height)
    write(svg, 0, 14, unit, "axis")
    for tick in ticks:
        add(svg, "line", {"class": "grid", "x1": left, "x2": right, "y1": y(tick), "y2": y(tick)})
        write(svg, left - 8, y(tick) + 4, str(tick), "end")
    every = math.ceil(tasks / max((right - left) // 28, 1))
    for task in range(0, tasks, every):
        write(svg, x(task), bottom + 20, str(task + 1), "middle")
    write(svg, (left + right) / 2, bottom + 39, "task", "middle axis")

    ends = []
    for line, name in zip(series, names, strict=True):
        group = add(svg, "g", {"class": _style(line.style), "data-group": line.style})
        points = [(task, value) for task, value in enumerate(line.values) if value is not None]
        for band in _bands(line):
            outline = [(t, v + d) for t, v, d in band] + [(t, v - d) for t, v, d in reversed(band)]
            corners = " ".join(f"{x(t):.1f} {y(min(max(v, low), high)):.1f}" for t, v in outline)
            add(group, "polygon", {"class": "band", "points": corners})
        for member in line.members:
            add(group, "path", {"class": "member", "d": trace(member)})
        add(group, "path", {"class": "line", "d": trace(line.values), "stroke-dasharray": _dash(line.style)})
        for task, value in points:
            _marker(group, line.style, x(task), y(value), f"{line.name}, task {task + 1}: {value:.1f} %")
            if len(series) == 1 and tasks * 30 <= right - left:
                write(svg, x(task), y(value) - 11, f"{value:.1f}", "middle value")
        if end_labels and points:
            ends.append((y(points[-1][1]), name, group))
    for at, (_, name, group) in zip(spread([end[0] for end in ends], 16, bottom), ends, strict=True):
        write(group, right + 4, at + 4, name, "name")
    return tostring(svg, encoding="unicode")


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
