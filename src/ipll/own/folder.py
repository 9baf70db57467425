"""The model folder: what is kept of a model, whole or not at all.

    model.json                  written last, sealed: what the model is, and the SHA-256 of the two other files
    state-000003.safetensors    the learner's state as it was saved the third time, the memory's samples among it
    records-000003.parquet      one row per sample ever seen

Files of another number belong to no model; they are removed once model.json names new ones. So a model that could not
be written is the model that was there before. Nothing is ever unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipll.engine.checkpoint import clear
from ipll.engine.files import OWNER, check_writable, remove, remove_files, remove_leftovers, sha256_of, write_atomically
from ipll.engine.locks import lock, one_at_a_time, owner_of
from ipll.engine.sealed import check_digest, read_sealed, write_sealed
from ipll.errors import DataError, DiskError, RunError
from ipll.messages import tell
from ipll.own.facts import check_facts
from ipll.own.reading.columns import shared_texts
from ipll.own.reading.tables import check_size, release_memory
from ipll.own.records import Records

STATE, RECORDS = "state", "records"
ENDINGS = {STATE: "safetensors", RECORDS: "parquet"}
OURS = re.compile(r"(state|records)-([0-9]{6,})\.(safetensors|parquet)")
LOCK, PENDING = ".lock", ".pending"  # of whoever fits or updates; checkpoints of that, until it is done


def write_folder(folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], records: Records) -> None:
    """Writes a model. `facts` are all that is neither tensor nor record, ready for JSON; `names` are among them."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "model.json").exists() and not _leftover(folder):
        raise DataError(f"{folder} holds other files, but no model. Choose a new folder for the model.")
    generation = _newest(folder) + 1
    files = {kind: folder / f"{kind}-{generation:06d}.{ending}" for kind, ending in ENDINGS.items()}
    copies = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    table = records_table(records, tuple(facts["names"]))
    try:
        write_atomically(files[STATE], lambda temporary: save_file(copies, temporary))
        write_atomically(files[RECORDS], lambda temporary: pq.write_table(table, temporary, compression="zstd"))
        digests = {kind: {"name": path.name, "sha256": sha256_of(path)} for kind, path in files.items()}
        write_sealed(folder / "model.json", {"files": digests, **facts})
    except BaseException as error:
        for path in files.values():
            remove(path)  # of no use, and it takes room
        if isinstance(error, DiskError):
            raise DiskError(
                error.path, error.reason, "Make room and save it again, or choose another place."
            ) from error
        raise
    kept = {path.name for path in files.values()}
    remove_files(folder, lambda name: OURS.fullmatch(name) and name not in kept)
    remove_leftovers(folder, "model.json".__eq__)


def change_facts(folder: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Writes model.json anew, with its facts as `change` gives them; the other files stay as they are."""
    write_sealed(folder / "model.json", change(_facts(folder)))


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], Records]:
    """-> what `write_folder` was given; a DataError where it is no longer all there."""
    facts = _facts(folder)
    try:
        paths = {kind: folder / _plain_name(facts["files"][kind]["name"]) for kind in ENDINGS}
        for kind, path in paths.items():
            check_digest(path, facts["files"][kind]["sha256"])
        facts = {"voted": True, "missed": 0.0} | facts  # an older model may have been, and did not look for misses
        check_facts(facts)
        tensors, records = load_file(paths[STATE]), read_records(paths[RECORDS], tuple(facts["names"]))
        release_memory()
        _check_match(tensors, records, len(facts["names"]))
        if "through" in facts:
            _check_pictures(tensors)
        return facts, tensors, records
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, SafetensorError) as error:
        lacking = error.filename if isinstance(error, FileNotFoundError) else error
        reason = f"{lacking} is missing" if isinstance(error, FileNotFoundError | KeyError) else error
        raise DataError(f"the model {folder} is damaged: {reason}. Take it from a copy, or fit it anew.") from error


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    try:
        return read_sealed(path)
    except FileNotFoundError:
        raise DataError(f"{folder} is no model: it has no model.json. Name a folder that `ipll fit` made.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it {error}"
        raise DataError(f"cannot read {path}: {reason}. Take the model from a copy, or fit it anew.") from error


def _plain_name(name: str) -> str:
    """-> the name of a file beside model.json, which leads nowhere else."""
    if not OURS.fullmatch(name):
        raise ValueError(f"model.json names no file of a model: {name}")
    return name


def _check_match(tensors: Mapping[str, Tensor], records: Records, classes: int) -> None:
    """Raises ValueError unless the records are those of the learner's memory, and the centres those of the classes."""
    if len(tensors["centres"]) != classes:
        raise ValueError("its tensors are not those of the classes in model.json")
    if not np.array_equal(np.sort(tensors["module.memory.ids"].numpy()), np.flatnonzero(records.in_memory)):
        raise ValueError("its records are not those of its memory")


def _check_pictures(tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError unless there is a small picture of each photo of the memory."""
    pictures = tensors["pictures"]
    if pictures.dtype != torch.uint8 or pictures.ndim != 4 or pictures.shape[1] != 3:
        raise ValueError("its pictures are none")
    if len(pictures) != len(tensors["module.memory.ids"]):
        raise ValueError("its pictures are not those of its memory")


@contextmanager
def working_on(folder: Path, *, new: bool = False) -> Iterator[None]:
    """Fits and updates of one model wait for each other, so that none is lost, and find out first whether the folder
    can be written. A `new` model's folder is made, and removed where it stays empty."""
    if not new and not (folder / "model.json").exists():
        yield  # it is no model, which those who load it are told
        return
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    with ExitStack() as stack:
        stack.callback(_remove_empty, missing)
        try:
            _enter(folder, stack)
        except OSError as error:
            way_out = "Choose another --out." if new else "Update a copy of the model."
            raise RunError(f"cannot write {error.filename or folder}: {error.strerror or error}. {way_out}") from None
        stack.callback(remove, folder / OWNER)
        check_writable(folder)
        yield


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it holds something, or was not made
            folder.rmdir()


def _enter(folder: Path, stack: ExitStack) -> None:
    """Makes the folder and locks it; again where whom this process waited for has removed it, since it was empty."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _tell_of_another(folder)
            stack.enter_context(one_at_a_time(folder / LOCK))
            return
        except FileNotFoundError:
            continue


def _tell_of_another(folder: Path) -> None:
    """Says whom this process has to wait for."""
    try:
        lock(folder / LOCK, wait=False).release()
    except BlockingIOError:
        tell(f"{folder}: {owner_of(folder)} is working on this model; waiting.")


def clear_pending(folder: Path) -> None:
    """Removes the checkpoints of a fit or update that is done."""
    clear(folder / PENDING)


def _newest(folder: Path) -> int:
    """-> the highest number of a file there, of a model or left over; 0 where there is none."""
    names = (OURS.fullmatch(path.name) for path in folder.glob("*-*"))
    return max((int(name[2]) for name in names if name), default=0)


def _leftover(folder: Path) -> bool:
    """Are there only files that an interrupted first save has left?"""
    return all(OURS.fullmatch(path.name) or path.name.startswith(".") for path in folder.iterdir())


def records_table(records: Records, names: tuple[str, ...]) -> Any:
    """-> an Arrow table, with class names instead of numbers."""
    texts = pa.array(names, pa.string())
    candidates = pa.ListArray.from_arrays(pa.array(records.offsets, pa.int32()), texts.take(pa.array(records.codes)))
    columns: dict[str, Any] = {
        "id": pa.array(records.ids, pa.string()),
        "update": records.update,
        "candidates": candidates,
        "label": texts.take(pa.array(records.label)),
        "runner_up": named(records.runner_up, names),
    }
    for field in fields(records):
        if field.name not in ("ids", "offsets", "codes", *columns):
            value = getattr(records, field.name)
            columns[field.name] = pa.array(value, pa.string()) if isinstance(value, list) else pa.array(value)
    return pa.table(columns)


def named(codes: npt.NDArray[np.int64], names: tuple[str, ...]) -> Any:
    """-> classes by name; '' of -1."""
    return pa.array([*names, ""], pa.string()).take(pa.array(codes % (len(names) + 1)))


def read_records(path: Path, names: tuple[str, ...]) -> Records:
    """Reads the table of `records_table`; errors are Arrow's, a KeyError or a ValueError."""
    file = pq.ParquetFile(path)
    check_size(path, file.metadata)
    table = file.read().combine_chunks()
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    lists, labels = columns.pop("candidates"), columns.pop("label")
    values: dict[str, Any] = {"label": _codes(labels, names), "codes": _codes(lists.flatten(), names)}
    following = columns.pop("runner_up", pa.array([""] * len(labels), pa.string()))  # an older model did not keep it
    values["runner_up"] = _codes(following, ("", *names)) - 1
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
        return shared_texts(column)
    return np.array(column.to_numpy(zero_copy_only=False))  # a copy: Arrow's own memory is read-only
