"""What the columns of a table mean: text and candidate sets. Whole columns at a time, no loop over cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ipll.errors import DataError
from ipll.own.reading.tables import Table

NO_CANDIDATES = (
    "Give each sample at least one candidate: a list, or text with '|' between the names; '*' stands for all classes."
)
ANY = "*"

Sets = tuple[tuple[str, ...], npt.NDArray[np.bool_]]  # class names, bool [n, names]


def text_column(table: Table, name: str) -> list[str]:
    """-> the cells of a column as text, without the spaces around it; '' where there is nothing."""
    return shared_texts(as_text(table, name, table.columns[name]))


def shared_texts(values: Any) -> list[str]:
    """-> an Arrow array of text as a list, in which cells that are alike are one object: a million take little room."""
    encoded = values.dictionary_encode()
    texts = np.array([*encoded.dictionary.to_pylist(), None], object)[:-1]  # an array of objects, also of none or one
    cells: list[str] = texts[encoded.indices.to_numpy()].tolist()
    return cells


def coded_column(table: Table, name: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """-> for each cell the index of its text, and the texts in the order of their first appearance."""
    return coded(as_text(table, name, table.columns[name]))


def candidate_sets(table: Table) -> Sets:
    """-> class names in the order of their first appearance, and bool [n, names]."""
    column = table.columns["candidates"]
    if not is_list(column.type):
        column = pc.split_pattern(as_text(table, "candidates", column), "|")
    values = as_text(table, "candidates", pc.list_flatten(column))
    rows = pc.list_parent_indices(column)
    there = pc.not_equal(values, "")
    codes, names = coded(values.filter(there))
    candidates = np.zeros((len(column), len(names)), np.bool_)
    candidates[rows.filter(there).to_numpy(), codes] = True
    return names, candidates


def with_any(
    names: tuple[str, ...], candidates: npt.NDArray[np.bool_], learnt: npt.NDArray[np.bool_], known: Iterable[str]
) -> Sets:
    """-> the sets, where '*' is not a name but stands for all classes: those that rows name which are learnt from [n],
    and those that are `known` to a model."""
    if ANY not in names:
        return names, candidates
    column, known = names.index(ANY), tuple(known)
    whole, rest = candidates[:, column], np.delete(candidates, column, axis=1)
    here = names[:column] + names[column + 1 :]
    more = tuple(name for name in known if name not in here)
    stands_for = np.append(rest[learnt].any(0) | np.isin(here, known), np.ones(len(more), np.bool_))
    wide = np.concatenate([rest, np.zeros((len(rest), len(more)), np.bool_)], axis=1)
    wide[np.ix_(whole, stands_for)] = True
    return here + more, wide


def holds_bars(table: Table) -> bool:
    """-> whether candidates are lists, or text of which some has a '|'."""
    column = table.columns["candidates"]
    return is_list(column.type) or bool(pc.any(pc.match_substring(as_text(table, "candidates", column), "|")).as_py())


def as_text(table: Table, name: str, values: Any) -> Any:
    """-> an Arrow array as text without spaces around it, '' for nulls. Whole numbers are text too: 7 is '7'."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_floating(kind):  # pandas makes whole numbers with gaps into floats
        try:
            values = values.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(
                f"{table.path}: column '{name}' holds decimal numbers. It must hold text or whole numbers."
            ) from None
    elif not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise DataError(f"{table.path}: column '{name}' holds {kind}. It must hold text or whole numbers.")
    return pc.utf8_trim_whitespace(pc.fill_null(values.cast(pa.string()), ""))


def coded(values: Any) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """-> for each cell of an Arrow array the index of its value, and the values in the order of their appearance."""
    encoded = values.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), tuple(encoded.dictionary.to_pylist())


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
