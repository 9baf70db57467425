"""JSON Lines. Python parses them: Arrow's own reader can bring down the process on a damaged file, and takes text that
looks like a date for one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ipll.errors import DataError
from ipll.own.reading.csv_files import check_utf8
from ipll.own.reading.packed import open_bytes
from ipll.own.reading.problems import Problems

BLOCK = 10_000  # lines that are held as Python objects at a time

Row = dict[str, Any]


def read_json(path: Path) -> tuple[Any, npt.NDArray[np.int64]]:
    """-> the table, and the line number of each row."""
    problems = Problems(str(path), "line")
    tables: list[Any] = []
    numbers: list[int] = []
    try:
        lines = _rows(path, problems)
        while block := list(islice(lines, BLOCK)):
            numbers += [number for number, _ in block]
            tables.append(_table([row for _, row in block]))
        problems.stop()
        table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    except UnicodeDecodeError:
        check_utf8(path)
        raise
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        _check_kinds(path)
        raise DataError(f"{path} holds values that cannot be used ({error}). Write plain text and numbers.") from error
    return table, np.array(numbers, np.int64)


def _rows(path: Path, problems: Problems) -> Iterator[tuple[int, Row]]:
    """-> the objects with their line numbers; lines that are none are `problems`, blank ones are passed over."""
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                problems.add([number], f"not JSON ({getattr(error, 'msg', error)})", "Write one JSON object per line.")
                continue
            if not isinstance(row, dict):
                problems.add([number], f"{_kind(row) or 'nothing'}, not an object", "Write one JSON object per line.")
                continue
            if isinstance(features := row.get("features"), dict):
                del row["features"]
                row |= {f"features.{name}": value for name, value in features.items()}
            yield number, row


def _table(rows: list[Row]) -> Any:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def _check_kinds(path: Path) -> None:
    """A DataError that lists the lines with a value that is of another kind than before."""
    problems = Problems(str(path), "line")
    seen: dict[str, tuple[str, int]] = {}
    for number, row in _rows(path, problems):
        for name, value in row.items():
            kind = _kind(value)
            before, where = seen.setdefault(name, (kind, number)) if kind else (kind, number)
            if kind != before:
                reason = f"'{name}' is {kind}, but {before} in line {where}"
                problems.add([number], reason, "Use one kind of value for it in all lines.")
    problems.stop()


def _kind(value: object) -> str:
    """-> what a value is, in words; '' for one that goes with every kind."""
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        kinds = sorted({_kind(one) for one in value} - {""})
        return f"a list of {' and '.join(kinds)}" if kinds else ""
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "an object"}
    return words[type(value)]
