"""What stands beside a sample that somebody is asked about: for its candidates, the nearest settled sample of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipll.engine.state import MEMORY
from ipll.own.audit.order import sample_values
from ipll.own.records import Ints

if TYPE_CHECKING:
    from ipll.own.model import Model

ASKED = {"features": 1_000, "images": 300}  # samples that have something beside them, the first to be asked about
CLASSES = 3  # candidates of which an example is shown
FEATURES = 8  # of a sample, those by which its examples differ most
SETTLED = 0.95  # as sure is an example
POOL = 2_000  # examples of a class that are looked through
DIGITS = 4  # significant ones


class Beside(NamedTuple):
    """Of one sample."""

    examples: list[tuple[int, int]]  # (class, record)
    features: list[int]  # which are shown
    values: list[list[float]]  # of these: the sample's own, then those of each example


def beside(model: Model, asked: Ints) -> dict[int, Beside]:
    """-> by record; for the first of `asked` whose samples the memory keeps."""
    records, (ids, values) = model.records, sample_values(model)
    place = {row: k for k, row in enumerate(ids.tolist())}
    rows = [row for row in asked[: ASKED[model.kind]].tolist() if row in place]
    wanted = {row: _candidates(model, row) for row in rows}
    sure = ids[records.confidence[ids] >= SETTLED] if len(ids) else ids
    nearest: dict[tuple[int, int], int] = {}
    for c in sorted({c for classes in wanted.values() for c in classes}):
        pool = sure[records.label[sure] == c][:POOL]
        own = [row for row, classes in wanted.items() if c in classes]
        if len(pool):
            here, there = values[[place[row] for row in own]], values[[place[row] for row in pool.tolist()]]
            far = (here**2).sum(1)[:, None] + (there**2).sum(1) - 2 * here @ there.T
            far[np.array(own)[:, None] == pool] = np.inf
            for row, k in zip(own, far.argmin(1).tolist(), strict=True):
                if int(pool[k]) != row:
                    nearest[row, c] = int(pool[k])
    raw = model.tensors[f"{MEMORY}samples"].numpy()
    found = {}
    for row, classes in wanted.items():
        examples = [(c, nearest[row, c]) for c in classes if (row, c) in nearest]
        shown: list[int] = []
        table: list[list[float]] = []
        if model.kind == "features":
            together = values[[place[one] for one in (row, *(example for _, example in examples))]]
            differ = (together[1:] if len(examples) > 1 else together).std(0)
            shown = sorted(np.argsort(-differ, kind="stable")[:FEATURES].tolist())
            table = [
                [float(f"{v:.{DIGITS}g}") for v in raw[place[one]][shown].tolist()]
                for one in (row, *(example for _, example in examples))
            ]
        if examples or table:
            found[row] = Beside(examples, shown, table)
    return found


def _candidates(model: Model, row: int) -> list[int]:
    """-> the first few of the class settled on, the one that comes next, and the other candidates."""
    records = model.records
    codes = records.codes[records.offsets[row] : records.offsets[row + 1]].tolist()
    first = [c for c in (int(records.label[row]), int(records.runner_up[row])) if c >= 0]
    return list(dict.fromkeys([*first, *codes]))[:CLASSES]
