"""CSV files: Arrow reads them; what it refuses is looked at again, slowly, to say which rows are wrong."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ipll.errors import DataError
from ipll.own.reading.decimals import with_points
from ipll.own.reading.guarded import unguarded
from ipll.own.reading.packed import is_packed, open_bytes
from ipll.own.reading.problems import Problems

BLOCK_BYTES = 2**23
SEPARATORS = {";": "a semicolon (;)", "\t": "a tab", ",": "a comma (,)", "|": "a bar (|)"}


def read_csv(path: Path, separator: str, text: Collection[str]) -> tuple[Any, npt.NDArray[np.int64], list[str]]:
    """-> the table, the number of each row as a spreadsheet shows it, and what is to be told of how it was read.

    Columns named in `text` stay text, without the apostrophe that guards formulas where we write a CSV. Semicolons or
    tabs between the columns are taken as they are where the header has no commas.
    """
    header = _header(path, separator)
    if any("\ufffd" in name for name in header):
        check_utf8(path)
    expected, separator = separator, _separator(path, separator, header)
    header = _header(path, separator)
    try:
        with pa.input_stream(path, "gzip" if is_packed(path) else None) as file:
            table = pacsv.read_csv(
                file,
                read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES),
                parse_options=pacsv.ParseOptions(delimiter=separator, newlines_in_values=True),
                convert_options=pacsv.ConvertOptions(
                    column_types={n: pa.string() for n in header if n.strip() in text}
                ),
            )
        table = table.rename_columns([name.strip() for name in table.column_names])
    except pa.ArrowInvalid as error:
        check_utf8(path)
        if "Empty CSV" in str(error):
            raise DataError(f"{path} has no rows. A table has a header and one row per sample.") from error
        _check_widths(path, separator, header)
        raise DataError(f"{path} cannot be read as CSV ({error}). Save it again as CSV (UTF-8).") from error
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        check_utf8(path)
    for index, name in enumerate(table.column_names):
        if name in text:
            table = table.set_column(index, name, unguarded(table.column(index)))
    rows = _numbers(path, separator, table.num_rows)
    _check_line_breaks(path, table, rows)
    table, commas = with_points(table, text) if separator != "," else (table, False)
    how = [f"columns separated by {SEPARATORS[separator]}"] * (separator != expected) + ["decimal commas"] * commas
    return table, rows, [f"{path}: read with {' and '.join(how)}."] * bool(how)


def _header(path: Path, separator: str) -> list[str]:
    with _records(path, separator) as records:
        return next((record for _, record in records), [])


def check_utf8(path: Path) -> None:
    """A DataError where the file is not UTF-8, with the line."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                seen = line[: error.end].decode("latin-1")[-20:]
                raise DataError(
                    f"{path}, line {number}: not UTF-8 text (near {seen!r}, were it Windows-1252). "
                    "Save it as 'CSV UTF-8', or convert it: iconv -f WINDOWS-1252 -t UTF-8."
                ) from error


@contextmanager
def _records(path: Path, separator: str) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """-> the records that are not blank, each with its row number. Python's reader, for what Arrow does not tell."""
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        try:
            yield ((number, record) for number, record in enumerate(reader, 1) if record)
        except csv.Error as error:
            raise DataError(
                f"{path}, near line {reader.line_num}: {error}. Look for a quote that never ends."
            ) from error


def _separator(path: Path, separator: str, header: list[str]) -> str:
    """-> what separates the columns, where the header leaves no doubt; else a DataError."""
    if header and header[0].lstrip().startswith(("{", "[")):
        raise DataError(f"{path} holds JSON, not CSV. Give it the ending .jsonl, with one object per line.")
    if len(header) != 1:
        return separator
    if header[0].startswith("sep="):
        raise DataError(f"{path}: its first line, {header[0]!r}, is no header. Remove it.")
    found = [other for other in SEPARATORS if other in header[0]]
    if separator == "," and found in ([";"], ["\t"]) and len(_header(path, found[0])) > 1:
        return found[0]
    for other, name in SEPARATORS.items():
        if other in header[0]:
            remedy = {"\t": "Give it the ending .tsv", ",": "Give it the ending .csv"}.get(
                other, "Save it with commas, and with points in decimal numbers"
            )
            raise DataError(f"{path}: the columns are separated by {name}, not by {SEPARATORS[separator]}. {remedy}.")
    return separator


def _check_widths(path: Path, separator: str, header: list[str]) -> None:
    """A DataError that lists the rows with more or fewer cells than the header."""
    problems = Problems(str(path))
    remedy = 'A cell that holds the separator or a quote must be quoted: "Robin, European".'
    with _records(path, separator) as records:
        for number, record in records:
            if len(record) != len(header):
                problems.add([number], f"{len(record)} cells, but the header has {len(header)}", remedy)
    problems.stop()


def _check_line_breaks(path: Path, table: Any, rows: npt.NDArray[np.int64]) -> None:
    """A DataError for cells of several lines: a quote that never ends would swallow the rows after it in silence."""
    problems = Problems(str(path))
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type):
            several = pc.fill_null(pc.match_substring_regex(column, "[\r\n]"), False).to_numpy()
            problems.add(rows[several], f"a line break in '{name}'", "Look for a quote that never ends.")
    problems.stop()


def _numbers(path: Path, separator: str, n: int) -> npt.NDArray[np.int64]:
    """-> the row number of each of the n rows; blank rows count, though they hold no sample."""
    if _has_blank_line(path):
        with _records(path, separator) as records:
            numbers = np.array([number for number, _ in records][1:], np.int64)
        if len(numbers) == n:
            return numbers
    return np.arange(2, n + 2)


def _has_blank_line(path: Path) -> bool:
    """By searches for plain bytes: a pattern takes as long as Arrow takes for the whole file."""
    end = b"\n"  # of what was read, as if there were a line before the first
    with open_bytes(path) as file:
        while read := file.read(BLOCK_BYTES):
            block = end + read
            if b"\n\n" in block or b"\n\r\n" in block:
                return True
            end = block[-2:]
    return False
