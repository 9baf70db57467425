"""What the columns of a table mean: text, candidate sets, features. Whole columns at a time, no loop over cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ipll.errors import DataError
from ipll.own.reading.problems import Problems
from ipll.own.reading.tables import Table

NO_CANDIDATES = "Give each sample at least one candidate: a list, or text with '|' between the names."


def text_column(table: Table, name: str) -> list[str]:
    """-> the cells of a column as text, without the spaces around it; '' where there is nothing."""
    return shared_texts(_text(table, name, table.columns[name]))


def shared_texts(values: Any) -> list[str]:
    """-> an Arrow array of text as a list, in which cells that are alike are one object: a million take little room."""
    encoded = values.dictionary_encode()
    texts = np.array([*encoded.dictionary.to_pylist(), None], object)[:-1]  # an array of objects, also of none or one
    cells: list[str] = texts[encoded.indices.to_numpy()].tolist()
    return cells


def coded_column(table: Table, name: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """-> for each cell the index of its text, and the texts in the order of their first appearance."""
    return _codes(_text(table, name, table.columns[name]))


def candidate_sets(table: Table, problems: Problems | None) -> tuple[tuple[str, ...], npt.NDArray[np.bool_]]:
    """-> class names in the order of their first appearance, and bool [n, names]. Rows without any are `problems`."""
    column = table.columns["candidates"]
    if not _is_list(column.type):
        column = pc.split_pattern(_text(table, "candidates", column), "|")
    values = _text(table, "candidates", pc.list_flatten(column))
    rows = pc.list_parent_indices(column)
    there = pc.not_equal(values, "")
    codes, names = _codes(values.filter(there))
    candidates = np.zeros((len(column), len(names)), np.bool_)
    candidates[rows.filter(there).to_numpy(), codes] = True
    if problems is not None:
        problems.add(table.rows[~candidates.any(1)], "no candidates", NO_CANDIDATES)
    return names, candidates


def holds_bars(table: Table) -> bool:
    """-> whether candidates are lists, or text of which some has a '|'."""
    column = table.columns["candidates"]
    return _is_list(column.type) or bool(pc.any(pc.match_substring(_text(table, "candidates", column), "|")).as_py())


def feature_matrix(table: Table, problems: Problems) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """-> float32 [n, d] and the names of the features. Rows with cells that are no finite number are `problems`."""
    columns = [name for name in table.columns if name.startswith("features.")]
    if columns:
        names = tuple(name.removeprefix("features.") for name in columns)
        matrix = np.zeros((len(table.rows), len(names)), np.float32)
        for index, column in enumerate(columns):
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is found below
                matrix[:, index] = _numbers(table, column, problems)
    else:
        matrix = _list_matrix(table, problems)
        names = tuple(map(str, range(matrix.shape[1])))
    finite = np.isfinite(matrix)
    for row in np.flatnonzero(~finite.all(1)).tolist():
        index = int(np.argmin(finite[row]))
        what = "empty or NaN" if np.isnan(matrix[row, index]) else "infinite, or too large for a 32-bit float"
        remedy = "Fill in the missing numbers, or leave these rows out."
        problems.add([table.rows[row]], f"feature '{names[index]}' is {what}", remedy)
    return matrix, names


def _list_matrix(table: Table, problems: Problems) -> npt.NDArray[np.float32]:
    """-> the list column 'features' as float32 [n, d]; lists of another length than most are `problems`."""
    column = table.columns["features"]
    if not _is_list(column.type) or not _is_number(column.type.value_type):
        raise DataError(
            f"{table.path}: column 'features' holds {column.type}, not lists of numbers. Lists need Parquet or JSON "
            "Lines; in a CSV, use one column per feature: 'features.width', 'features.height'."
        )
    widths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    if not widths.any():
        raise DataError(f"{table.path}: column 'features' holds empty lists only. Give each sample its numbers.")
    width = int(np.bincount(widths[widths > 0]).argmax())
    for row in np.flatnonzero(widths != width).tolist():
        reason = f"{widths[row]} features, but most have {width}"
        problems.add([table.rows[row]], reason, "Give all samples the same features.")
    if (widths != width).any():
        return np.zeros((len(widths), width), np.float32)
    values = pc.list_flatten(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        matrix: npt.NDArray[np.float32] = values.astype(np.float32).reshape(-1, width)
    return matrix


def _numbers(table: Table, name: str, problems: Problems) -> npt.NDArray[np.float64]:
    """-> a column as float64 [n], NaN where it is empty; cells that hold text are `problems`."""
    column = table.columns[name]
    numbers: npt.NDArray[np.float64]
    if _is_number(column.type):
        numbers = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return numbers
    if not _is_text(column.type):
        raise DataError(f"{table.path}: column '{name}' holds {column.type}, not numbers. Convert it, or remove it.")
    numbers = np.zeros(len(column))
    for index, cell in enumerate(column.to_pylist()):
        try:
            numbers[index] = float(cell) if cell and cell.strip() else np.nan
        except ValueError:
            remedy = "Features are numbers, with a decimal point; turn categories into numbers, or remove the column."
            problems.add([table.rows[index]], f"'{name}' is the text {cell!r}", remedy)
    return numbers


def _text(table: Table, name: str, values: Any) -> Any:
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
    elif not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise DataError(f"{table.path}: column '{name}' holds {kind}. It must hold text or whole numbers.")
    return pc.utf8_trim_whitespace(pc.fill_null(values.cast(pa.string()), ""))


def _codes(values: Any) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    encoded = values.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), tuple(encoded.dictionary.to_pylist())


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: Any) -> bool:
    types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(check(kind) for check in types)
