"""Votes as indices, from a long table of sample, annotator and label, or from one column for each annotator."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ipll.errors import DataError
from ipll.messages import counted
from ipll.own.reading.columns import as_text, coded, coded_column, is_list
from ipll.own.reading.samples import look_alikes
from ipll.own.reading.tables import Table, check_names, open_table

COLUMNS = ("sample", "annotator", "label")
OF_SAMPLES = ("id", "image", "candidates", "split", "features")  # columns of a table of samples, and no annotators
LONG = "table.melt({0!r}, var_name='annotator', value_name='label').dropna().rename(columns={{{0!r}: 'sample'}})"

Ints = npt.NDArray[np.int64]


class Ballots(NamedTuple):
    """Votes as indices, [votes] each; the same annotator's same label for the same sample is there once."""

    sample: Ints
    annotator: Ints
    label: Ints
    row: Ints  # in the votes' table
    ids: tuple[str, ...]  # of the samples
    people: tuple[str, ...]  # of the annotators
    names: tuple[str, ...]  # of the labels
    notes: list[str]  # how they were read, where that is not plain


def open_votes(path: Path) -> Table:
    """-> the table of votes, long also where the file has a column for each annotator."""
    table = open_table(path, COLUMNS)
    names = [*table.columns]
    others = names[1:]
    strange = any(name in OF_SAMPLES or name.startswith("features.") for name in others)
    if names[0] not in ("sample", "id") or len(others) < 2 or {"annotator", "label"} & {*others} or strange:
        return table
    return _long(open_table(path, names))


def _long(wide: Table) -> Table:
    """-> one row for each vote. What may be something else than labels of several people is a DataError."""
    key, *people = wide.columns
    sample = as_text(wide, key, wide.columns[key])
    labels = {name: as_text(wide, name, wide.columns[name]) for name in people}
    texts = {name: pc.unique(pc.list_flatten(pc.split_pattern(cells, "|"))) for name, cells in labels.items()}
    said = {name: {text.strip() for text in found.to_pylist()} - {""} for name, found in texts.items()}
    alone = [name for name in people if not said[name] & set().union(*(said[one] for one in people if one != name))]
    if alone or len(pc.unique(sample)) < len(sample):
        why = f"'{alone[0]}' has no label that another column has" if alone else f"'{key}' is there several times"
        raise DataError(
            f"{wide.path}: no columns 'annotator' and 'label', and not one column for each annotator, as it seems, "
            f"since {why}. Call the columns sample, annotator and label; or make it long in pandas: {LONG.format(key)}"
        )
    there = {name: pc.not_equal(cells, "") for name, cells in labels.items()}
    columns = {
        "sample": pa.concat_arrays([sample.filter(there[name]) for name in people]),
        "annotator": pa.concat_arrays([pa.repeat(name, pc.sum(there[name]).as_py()) for name in people]),
        "label": pa.concat_arrays([cells.filter(there[name]) for name, cells in labels.items()]),
    }
    rows = np.concatenate([wide.rows[there[name].to_numpy(zero_copy_only=False)] for name in people])
    note = f"{wide.path}: a column for each annotator: {', '.join(people)}; {len(rows):,} votes."
    return Table(wide.path, columns, rows, wide.word, [*wide.notes, note])


def ballots_of(votes: Table) -> Ballots:
    """-> the votes of a long table. A bar in a label means a vote for each of the names between."""
    advice = "Votes have the columns sample, annotator and label."
    if missing := [name for name in COLUMNS if name not in votes.columns]:
        check_names(votes, COLUMNS, advice)
        raise DataError(f"{votes.path}: no column '{missing[0]}'. {advice}")
    (sample, ids), (annotator, people) = (coded_column(votes, name) for name in COLUMNS[:2])
    column, notes = votes.columns["label"], [*votes.notes]
    if not is_list(column.type):
        texts = as_text(votes, "label", column)
        if bars := pc.sum(pc.match_substring(texts, "|")).as_py():
            notes.append(f"{votes.path}: {counted(bars, 'vote')} with '|', which is one for each of the names between.")
        column = pc.split_pattern(texts, "|")
    values = as_text(votes, "label", pc.list_flatten(column))
    there = pc.not_equal(values, "")
    vote = pc.list_parent_indices(column).filter(there).to_numpy()
    label, names = coded(values.filter(there))
    problems = votes.problems()
    none = np.bincount(vote, minlength=len(column)) == 0
    for what, empty in (("sample", _nothing(sample, ids)), ("annotator", _nothing(annotator, people)), ("label", none)):
        problems.add(votes.rows[empty], f"no {what}", "Fill in sample, annotator and label, or remove the row.")
    problems.stop()
    if others := [name for name in votes.columns if name not in COLUMNS]:
        notes.append(f"{votes.path}: columns that are not part of a vote are ignored: {', '.join(map(repr, others))}.")
    notes += look_alikes(people, "annotators", "people")
    sample, annotator = sample[vote], annotator[vote]
    key = (sample * len(people) + annotator) * len(names) + label
    once = np.sort(np.unique(key, return_index=True)[1])
    return Ballots(sample[once], annotator[once], label[once], votes.rows[vote[once]], ids, people, names, notes)


def _nothing(codes: Ints, texts: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    return np.equal(codes, texts.index("") if "" in texts else -1)
