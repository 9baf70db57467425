"""Checkpoints: tensors in safetensors, the rest in JSON with the tensors' SHA-256; the last two are kept.

A checkpoint counts once its JSON file is there, and the JSON file is written last. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipll.engine.files import sha256_of, write_atomically, write_json

KEPT = 2


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
    """Writes the next checkpoint, then removes all but the last two."""
    folder.mkdir(exist_ok=True)
    number = max(_numbers(folder), default=0) + 1
    file = folder / f"{number:06d}.safetensors"
    write_atomically(file, lambda temporary: save_file(checkpoint.tensors, temporary))
    write_json(folder / f"{number:06d}.json", {"sha256": sha256_of(file), "meta": checkpoint.meta})
    for old in folder.iterdir():
        if not any(old.name.startswith(f"{kept:06d}.") for kept in range(number, number - KEPT, -1)):
            old.unlink(missing_ok=True)


def load_latest(folder: Path) -> Checkpoint | None:
    """-> the newest whole checkpoint; a damaged one is passed over for the one before it."""
    for number in sorted(_numbers(folder), reverse=True):
        file = folder / f"{number:06d}.safetensors"
        try:
            record = json.loads((folder / f"{number:06d}.json").read_text())
            if sha256_of(file) == record["sha256"]:
                return Checkpoint(load_file(file), record["meta"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            continue
    return None


def _numbers(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
