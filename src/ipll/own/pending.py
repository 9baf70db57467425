"""Training that was stopped: what is needed to go on with it, kept until it is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipll.config import Config
from ipll.data.stream import Task
from ipll.engine.checkpoint import clear, load_latest, save
from ipll.learner import Learner, Position
from ipll.own.records import Records

COLUMNS = ("label", "confidence", "changed_update", "changed_epoch")  # what training writes to the records


class Pending:
    """A folder of checkpoints of one fit or update. Those of another one are of no use and are removed."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def restore(self, learner: Learner, task: Task, records: Records) -> tuple[Records, Position | None]:
        """Brings the learner to where it was stopped, if it was -> the records of then, and the position."""
        found = load_latest(self.folder)
        if found is None or found.meta.get("key") != self.key:
            self.clear()
            return records, None
        columns: dict[str, Any] = {name: found.tensors.pop(f"records.{name}").numpy() for name in COLUMNS}
        learner.restore(found.tensors, task, within=True)
        return replace(records, **columns), Position(*found.meta["position"])

    def keep(self, learner: Learner, records: Records, position: Position) -> None:
        columns = {f"records.{name}": torch.from_numpy(getattr(records, name)) for name in COLUMNS}
        save(self.folder, learner.tensors() | columns, {"key": self.key, "position": position})

    def clear(self) -> None:
        clear(self.folder)


def key_of(config: Config, tensors: Mapping[str, Tensor], task: Task, records: Records) -> str:
    """-> a digest of all that an update depends on: the settings, the model before it, and the samples."""
    own = records.ids[len(records) - len(task.ids) :]
    digest = hashlib.sha256(json.dumps([config.to_table(), len(records), own, task.seen], sort_keys=True).encode())
    state: list[Any] = [tensors[name].numpy() for name in sorted(tensors)]
    given = [task.samples[:], task.candidates, task.known, task.votes, task.certain]
    for array in (*state, *(one for one in given if one is not None)):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
