"""Decisions: what people who looked at samples say they are. A decided sample's set is that class, for good."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ipll.errors import DataError, nearest
from ipll.own.reading.arrays import class_name
from ipll.own.reading.problems import Problems

NONE = "(none of these)"  # in the column 'class'
REQUIRED, OPTIONAL = ("id", "class"), ("who", "when", "audit")
UNKNOWN = "Give the ids as the audit has them."


class Decision(NamedTuple):
    """What one person said of one sample, and what stood there before."""

    row: int  # of the records
    name: str | None  # the class; None: none of these
    who: str
    when: str
    was: str  # the class that was settled on; '' where nothing was yet
    candidates: tuple[str, ...]  # that it came with

    @property
    def missed(self) -> bool:
        """The annotators had not named it."""
        return self.name not in self.candidates


class Decisions(NamedTuple):
    """Decisions as they were given, one row each."""

    source: str
    rows: list[int]  # as the user counts
    ids: list[str]
    names: list[str | None]
    who: list[str]
    when: list[str]
    audit: list[str]  # which audit they were made on; '' where it is not told
    word: str = "row"

    @classmethod
    def of(cls, ids: Iterable[object], classes: Iterable[object], who: str = "") -> Decisions:
        """-> from Python: ids as the records have them; a class of None, or NONE, says 'none of these'."""
        given = [str(one) for one in ids]
        names = [None if name in (None, NONE) else class_name(name) or str(name) for name in classes]
        if len(given) != len(names):
            raise DataError(f"{len(given):,} ids and {len(names):,} classes. Give one class for each id, or None.")
        now, n = datetime.now(UTC).isoformat(timespec="seconds"), len(given)
        return cls("decisions", list(range(n)), given, names, [who] * n, [now] * n, [""] * n, "entry")


def read_decisions(path: str | Path) -> Decisions:
    """-> a table with the columns id and class, and who, when and audit where they are known; as the audit page saves
    it. What is wrong with it is a DataError."""
    from ipll.own.reading.columns import text_column  # Arrow, which arrays do without
    from ipll.own.reading.tables import check_names, open_table

    table = open_table(Path(path), (*REQUIRED, *OPTIONAL))
    check_names(table, (*REQUIRED, *OPTIONAL), "Decisions have the columns id, class, who, when and audit.")
    for name in REQUIRED:
        if name not in table.columns:
            raise DataError(f"{path}: no column '{name}'. Decisions have the columns id and class, one row each.")
    texts = {name: text_column(table, name) for name in (*REQUIRED, *OPTIONAL) if name in table.columns}
    n, problems = len(table.rows), table.problems()
    for row, one, name in zip(table.rows.tolist(), texts["id"], texts["class"], strict=True):
        if not one:
            problems.add([row], "no id", UNKNOWN)
        if not name:
            problems.add([row], "no class", f"Write a class or '{NONE}', or leave the row out.")
    problems.stop()
    names = [None if name == NONE else name for name in texts["class"]]
    who, when, audit = (texts.get(name, [""] * n) for name in OPTIONAL)
    return Decisions(str(path), table.rows.tolist(), texts["id"], names, who, when, audit, table.word)


def audit_id(ids: Sequence[str]) -> str:
    """-> which audit it is: of these samples, in this order. A model that learns more still knows what it began with,
    so that decisions made on an earlier audit of it, or of the same samples fitted anew, go on counting."""
    return f"{len(ids)}-{hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:12]}"


def resolve(given: Decisions, ids: Sequence[str], names: Sequence[str]) -> list[tuple[int, str | None]]:
    """-> the record and the class of each decision; what fits no sample, class or audit is a DataError by row."""
    place, known = {one: row for row, one in enumerate(ids)}, set(names)
    audits = {one: not one or _is_of(one, ids) for one in set(given.audit)}
    problems, said = Problems(given.source, given.word), dict[tuple[str, str], str | None]()
    found = []
    for row, one, name, who, audit in zip(given.rows, given.ids, given.names, given.who, given.audit, strict=True):
        if not audits[audit]:
            way_out = "Decide on an audit of this model. Of the very same samples, leave the column 'audit' out."
            problems.add([row], f"the decision was made on the audit of another model ({audit})", way_out)
        elif one not in place:
            problems.add([row], f"there is no sample '{one}'", UNKNOWN)
        elif name is not None and name not in known:
            way_out = f"Write a candidate of some sample, or '{NONE}'.{nearest(name, known)}"
            problems.add([row], f"there is no class '{name}'", way_out)
        elif said.setdefault((one, who), name) != name:
            by = f" by '{who}'" if who else ""
            problems.add([row], f"'{one}' is decided twice{by}, as two classes", "Keep one, or name who decided each.")
        else:
            found.append((place[one], name))
    problems.stop()
    return found


def _is_of(audit: str, ids: Sequence[str]) -> bool:
    """Is it the audit of these samples, or of the first of them?"""
    n = audit.partition("-")[0]
    return n.isdecimal() and 0 < int(n) <= len(ids) and audit_id(ids[: int(n)]) == audit


def logged(before: Sequence[Decision], more: Iterable[Decision]) -> tuple[Decision, ...]:
    """-> all decisions; the last of each person on a sample counts. What stood there before the first one is kept."""
    kept, first = {(one.row, one.who): one for one in before}, {one.row: one for one in reversed(before)}
    for one in more:
        earlier = first.get(one.row, one)
        kept.pop((one.row, one.who), None)
        kept[one.row, one.who] = one._replace(was=earlier.was, candidates=earlier.candidates)
    return tuple(kept.values())


def decided_sets(decisions: Iterable[Decision], names: Sequence[str]) -> dict[int, list[int]]:
    """-> record -> the classes that it was decided to be: one, several where people disagree, none where all of them
    say 'none of these'."""
    column = {name: c for c, name in enumerate(names)}
    sets: dict[int, set[int]] = {}
    for one in decisions:
        sets.setdefault(one.row, set()).update([] if one.name is None else [column[one.name]])
    return {row: sorted(sets[row]) for row in sorted(sets)}


def decided_words(decisions: Iterable[Decision]) -> dict[int, tuple[str, str]]:
    """-> record -> what it was decided to be, with a bar between the classes of people who disagree; and by whom."""
    by_row: dict[int, list[Decision]] = {}
    for one in decisions:
        by_row.setdefault(one.row, []).append(one)
    return {
        row: (
            "|".join(dict.fromkeys(one.name for one in group if one.name is not None)) or NONE,
            ", ".join(dict.fromkeys(f"{one.who or 'somebody'} {one.when}".strip() for one in group)),
        )
        for row, group in by_row.items()
    }


class Told(NamedTuple):
    """Decisions in numbers: of samples."""

    samples: int
    confirmed: int  # decided as the model had settled
    corrected: int  # another class
    missed: int  # of those decided, the class was no candidate, or it is none of these
    disputed: int  # people disagree
    none: int
    by: dict[str, int]  # decisions of each person, the most first

    def words(self) -> str:
        """-> what they were, as far as there are any."""
        parts = {
            "as the model had settled": self.confirmed,
            "as another class": self.corrected,
            "disputed, so that their set is what people said": self.disputed,
            "none of these, and out of training": self.none,
        }
        return ", ".join(f"{n:,} {words}" for words, n in parts.items() if n)


def told(decisions: Sequence[Decision]) -> Told:
    by_row: dict[int, list[Decision]] = {}
    for one in decisions:
        by_row.setdefault(one.row, []).append(one)
    plain = [(group[0], {one.name for one in group if one.name is not None}) for group in by_row.values()]
    return Told(
        samples=len(by_row),
        confirmed=sum(names == {first.was} for first, names in plain),
        corrected=sum(len(names) == 1 and bool(first.was) and names != {first.was} for first, names in plain),
        missed=sum(any(one.missed for one in group) for group in by_row.values()),
        disputed=sum(len(names) > 1 for _, names in plain),
        none=sum(not names for _, names in plain),
        by=dict(Counter(one.who for one in decisions).most_common()),
    )


def as_rows(decisions: Iterable[Decision]) -> list[list[Any]]:
    """-> for model.json."""
    return [list(one) for one in decisions]


def from_rows(rows: Iterable[Sequence[Any]], samples: int, names: Sequence[str]) -> tuple[Decision, ...]:
    """Reads what `as_rows` gave; a ValueError where it fits no model of so many samples."""
    found, known = tuple(Decision(*row)._replace(candidates=tuple(row[-1])) for row in rows), {None, *names}
    for one in found:
        if not (isinstance(one.row, int) and 0 <= one.row < samples and one.name in known):
            raise ValueError("'decisions' names a sample or a class that the model does not have")
        if not all(isinstance(text, str) for text in (one.who, one.when, one.was, *one.candidates)):
            raise ValueError("'decisions' holds something else than text")
    return found
