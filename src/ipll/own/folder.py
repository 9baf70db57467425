"""The model folder: what is kept of a model, whole or not at all.

    model.json                  written last: what the model is, and the SHA-256 of the two other files
    state-000003.safetensors    the learner's state as it was saved the third time, the memory's samples among it
    records-000003.parquet      one row per sample ever seen

Files of another number belong to no model; they are removed once model.json names new ones. So a model that could not
be written is the model that was there before. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipll.engine.files import sha256_of, write_atomically, write_json
from ipll.errors import DataError
from ipll.own.records import Records

FORMAT = 1
STATE, RECORDS = "state", "records"
ENDINGS = {STATE: "safetensors", RECORDS: "parquet"}


def write_folder(folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], records: Records) -> None:
    """Writes a model. `facts` are all that is neither tensor nor record, ready for JSON; `names` are among them."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "model.json").exists() and not _leftover(folder):
        raise DataError(f"{folder} holds other files, but no model. Choose a new folder for the model.")
    generation = _newest(folder) + 1
    files = {kind: folder / f"{kind}-{generation:06d}.{ending}" for kind, ending in ENDINGS.items()}
    copies = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    table = records_table(records, tuple(facts["names"]))
    write_atomically(files[STATE], lambda temporary: save_file(copies, temporary))
    write_atomically(files[RECORDS], lambda temporary: pq.write_table(table, temporary, compression="zstd"))
    digests = {kind: {"name": path.name, "sha256": sha256_of(path)} for kind, path in files.items()}
    write_json(folder / "model.json", {"format": FORMAT, "files": digests} | dict(facts))
    for old in folder.iterdir():
        if _ours(old) and old not in files.values():
            old.unlink(missing_ok=True)


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], Records]:
    """-> what `write_folder` was given; a DataError where it is no longer all there."""
    facts = _facts(folder)
    try:
        paths = {kind: folder / facts["files"][kind]["name"] for kind in ENDINGS}
        for kind, path in paths.items():
            if sha256_of(path) != facts["files"][kind]["sha256"]:
                raise ValueError(f"{path.name} is not the file that was written")
        records = read_records(paths[RECORDS], tuple(facts["names"]))
        return facts, load_file(paths[STATE]), records
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, SafetensorError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise DataError(f"the model {folder} is damaged: {reason}. Take it from a copy, or fit it anew.") from error


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} is no model: it has no model.json. Name a folder that `ipll fit` made.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}. Take the model from a copy, or fit it anew.") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise DataError(f"{path} is not the description of a model. Name a folder that `ipll fit` made.")
    if facts["format"] != FORMAT:
        raise DataError(f"{folder} has format {facts['format']}, and this version of ipll reads {FORMAT}. Update ipll.")
    return facts


def _newest(folder: Path) -> int:
    """-> the highest number of a file there, of a model or left over; 0 where there is none."""
    numbers = (path.stem.partition("-")[2] for path in folder.glob("*-*") if _ours(path))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _ours(path: Path) -> bool:
    kind, _, rest = path.name.partition("-")
    return kind in ENDINGS and rest.endswith(f".{ENDINGS[kind]}")


def _leftover(folder: Path) -> bool:
    """Are there only files that an interrupted first save has left?"""
    return all(_ours(path) or path.name.startswith(".") for path in folder.iterdir())


def records_table(records: Records, names: tuple[str, ...]) -> Any:
    """-> an Arrow table, with class names instead of numbers."""
    texts = pa.array(names, pa.string())
    candidates = pa.ListArray.from_arrays(pa.array(records.offsets, pa.int32()), texts.take(pa.array(records.codes)))
    columns: dict[str, Any] = {
        "id": pa.array(records.ids, pa.string()),
        "update": records.update,
        "candidates": candidates,
        "label": texts.take(pa.array(records.label)),
    }
    for field in fields(records):
        if field.name not in ("ids", "offsets", "codes", *columns):
            value = getattr(records, field.name)
            columns[field.name] = pa.array(value, pa.string()) if isinstance(value, list) else pa.array(value)
    return pa.table(columns)


def read_records(path: Path, names: tuple[str, ...]) -> Records:
    """Reads the table of `records_table`; errors are Arrow's, a KeyError or a ValueError."""
    table = pq.read_table(path).combine_chunks()
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    lists, labels = columns.pop("candidates"), columns.pop("label")
    values: dict[str, Any] = {"label": _codes(labels, names), "codes": _codes(lists.flatten(), names)}
    values["offsets"] = np.append(0, np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False))).astype(np.int64)
    for name, column in columns.items():
        values["ids" if name == "id" else name] = _values(column)
    return Records(**values)


def _codes(texts: Any, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    found = pc.index_in(texts, value_set=pa.array(names, pa.string()))
    if found.null_count:
        raise ValueError("its records name a class that is not in model.json")
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def _values(column: Any) -> Any:
    if pa.types.is_string(column.type):
        return column.to_pylist()
    return np.array(column.to_numpy(zero_copy_only=False))  # a copy: Arrow's own memory is read-only
