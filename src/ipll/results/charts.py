"""Charts of the report: inline SVG, built as element trees, so that every name is escaped by construction.

Colours live in the style sheet (classes s0, s1, ...); dashes and markers tell series apart without them.
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


@dataclass(frozen=True)
class Series:
    """One line of a chart. `style` is the run's number: it picks colour, dash and marker."""

    name: str
    values: Sequence[float | None]
    style: int


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

    svg = _svg(kind, title, "; ".join(map(_in_words, series)), width, height)
    _text(svg, 0, 14, unit, "axis")
    for tick in ticks:
        _add(svg, "line", {"class": "grid", "x1": left, "x2": right, "y1": y(tick), "y2": y(tick)})
        _text(svg, left - 8, y(tick) + 4, str(tick), "end")
    every = math.ceil(tasks / max((right - left) // 28, 1))
    for task in range(0, tasks, every):
        _text(svg, x(task), bottom + 20, str(task + 1), "middle")
    _text(svg, (left + right) / 2, bottom + 39, "task", "middle axis")

    ends = []
    for line, name in zip(series, names, strict=True):
        group = _add(svg, "g", {"class": _style(line.style)})
        points = [(task, value) for task, value in enumerate(line.values) if value is not None]
        path = "".join(
            f"{'L' if i and points[i - 1][0] == task - 1 else 'M'}{x(task):.1f} {y(value):.1f}"
            for i, (task, value) in enumerate(points)
        )
        _add(group, "path", {"class": "line", "d": path, "stroke-dasharray": _dash(line.style)})
        for task, value in points:
            _marker(group, line.style, x(task), y(value), f"{line.name}, task {task + 1}: {value:.1f} %")
            if len(series) == 1 and tasks * 30 <= right - left:
                _text(svg, x(task), y(value) - 11, f"{value:.1f}", "middle value")
        if end_labels and points:
            ends.append((y(points[-1][1]), name, group))
    for at, (_, name, group) in zip(spread([end[0] for end in ends], 16, bottom), ends, strict=True):
        _text(group, right + 4, at + 4, name, "name")
    return tostring(svg, encoding="unicode")


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


def heat_map(matrix: Sequence[Sequence[float | None]], *, title: str) -> str:
    """Percentages [task learnt, classes' task]; the number stands in each cell, so colour only helps."""
    tasks = len(matrix)
    cell, left, top = (36 if tasks <= 10 else 30), 66, 44
    size = tasks * cell
    words = "; ".join(
        f"after task {row + 1}: " + ", ".join(f"{value:.0f}" for value in values if value is not None)
        for row, values in enumerate(matrix)
    )
    svg = _svg("heat", title, words, left + max(size, 270), top + size + 2)
    _text(svg, left, 14, "accuracy in % on the classes of task", "axis")
    for i in range(tasks):
        middle = (i + 0.5) * cell
        _text(svg, left + middle, top - 10, str(i + 1), "middle")
        _text(svg, left - 10, top + middle + 4, f"after {i + 1}", "end")
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            if value is None:
                continue
            at = {"x": left + column * cell + 1, "y": top + row * cell + 1, "width": cell - 2, "height": cell - 2}
            box = _add(svg, "rect", {"class": "cell", "rx": 3, "fill-opacity": 0.06 + 0.0064 * value, **at})
            _add(box, "title").text = f"classes of task {column + 1} after task {row + 1}: {value:.1f} %"
            _text(svg, left + (column + 0.5) * cell, top + (row + 0.5) * cell + 4, f"{value:.0f}", "middle value")
    return tostring(svg, encoding="unicode")


def prior_chart(
    names: Sequence[str], predicted: Sequence[int], true: Sequence[int], *, old: int, title: str, most: int
) -> str:
    """Samples per class: a bar for the predicted count, an upright stroke for the true one. `most`: the axis' end."""
    short = [shorten(name, 14) for name in names]
    row, top, gap = 18, 26, 22
    left = 12 + int(LETTER * max((len(name) for name in short), default=0))
    width, right = 300, 286
    bottom = top + len(names) * row + (gap if 0 < old < len(names) else 0)

    def x(count: float) -> float:
        return left + (right - left) * count / max(most, 1)

    words = "; ".join(f"{n}: predicted {p}, true {t}" for n, p, t in zip(names, predicted, true, strict=True))
    svg = _svg("prior", title, words, width, bottom + 40)
    for c, name in enumerate(short):
        y = top + c * row + (gap if 0 < old <= c else 0)
        if c in (0, old):
            _text(svg, left, y - 6, "old classes" if c < old else "new classes", "axis")
        _text(svg, left - 8, y + 12, name, "end")
        bar = _add(
            svg, "rect", {"class": "bar", "x": left, "y": y + 3, "width": x(predicted[c]) - left, "height": row - 6}
        )
        _add(bar, "title").text = f"{names[c]}: predicted {predicted[c]}, true {true[c]}"
        _add(svg, "line", {"class": "true", "x1": x(true[c]), "x2": x(true[c]), "y1": y + 1, "y2": y + row - 1})
    _add(svg, "line", {"class": "grid", "x1": left, "x2": right, "y1": bottom + 4, "y2": bottom + 4})
    _text(svg, left, bottom + 20, "0", "middle")
    _text(svg, right, bottom + 20, str(most), "middle")
    _text(svg, (left + right) / 2, bottom + 35, "samples", "middle axis")
    return tostring(svg, encoding="unicode")


def swatch(style: int) -> str:
    """A piece of a run's line, for legends; the name stands beside it."""
    svg = Element("svg", {"class": f"swatch {_style(style)}", "viewBox": "0 0 40 14", "aria-hidden": "true"})
    _add(svg, "path", {"class": "line", "d": "M1 7H39", "stroke-dasharray": _dash(style)})
    _marker(svg, style, 20, 7)
    return tostring(svg, encoding="unicode")


def _in_words(line: Series) -> str:
    known = [f"{value:.1f} % after task {task + 1}" for task, value in enumerate(line.values) if value is not None]
    return f"{line.name}: {', '.join(known) or 'no values'}"


def _style(style: int) -> str:
    return f"s{style % COLOURS}"


def _dash(style: int) -> str:
    return DASHES[style % len(DASHES)] or "none"


def _marker(parent: Element, style: int, x: float, y: float, tip: str = "") -> None:
    place = {"class": "mark", "d": MARKERS[style % len(MARKERS)], "transform": f"translate({x:.1f} {y:.1f})"}
    mark = _add(parent, "path", place)
    if tip:
        _add(mark, "title").text = tip


def _svg(kind: str, title: str, description: str, width: float, height: float) -> Element:
    """An empty drawing with the title and description that a screen reader reads."""
    size = {"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)}
    svg = Element("svg", {"class": f"chart {kind}".strip(), "role": "img", **size})
    _add(svg, "title").text = title
    _add(svg, "desc").text = description
    return svg


def _add(parent: Element, tag: str, attributes: Mapping[str, str | float] | None = None) -> Element:
    """A new child; numbers are rounded to what the eye can see."""
    values = {k: v if isinstance(v, str) else f"{v:.2f}".rstrip("0").rstrip(".") for k, v in (attributes or {}).items()}
    return SubElement(parent, tag, values)


def _text(parent: Element, x: float, y: float, text: str, classes: str) -> None:
    _add(parent, "text", {"x": x, "y": y, "class": classes}).text = text
