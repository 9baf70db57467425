"""Tables: the columns of a CSV, Parquet or JSON Lines file, or of matrices, and its rows as their owner counts them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ipll.engine import machine
from ipll.engine.regular import check_regular
from ipll.errors import DataError, suggest
from ipll.own.reading.csv_files import read_csv
from ipll.own.reading.json_files import read_json
from ipll.own.reading.matrices import FIRST, read_matrices
from ipll.own.reading.packed import check_packed, ending, open_bytes
from ipll.own.reading.problems import Problems

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", *FIRST)
OTHERWISE = {  # an ending that is none of these -> what to do
    ".npy": "It is one array: write features and candidates into one .npz, numpy.savez(file, data=X, candidates=Y).",
    **dict.fromkeys((".heic", ".heif"), "Convert the image to JPEG or PNG."),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "Save the sheet as CSV (UTF-8)."),
}
GZIP = "a gzip file"
SIGNATURES = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a spreadsheet or ZIP file",
    b"\xd0\xcf\x11\xe0": "an old Excel file",
    b"\x1f\x8b": GZIP,
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}  # bytes of a value, at least
INDEX = ("Unnamed: 0", "__index_level_0__")  # how pandas calls an index that had no name


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file."""

    path: Path
    columns: dict[str, Any]  # name -> Arrow array
    rows: npt.NDArray[np.int64]  # [n], row numbers as the user counts: a CSV's header is row 1
    word: str  # 'row'; 'line' for JSON Lines, 'sample' for matrices
    notes: list[str] = field(default_factory=list)  # how it was read, where that is not plain

    def problems(self) -> Problems:
        return Problems(str(self.path), self.word)


def open_table(path: Path, text: Collection[str]) -> Table:
    """-> the columns of the file at `path`; those named in `text` are text whatever they look like ('007')."""
    suffix = ending(path)
    if suffix not in SUFFIXES:
        if not path.exists():
            raise DataError(f"cannot read {path}: there is no such file or folder. Check the path.")
        if path.is_dir():
            raise DataError(
                f"{path} is a folder, not a table. Of images, give a table with the columns image and candidates."
            )
        hint = f" {OTHERWISE[suffix]}" if suffix in OTHERWISE else ""
        raise DataError(
            f"{path}: its ending is not that of a table. Use one of {', '.join(SUFFIXES)}, or .csv.gz.{hint}"
        )
    notes: list[str] = []
    try:
        check_regular(path)
        check_packed(path)
        with open_bytes(path) as file:
            head = file.read(4)
        kind = next((kind for mark, kind in SIGNATURES.items() if head.startswith(mark)), "")
        if not head:
            raise DataError(f"{path} is empty. A table has a header and one row per sample.")
        if suffix in FIRST:
            columns, first, notes = read_matrices(path)
            return Table(path, dict(columns), np.arange(len(columns["features"])) + first, "sample", notes)
        if suffix == ".parquet":
            table = _read_parquet(path, kind)
            rows = np.arange(1, table.num_rows + 1)
        elif kind:
            named = suffix[1:].upper()
            way_out = f"Call it {path.name}.gz" if kind == GZIP else f"Save it as {named} in UTF-8"
            raise DataError(f"{path} is {kind}, not {named}. {way_out}.")
        elif suffix in (".csv", ".tsv"):
            table, rows, notes = read_csv(path, "," if suffix == ".csv" else "\t", text)
        else:
            table, rows = read_json(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    if not table.num_rows:
        raise DataError(f"{path} has no rows. A table has one row per sample.")
    return Table(path, _columns(path, table), rows, "line" if suffix in (".jsonl", ".ndjson") else "row", notes)


def release_memory() -> None:
    """Arrow keeps what a table took, until it is asked; of a large one that is more than its samples take."""
    pa.default_memory_pool().release_unused()


def check_names(table: Table, known: Collection[str], advice: str) -> None:
    """A DataError for a column that is not known, with the nearest that is, and `advice`."""
    for name in table.columns:
        if name in INDEX:
            raise DataError(f"{table.path}: column {name!r} looks like pandas' index. Write the table without it.")
        if name not in known:
            nearest = suggest(name.strip().lower(), known, sorted(known))
            raise DataError(f"{table.path}: unknown column '{name}'.{nearest} {advice}")


def _read_parquet(path: Path, kind: str) -> Any:
    try:
        file = pq.ParquetFile(path)
        check_size(path, file.metadata)
        table = file.read()
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, DataError):
            raise
        reason = "is damaged" if kind == "a Parquet file" else "is not a Parquet file"
        said = " ".join(str(error).split())
        raise DataError(f"{path} {reason} ({said}). Write it again, or correct its ending.") from error


def check_size(path: Path, metadata: Any) -> None:
    """A DataError where the values could not be held: a few kilobytes can say that there are billions of them, in rows
    or in the lists of one."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    least = sum(chunk.num_values * WIDTHS.get(chunk.physical_type, 1) for chunk in chunks)
    if least > machine.memory():
        raise DataError(
            f"{path} says that it has {metadata.num_rows:,} rows of {metadata.num_columns:,} columns, {least:,} bytes "
            "of values at least, more than this machine's memory could hold. Write it again, or in several files."
        )


def _columns(path: Path, table: Any) -> dict[str, Any]:
    """-> the columns in one piece each; {"features": {"width": 3}} becomes the column 'features.width'."""
    if "features" in table.column_names and pa.types.is_struct(table.schema.field("features").type):
        table = table.flatten()
    columns: dict[str, Any] = {}
    for number, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True), 1):
        if not name:
            if column.null_count == len(column):  # as spreadsheets leave them
                continue
            raise DataError(
                f"{path}: column {number} has no name. Name it, or remove it; pandas' index stays away with "
                "to_csv(..., index=False)."
            )
        if name in columns:
            raise DataError(f"{path}: two columns are called '{name}'. Rename or remove one.")
        columns[name] = column.combine_chunks()
    return columns
