"""Models with made-up records, as large as one likes, of which an audit is made in no time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ipll.own.records import Records


def make_model(
    n: int,
    *,
    classes: int = 10,
    updates: int = 3,
    kept: int = 40,
    kind: str = "images",
    given: bool = True,
    names: Sequence[str] = (),
    ids: Sequence[str] = (),
) -> Any:
    """What an audit asks of a model. One in three samples has one candidate; a tenth of the given labels differ."""
    rng = np.random.default_rng(n)
    sizes = np.where(rng.random(n) < 1 / 3, 1, rng.integers(2, 6, n))
    offsets = np.append(0, np.cumsum(sizes))
    first = rng.integers(0, classes, n)
    codes = (np.repeat(first, sizes) + np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)) % classes
    update = np.sort(rng.integers(1, updates + 1, n))
    memory = np.sort(rng.choice(n, kept, replace=False))
    in_memory = np.zeros(n, np.bool_)
    in_memory[memory] = True
    known = [*names, *(f"class {c}" for c in range(len(names), classes))]
    truth = np.where(rng.random(n) < 0.1, (first + 1) % classes, first)
    records = Records(
        ids=[*ids, *(f"photos/{i:06d}.jpg" for i in range(len(ids), n))],
        update=update,
        offsets=offsets,
        codes=codes,
        label=first,
        confidence=np.where(sizes == 1, 1, rng.beta(5, 1, n)).astype(np.float32),
        judged_old=(update > 1) & (rng.random(n) < 0.5),
        changed_update=np.where(in_memory, np.minimum(update + 1, updates), update),
        changed_epoch=np.minimum(rng.geometric(0.4, n), 20),
        in_memory=in_memory,
        given=[known[c] for c in truth] if given else [""] * n,
        row=np.arange(2, n + 2),
        source=["birds.csv"] * n,
        runner_up=np.full(n, -1),
    )
    p = torch.zeros(kept, classes + 2)
    p[torch.arange(kept), torch.from_numpy(first[memory])] = 0.75
    p[torch.arange(kept), torch.from_numpy((first[memory] + 1) % classes)] = 0.25
    tensors = {
        "module.memory.ids": torch.from_numpy(memory),
        "module.memory.p": p,
        "module.memory.samples": torch.from_numpy(rng.integers(0, 256, (kept, 3, 32, 32), np.uint8)),
    }
    if kind == "features":
        tensors["module.memory.samples"] = torch.from_numpy(rng.random((kept, 3), np.float32))
    config = SimpleNamespace(method="pgdr", seed=0)
    return SimpleNamespace(
        records=records, names=tuple(known), tensors=tensors, kind=kind, config=config, decisions=(),
        kept_pictures=lambda: tensors["module.memory.samples"].numpy() if kind == "images" else None,
        feature_names=("x", "y", "z"), mean=(0.0,) * 3, std=(1.0,) * 3,
    )  # fmt: skip
