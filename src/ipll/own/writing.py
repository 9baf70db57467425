"""Arrow tables as files, of the kind that the ending says; and what no file may take the place of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ipll.engine.files import write_atomically
from ipll.errors import ConfigError
from ipll.own.folder import OURS
from ipll.own.reading.guarded import guarded_table

if TYPE_CHECKING:
    from ipll.own.model import Model


def check_harmless(path: Path, model: Model, inputs: Iterable[Path]) -> None:
    """Raises where a file at `path` would lie in a model's folder, or take the place of what is read (`inputs`) or of
    what the model learnt from. An earlier output may be replaced."""
    for place in Path(os.path.realpath(path)).parents:
        if _holds_model(place):
            raise ConfigError(f"{path} would lie in {place}, which is for a model alone. Choose another --out.")
    if not os.path.exists(path):
        return
    if any(os.path.exists(one) and path.samefile(one) for one in inputs):
        raise ConfigError(f"{path} is what is read here, and would be lost. Choose another --out.")
    for source in sorted({*model.records.source, *(one.decisions for one in model.history if one.decisions)}):
        if _may_be(path, source):
            raise ConfigError(
                f"{path} is there, and the model learnt from {source}: that would be lost. Choose another --out, or "
                "remove the file first, if it is another one."
            )


def _holds_model(folder: Path) -> bool:
    """Others call files model.json, too."""
    return os.path.exists(folder / "model.json") and any(OURS.fullmatch(file.name) for file in folder.glob("*-*"))


def _may_be(path: Path, source: str) -> bool:
    """Is it that file? One that is not found from here is told by its name."""
    return path.samefile(source) if os.path.exists(source) else path.name == Path(source).name


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
