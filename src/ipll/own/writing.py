"""Arrow tables as files, of the kind that the ending says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ipll.engine.files import write_atomically
from ipll.own.reading.guarded import guarded_table


def write_table(table: pa.Table, path: Path) -> None:
    write_atomically(path, lambda temporary: WRITERS[path.suffix.lower()](table, temporary))


def _write_csv(table: pa.Table, path: Path) -> None:
    """A CSV has no lists: those are text with a bar between, as candidates are in the tables that are read."""
    for index, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            table = table.set_column(index, field.name, pc.binary_join(table[index].combine_chunks(), "|"))
    pyarrow.csv.write_csv(guarded_table(table), path)


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")


def _write_lines(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in table.to_batches(max_chunksize=10_000):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".jsonl": _write_lines,
}
