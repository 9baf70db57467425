"""Names that are lists of others: what separates names is '|', and people write a comma, or 'robin or wren', too."""

from __future__ import annotations

from collections.abc import Iterable

from ipll.errors import DataError
from ipll.own.reading.columns import holds_bars
from ipll.own.reading.samples import Samples, lists_of_others, recurring
from ipll.own.reading.tables import Table

WAY_OUT = "end them with '|', or give lists, in Parquet or JSON Lines."


def check_separator(table: Table, samples: Samples, known: Iterable[str] = ()) -> None:
    """Raises where candidates are lists that something else than '|' separates: what is between it recurs, or is a
    class of its own, here or in the model whose classes are `known`. Where somebody wrote a bar, all will know it."""
    if holds_bars(table):
        return
    mark = _other_mark(samples)
    if mark and recurring(samples.names, mark) > 0.5:
        raise DataError(
            f"{samples.source}: {samples.names[0]!r} would be one candidate: '|' separates names, not '{mark}'. "
            f"Put '|' between them. Where '{mark}' is part of the names, {WAY_OUT}"
        )
    if lists := lists_of_others(samples.names, known):
        count = samples.candidates[:, [name in lists for name in samples.names]].any(1).sum()
        raise DataError(
            f"{samples.source}: {next(iter(lists))!r} would be a class of its own beside {_told(lists)} "
            f"(names like it: {len(lists):,}, in {count:,} rows). Put '|' between all that a sample may be. Where they "
            f"are names of their own, {WAY_OUT}"
        )


def _told(lists: dict[str, list[str]]) -> str:
    return " and ".join(map(repr, next(iter(lists.values()))))


def other_separator(samples: Samples) -> list[str]:
    """-> a warning where no row has two candidates, but most names hold what others separate lists with."""
    mark = _other_mark(samples)
    told = f"{samples.source}: most candidates hold '{mark}'. It is part of the name; '|' separates names."
    return [told] * bool(mark)


def _other_mark(samples: Samples) -> str:
    """-> what most names hold that others separate lists with, where no row has two candidates; else ''."""
    if samples.candidates.sum() > len(samples):
        return ""
    names = samples.names
    return next((mark for mark in ";,/" if 2 * sum(mark in name for name in names) > len(names)), "")
