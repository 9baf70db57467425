"""Drawings of a single run: the accuracy matrix, shares as stacked bars, the class prior."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import tostring

from ipll.pages.charts import LETTER, add, drawing, shorten, write

Shares = Sequence[tuple[str, float]]  # what a part stands for, and its percentage; together at most 100


def heat_map(
    matrix: Sequence[Sequence[float | None]], *, title: str, drops: Sequence[float | None] | None = None
) -> str:
    """Percentages [task learnt, classes' task]; the number stands in each cell, so colour only helps.

    `drops` is a last row: by how many points the classes of each task have fallen.
    """
    tasks = len(matrix)
    cell, left, top = (36 if tasks <= 10 else 30), 66, 44
    size = tasks * cell
    words = "; ".join(
        f"after task {row + 1}: " + ", ".join(f"{value:.0f}" for value in values if value is not None)
        for row, values in enumerate(matrix)
    )
    svg = drawing("heat", title, words, left + max(size, 270), top + size + (cell + 8 if drops else 2))
    write(svg, left, 14, "accuracy in % on the classes of task", "axis")
    for i in range(tasks):
        middle = (i + 0.5) * cell
        write(svg, left + middle, top - 10, str(i + 1), "middle")
        write(svg, left - 10, top + middle + 4, f"after {i + 1}", "end")
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            if value is None:
                continue
            at = {"x": left + column * cell + 1, "y": top + row * cell + 1, "width": cell - 2, "height": cell - 2}
            box = add(svg, "rect", {"class": "cell", "rx": 3, "fill-opacity": 0.06 + 0.0064 * value, **at})
            add(box, "title").text = f"classes of task {column + 1} after task {row + 1}: {value:.1f} %"
            write(svg, left + (column + 0.5) * cell, top + (row + 0.5) * cell + 4, f"{value:.0f}", "middle value")
    if drops:
        at_drops = top + (tasks + 0.5) * cell + 8
        write(svg, left - 10, at_drops, "fell by", "end")
        for column, drop in enumerate(drops):
            write(svg, left + (column + 0.5) * cell, at_drops, "–" if drop is None else f"{drop:.0f}", "middle")
    return tostring(svg, encoding="unicode")


def share_bars(
    rows: Sequence[tuple[str, Shares]], *, title: str, kinds: Sequence[str], marks: Sequence[float | None] = ()
) -> str:
    """One bar a row, cut into parts; `kinds` are the parts' styles, `marks` an upright stroke on each bar."""
    height, top, width, right = 24, 8, 420, 404
    left = 12 + int(LETTER * max(len(label) for label, _ in rows))
    bottom = top + len(rows) * height

    def x(share: float) -> float:
        return left + (right - left) * min(max(share, 0.0), 100.0) / 100

    def told(parts: Shares) -> str:
        return ", ".join(f"{name} {share:.1f} %" for name, share in parts) if _some(parts) else "no samples"

    words = "; ".join(f"{label}: {told(parts)}" for label, parts in rows)
    svg = drawing("shares", title, words, width, bottom + 40)
    for i, (label, parts) in enumerate(rows):
        y, done = top + i * height, 0.0
        write(svg, left - 8, y + 15, label, "end")
        if not _some(parts):
            write(svg, left + 6, y + 15, "no samples", "axis")
        for (name, share), kind in zip(parts, kinds, strict=True):
            start, done = x(done), done + share
            part = add(svg, "rect", {"class": kind, "x": start, "y": y + 2, "width": x(done) - start, "height": 18})
            add(part, "title").text = f"{label}: {name} {share:.1f} %"
        if i < len(marks) and (mark := marks[i]) is not None:
            add(svg, "line", {"class": "true", "x1": x(mark), "x2": x(mark), "y1": y, "y2": y + 22})
    for tick in (0, 25, 50, 75, 100):
        write(svg, x(tick), bottom + 18, str(tick), "middle")
    write(svg, (left + right) / 2, bottom + 35, "share of samples, %", "middle axis")
    return tostring(svg, encoding="unicode")


def _some(parts: Shares) -> bool:
    return any(share for _, share in parts)


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
    svg = drawing("prior", title, words, width, bottom + 40)
    for c, name in enumerate(short):
        y = top + c * row + (gap if 0 < old <= c else 0)
        if c in (0, old):
            write(svg, left, y - 6, "old classes" if c < old else "new classes", "axis")
        write(svg, left - 8, y + 12, name, "end")
        bar = add(
            svg, "rect", {"class": "bar", "x": left, "y": y + 3, "width": x(predicted[c]) - left, "height": row - 6}
        )
        add(bar, "title").text = f"{names[c]}: predicted {predicted[c]}, true {true[c]}"
        add(svg, "line", {"class": "true", "x1": x(true[c]), "x2": x(true[c]), "y1": y + 1, "y2": y + row - 1})
    add(svg, "line", {"class": "grid", "x1": left, "x2": right, "y1": bottom + 4, "y2": bottom + 4})
    write(svg, left, bottom + 20, "0", "middle")
    write(svg, right, bottom + 20, str(most), "middle")
    write(svg, (left + right) / 2, bottom + 35, "samples", "middle axis")
    return tostring(svg, encoding="unicode")
