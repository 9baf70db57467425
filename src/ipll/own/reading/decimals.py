"""Numbers with a decimal comma, as spreadsheets write them in most of Europe, with semicolons between the columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ipll.own.reading.problems import NO_NUMBERS

NUMBER = r"^\s*[+-]?(\d+|\d*,\d+)([eE][+-]?\d+)?\s*$"
THOUSANDS = r"^\s*[+-]?[1-9]\d{0,2},\d{3}\s*$"  # or a decimal comma: one such number does not tell


def with_points(table: Any, text: Collection[str]) -> tuple[Any, bool]:
    """-> the table with the numbers of all columns that are not `text`, where some have a decimal comma and none a
    point; else the table as it is. And whether it was so."""
    others = [k for k, name in enumerate(table.column_names) if name not in text]
    if any(pa.types.is_floating(table.schema.types[k]) for k in others):  # these have points
        return table, False
    found = [k for k in others if pa.types.is_string(table.schema.types[k]) and _are_numbers(table.column(k))]
    if not any(_surely(table.column(k)) for k in found):
        return table, False
    for k in found:
        numbers = pc.utf8_trim_whitespace(pc.replace_substring(table.column(k), ",", "."))
        values = pc.if_else(_gaps(numbers), None, numbers).cast(pa.float64())
        table = table.set_column(k, table.column_names[k], values)
    return table, True


def _gaps(cells: Any) -> Any:
    return pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(cells, ""))), pa.array([*NO_NUMBERS]))


def _are_numbers(cells: Any) -> bool:
    return bool(pc.all(pc.or_(pc.match_substring_regex(pc.fill_null(cells, ""), NUMBER), _gaps(cells))).as_py())


def _surely(cells: Any) -> bool:
    """-> whether a comma of some number can only be a decimal one."""
    comma = pc.match_substring(pc.fill_null(cells, ""), ",")
    return bool(pc.any(pc.and_not(comma, pc.match_substring_regex(pc.fill_null(cells, ""), THOUSANDS))).as_py())
