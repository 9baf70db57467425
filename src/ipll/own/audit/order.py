"""In which order people are asked: what would teach most comes first.

1. Doubt: 1 - confidence, the chance that the label is wrong.
2. Spread over classes: within the class that it settled on, a sample's doubt counts less the more of the class's doubt
   lies before it, down to half for the last one. So no class takes all the attention.
3. Near-duplicates once: a sample that has the candidates of a more doubtful one and lies next to it waits until the
   others were asked; what is learnt of the one is learnt of the other.

Decided samples are not asked again. Those with one candidate come last, where nothing speaks against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ipll.engine.state import MEMORY
from ipll.own.records import Bools, Ints, Records

if TYPE_CHECKING:
    from ipll.own.model import Model

LOOKED_AT = 3_000  # samples, the most doubtful, among which duplicates are looked for
NEAR = 0.1  # of the median distance of neighbours: so near are duplicates
SIDE = 16  # pixels of a side, about, by which images are compared
BLOCK = 512


def asking_order(model: Model) -> Ints:
    """-> the records to be asked about, in order; decided ones are not among them."""
    records = model.records
    open_ = np.ones(len(records), np.bool_)
    open_[sorted({one.row for one in model.decisions})] = False
    worth = spread(1 - records.confidence.astype(np.float64), records.label, open_)
    order: Ints = np.lexsort((np.arange(len(records)), -worth))
    order = order[open_[order]]
    again = _duplicates(model, order[:LOOKED_AT])
    return np.concatenate([order[~again[order]], order[again[order]]])


def spread(doubt: npt.NDArray[np.float64], label: Ints, open_: Bools) -> npt.NDArray[np.float64]:
    """-> doubt [n] times 1 - F / 2, F the share of its class's doubt that lies before it; 0 for what is not open."""
    worth = np.where(open_, doubt, 0.0)
    order = np.lexsort((-worth, label))
    ordered, classes = worth[order], label[order]
    before = np.cumsum(ordered) - ordered
    starts = np.flatnonzero(np.append(True, classes[1:] != classes[:-1])) if len(order) else np.zeros(0, np.int64)
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    if len(order):
        before -= before[starts][group]
        total = np.add.reduceat(ordered, starts)[group]
        ordered = ordered * (1 - 0.5 * before / np.maximum(total, 1e-12))
    worth[order] = ordered
    return worth


def sample_values(model: Model) -> tuple[Ints, npt.NDArray[np.float32]]:
    """-> the records that the memory keeps [m], and their samples in units of each value's spread [m, values]."""
    ids = model.tensors[f"{MEMORY}ids"].numpy()
    samples = model.tensors[f"{MEMORY}samples"].numpy()
    if not len(ids):
        return ids, np.zeros((0, 0), np.float32)
    mean, std = np.asarray(model.mean), np.asarray(model.std)
    if model.kind == "images":
        step = max(samples.shape[-1] // SIDE, 1)
        return ids, samples[:, :, ::step, ::step].reshape(len(ids), -1).astype(np.float32) / np.float32(255)
    return ids, np.clip((samples - mean) / std, -10, 10).astype(np.float32)


def _duplicates(model: Model, asked: Ints) -> Bools:
    """-> which records are nearly the same as one that comes before them in `asked`."""
    again = np.zeros(len(model.records), np.bool_)
    ids, values = sample_values(model)
    place = {row: k for k, row in enumerate(ids.tolist())}
    rows = np.array([row for row in asked.tolist() if row in place], np.int64)
    if len(rows) < 3:
        return again
    mine = values[[place[row] for row in rows.tolist()]]
    sets = _set_numbers(model.records, rows)
    nearest = np.full(len(rows), np.inf)
    twin = np.full(len(rows), np.inf)  # the distance to the nearest one before it with the same candidates
    squares = (mine**2).sum(1)
    for start in range(0, len(rows), BLOCK):
        block = slice(start, min(start + BLOCK, len(rows)))
        far = np.sqrt(np.maximum(squares[block, None] + squares - 2 * mine[block] @ mine.T, 0))
        own = np.arange(block.start, block.stop)
        far[own - start, own] = np.inf
        nearest[block] = far.min(1)
        alike = (sets[block, None] == sets) & (np.arange(len(rows)) < own[:, None])
        twin[block] = np.where(alike, far, np.inf).min(1)
    again[rows[twin <= NEAR * np.median(nearest) + 1e-3 * np.sqrt(mine.shape[1])]] = True
    return again


def _set_numbers(records: Records, rows: Ints) -> Ints:
    """-> for each of these records the number of its candidate set [rows]."""
    numbers: dict[bytes, int] = {}
    parts = (np.sort(records.codes[records.offsets[row] : records.offsets[row + 1]]).tobytes() for row in rows.tolist())
    return np.array([numbers.setdefault(part, len(numbers)) for part in parts], np.int64)
