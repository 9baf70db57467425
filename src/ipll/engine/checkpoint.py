"""Checkpoints: tensors in safetensors, the rest in sealed JSON with the tensors' SHA-256; the last two are kept.

A checkpoint counts once its JSON file is there, and the JSON file is written last. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipll.engine.files import check_folder, make_folder, remove, remove_files, sha256_of, write_atomically
from ipll.engine.sealed import check_digest, read_sealed, write_sealed

KEPT = 2
NAME = re.compile(r"([0-9]{6,})\.(json|safetensors)")


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save(folder: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    write(folder, copy(tensors, meta))


def copy(tensors: dict[str, Tensor], meta: dict[str, Any]) -> Checkpoint:
    """-> what does not change any more, whatever becomes of these."""
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return Checkpoint(copies, json.loads(json.dumps(meta)))


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes the next checkpoint, then removes all but the last two. Where that fails, those before it are left."""
    make_folder(folder)
    number = max(_numbers(folder), default=0) + 1
    file, record = (folder / f"{number:06d}.{ending}" for ending in ("safetensors", "json"))
    try:
        write_atomically(file, lambda temporary: save_file(checkpoint.tensors, temporary))
        write_sealed(record, {"sha256": sha256_of(file), "meta": checkpoint.meta})
    except BaseException:
        remove(file)  # of no use, and it takes room
        raise
    kept = {f"{n:06d}" for n in range(number, number - KEPT, -1)}
    remove_files(folder, lambda name: NAME.fullmatch(name) and name.partition(".")[0] not in kept)


def load_latest(folder: Path) -> Checkpoint | None:
    """-> the newest whole checkpoint; a damaged one is passed over for the one before it."""
    return look(folder)[0]


def look(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """-> the same, and a word on each that was passed over."""
    check_folder(folder)
    passed: list[str] = []
    for number in sorted(_numbers(folder), reverse=True):
        record = folder / f"{number:06d}.json"
        try:
            return _load(record), passed
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            reason = (error.strerror or error) if isinstance(error, OSError) else error
            passed.append(f"The checkpoint {record} is damaged ({reason}). It is passed over for the one before it.")
    return None, [*passed, f"{folder} holds no whole checkpoint: training begins anew."] if passed else []


def _load(record: Path) -> Checkpoint:
    """-> one checkpoint; many kinds of errors where it is not whole."""
    found, file = read_sealed(record), record.with_suffix(".safetensors")
    check_digest(file, found["sha256"])
    if not isinstance(found["meta"], dict):
        raise ValueError("it lacks a table of facts")
    return Checkpoint(load_file(file), found["meta"])


def clear(folder: Path) -> None:
    """Removes the checkpoints of a folder, and the folder itself unless something else is in it."""
    check_folder(folder)
    remove_files(folder, NAME.fullmatch)
    with suppress(OSError):  # not there, or not empty
        folder.rmdir()


def _numbers(folder: Path) -> list[int]:
    return [int(name[1]) for path in folder.glob("*.json") if (name := NAME.fullmatch(path.name))]
