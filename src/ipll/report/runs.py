"""What the report shows of one run: accuracy matrix, confusion of old and new, pseudo-labels, class prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipll.pages.drawings import heat_map, prior_chart, share_bars
from ipll.pages.page import Row
from ipll.report.data import Run, percent

PAIRS = 8  # of confused classes that are listed
PRIOR_CLASSES = 40  # a class prior of more classes is not drawn: its bars could not be told apart

MOVES = {  # kinds of parts, and what they stand for, in the order in which they are drawn
    "kept-right": "right all along",
    "to-right": "wrong, then right",
    "to-wrong": "right, then wrong",
    "kept-wrong": "wrong all along",
}
FATES = {
    "kept-right": "right",
    "kept-wrong": "another class of its own kind",
    "to-wrong": "a class of the other kind",
}


class Bars(NamedTuple):
    """Shares as stacked bars, and their numbers."""

    chart: str
    kinds: Mapping[str, str]
    marked: bool
    table: list[Row]


class Pair(NamedTuple):
    """A class, another that it is taken for, and the tasks that brought them."""

    truth: str
    born: int
    taken: str
    taken_born: int
    samples: str
    share: str


class Details(NamedTuple):
    """Everything in a run's own part of the page; None where the run has nothing to show."""

    run: Run
    scored: str  # the kind of samples that its accuracies are on
    matrix: str
    matrix_table: list[Row]
    quadrants: list[Row] | None
    fates: Bars | None
    pairs: list[Pair]
    moves: Bars | None
    priors: list[tuple[str, str]] | None
    prior_table: tuple[list[str], list[Row]]


def details(run: Run, scored: str) -> Details:
    matrix = run.result["accuracy_matrix"]
    drops = fallen(matrix) if len(matrix) > 1 else None
    rows = [(f"after {i + 1}", [percent(value) for value in row]) for i, row in enumerate(matrix)]
    return Details(
        run=run,
        scored=scored,
        matrix=heat_map(matrix, title=f"Accuracy matrix of {run.name}", drops=drops),
        matrix_table=rows + ([("fell by", [percent(drop) for drop in drops])] if drops else []),
        quadrants=quadrants(run.result),
        fates=_fates(run),
        pairs=pairs(run.result),
        moves=_moves(run),
        priors=_priors(run),
        prior_table=_prior_table(run.result),
    )


def fallen(matrix: Sequence[Sequence[float | None]]) -> list[float | None]:
    """-> for each task's classes, their best earlier accuracy minus the last; None where there is no earlier one."""
    drops: list[float | None] = []
    for column in zip(*matrix, strict=True):
        earlier, last = [value for value in column[:-1] if value is not None], column[-1]
        drops.append(max(earlier) - last if earlier and last is not None else None)
    return drops


def quadrants(result: Mapping[str, Any]) -> list[Row] | None:
    """Scored samples after the last task: truly old or new, taken for old or new, as shares of a row.

    The new classes are those of the last task.
    """
    seen, confusion = result["seen_classes_per_task"], np.array(result.get("confusion") or [])
    if len(seen) < 2 or len(confusion) != seen[-1]:
        return None
    old, rows = seen[-2], []
    for name, part in (("old", confusion[:old]), ("new", confusion[old:])):
        total = part.sum()
        counts = (part[:, :old].sum(), part[:, old:].sum())
        rows.append((name, [f"{100 * count / total:.1f} %" if total else "–" for count in counts] + [f"{total:,}"]))
    return rows


def pairs(result: Mapping[str, Any]) -> list[Pair]:
    """The classes most often taken for another one after the last task, by share of the true class."""
    confusion = np.array(result.get("confusion") or [])
    if not confusion.size:
        return []
    totals = confusion.sum(axis=1)
    shares = confusion / np.maximum(totals, 1)[:, None]
    np.fill_diagonal(shares, 0.0)
    names, seen = result["class_names"], result["seen_classes_per_task"]
    order = np.argsort(-shares, axis=None, kind="stable")[:PAIRS]
    found = [divmod(int(i), len(confusion)) for i in order]
    return [
        Pair(
            truth=names[true],
            born=_born(true, seen),
            taken=names[taken],
            taken_born=_born(taken, seen),
            samples=f"{confusion[true, taken]} of {totals[true]}",
            share=f"{100 * shares[true, taken]:.1f} %",
        )
        for true, taken in found
        if shares[true, taken] > 0
    ]


def _born(c: int, seen: Sequence[int]) -> int:
    return 1 + sum(c >= bound for bound in seen)


def _fates(run: Run) -> Bars | None:
    """What became of scored samples after each task: right, wrong within their kind, taken for the other kind."""
    rows = []
    for kind, accuracies, taken in (
        ("old", "old_accuracy_per_task", "old_as_new_per_task"),
        ("new", "new_accuracy_per_task", "new_as_old_per_task"),
    ):
        for task, (right, crossed) in enumerate(zip(run.result[accuracies], run.result[taken], strict=True)):
            if right is not None and crossed is not None:
                parts = (right, max(100 - right - crossed, 0.0), crossed)
                rows.append((f"{kind}, after {task + 1}", list(zip(FATES.values(), parts, strict=True))))
    return _bars(rows, f"Old and new classes of {run.name}", FATES)


def _moves(run: Run) -> Bars | None:
    """How pseudo-labels moved between the first epoch and the end of each task."""
    fields = ("pseudo_label_first_accuracy", "pseudo_label_to_right", "pseudo_label_to_wrong")
    columns = zip(*(run.result[f"{field}_per_task"] for field in fields), strict=True)
    rows, chances = [], []
    for task, (first, to_right, to_wrong) in enumerate(columns):
        if first is not None and to_right is not None and to_wrong is not None:
            parts = (first - to_wrong, to_right, to_wrong, max(100 - first - to_right, 0.0))
            rows.append((f"task {task + 1}", list(zip(MOVES.values(), parts, strict=True))))
            chances.append(run.result["pseudo_label_chance_per_task"][task])
    return _bars(rows, f"How the pseudo-labels of {run.name} moved", MOVES, chances)


def _bars(
    rows: list[tuple[str, list[tuple[str, float]]]],
    title: str,
    kinds: Mapping[str, str],
    marks: Sequence[float | None] = (),
) -> Bars | None:
    if not rows:
        return None
    table = [(label, [percent(share) for _, share in parts]) for label, parts in rows]
    if marks:
        table = [(label, [*cells, percent(mark)]) for (label, cells), mark in zip(table, marks, strict=True)]
    return Bars(share_bars(rows, title=title, kinds=list(kinds), marks=marks), kinds, bool(marks), table)


def _priors(run: Run) -> list[tuple[str, str]] | None:
    """(epoch, chart) of the second task's predicted and true class counts, all on one scale."""
    prior, seen = run.result["class_prior"], run.result["seen_classes_per_task"]
    if not prior or max(len(counts["true"]) for counts in prior.values()) > PRIOR_CLASSES:
        return None
    most = max(max(counts["predicted"] + counts["true"], default=0) for counts in prior.values())
    return [
        (
            epoch,
            prior_chart(
                run.result["class_names"][: len(counts["true"])],
                counts["predicted"],
                counts["true"],
                old=seen[0],
                title=f"{run.name}: class prior after epoch {epoch} of task 2",
                most=most,
            ),
        )
        for epoch, counts in sorted(prior.items(), key=lambda item: int(item[0]))
    ]


def _prior_table(result: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """-> the head and the rows of the class prior's numbers: a row a class, (predicted, true) after each epoch."""
    epochs = sorted(result["class_prior"].items(), key=lambda item: int(item[0]))
    head = ["class"] + [f"epoch {epoch}, {kind}" for epoch, _ in epochs for kind in ("predicted", "true")]
    columns = [[str(count) for count in counts[kind]] for _, counts in epochs for kind in ("predicted", "true")]
    return head, [(result["class_names"][c], list(cells)) for c, cells in enumerate(zip(*columns, strict=False))]
