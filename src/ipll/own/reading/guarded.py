"""The guard of `engine/cells.py`, for whole Arrow columns at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ipll.engine.cells import FORMULA, HARMLESS, guard


def guarded(column: Any) -> Any:
    """-> an Arrow column of text, ready to be written; other columns stay as they are."""
    if not _is_text(column.type):
        return column
    return pc.if_else(_live(column), pc.binary_join_element_wise("'", column, ""), column)


def unguarded(column: Any) -> Any:
    """-> an Arrow column as it was before it was guarded."""
    if not _is_text(column.type):
        return column
    marked = pc.and_(pc.starts_with(column, "'"), _live(column))
    return pc.if_else(marked, pc.utf8_slice_codeunits(column, 1), column)


def guarded_table(table: Any) -> Any:
    """-> an Arrow table whose text, and names of columns, are ready to be written as CSV."""
    return pa.table([guarded(column) for column in table.columns], [guard(name) for name in table.column_names])


def _live(column: Any) -> Any:
    """-> whether a spreadsheet would take the text for a formula, or would without the apostrophes before it."""
    formula = pc.match_substring_regex(column, FORMULA)
    return pc.and_not(formula, pc.match_substring_regex(column, HARMLESS))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
