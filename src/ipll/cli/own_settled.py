"""What the commands say of how surely samples settled on their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipll.cli.own_output import BANDS
from ipll.messages import counted

if TYPE_CHECKING:
    from ipll.own.model import Model

ROUNDS_BADLY = (0.05, 0.95)  # samples: neither none of them nor one


def settled_lines(model: Model, before: Model | None) -> list[str]:
    """-> how surely the samples of the last update settled, and how they were judged where a class was not known."""
    records = model.records
    rows = records.update == model.updates
    if not rows.any():  # decisions alone
        rows = records.in_memory if before is None or model.updates > before.updates else rows
        if not rows.any():
            return []
    confidence = records.confidence[rows]
    above = [int((confidence >= low).sum()) for _, low in BANDS]
    judged, how = _judged(model, rows)
    words = [name if judged else name.partition(" (")[0] for name, _ in BANDS]  # no share is promised that was not seen
    parts = [f"{n:,} {name}" for n, name in zip(np.diff(above, prepend=0).tolist(), words, strict=True)]
    lines = [f"Settled on a label for {counted(len(confidence), 'sample')}: {', '.join(parts)}.", how]
    lines += missed_lines(model)
    if before is not None and _was_judged(model, before):
        old = int(records.judged_old[rows].sum())
        lines.append(
            f"Judged before learning: {old:,} look like classes that were known, {len(confidence) - old:,} do not."
        )
    given = np.array([i for i in np.flatnonzero(rows).tolist() if records.given[i]], np.int64)
    return lines + (_given_lines(model, given) if len(given) else [])


def _judged(model: Model, rows: Any) -> tuple[bool, str]:
    """-> whether anything told how sure the labels of these rows are, and what to say of it."""
    records = model.records
    confidence = records.confidence[rows]
    if not model.config.model.folds:
        return False, "How sure it is was not checked on held-out samples: trust the order, not the numbers."
    wrong = float((1 - confidence).sum())
    count = "0 or 1" if ROUNDS_BADLY[0] <= wrong < ROUNDS_BADLY[1] else f"{wrong:,.0f}"
    share = f"{100 * wrong / max(len(confidence), 1):.1f} %"
    return True, (
        f"Expected to be wrong: {count} of them ({share}), judged by networks that had not learnt from the sample."
    )


def missed_lines(model: Model) -> list[str]:
    """-> how often candidates seem to miss the true label, where they clearly do."""
    if not model.missed:
        return []
    share = f"about {100 * model.missed:.2g} %"
    sizes = np.diff(model.records.offsets)[model.records.update == model.updates]
    what = (
        f"{share.capitalize()} of the labels seem to be wrong"
        if (sizes == 1).all()
        else (f"The candidates of {share} of the samples seem to miss the true label")
    )
    found = (
        f"{what}: networks that had not learnt from them expect another class. `ipll audit` lists such samples first, "
        "with that class as the runner-up."
    )
    told = f" With --miss-rate {model.missed:.2g}, labels may lie outside the candidates."
    return [found + told * (_miss_rate(model) is not None)]


def _given_lines(model: Model, given: Any) -> list[str]:
    """-> how the labels that came with these rows [given] agree with what was settled on, and with the candidates."""
    records, column = model.records, {name: c for c, name in enumerate(model.names)}
    labels = np.array([column.get(records.given[i], -1) for i in given.tolist()])
    right = int((records.label[given] == labels).sum())
    lines = [
        f"{len(given):,} of them came with a label, which was not learnt from: {right:,} "
        f"({100 * right / len(given):.1f} %) are what was settled on."
    ]
    k, owner = len(model.names), np.repeat(np.arange(len(records)), np.diff(records.offsets))
    outside = (labels < 0) | ~np.isin(given * k + labels, owner * k + records.codes)
    if outside.any() and not _miss_rate(model) and model.updates not in model.voted:  # with it, sets have grown
        share = float(outside.mean())
        tell = f" Say so with ipll fit --miss-rate {share:.2g}." * (_miss_rate(model) is not None and share < 1)
        lines.append(f"Labels outside their candidates in {100 * share:.1f} % of rows: the sets miss the truth.{tell}")
    return lines


def _miss_rate(model: Model) -> float | None:
    """-> how often true labels are said to be missing; None where a method has no use for that."""
    return getattr(model.config.part("disambiguation").settings, "miss_rate", None)


def _was_judged(model: Model, before: Model) -> bool:
    """-> whether a candidate of the last update is of a class that was not known, and the method looks at that."""
    if model.config.part("separation").kind == "none":
        return False
    candidates = model.records.codes[model.records.offsets[len(before.records)] :]
    known = np.append(before.known, np.zeros(len(model.names) - len(before.names), np.bool_))
    return not known[candidates].all()
