"""What decisions do: to samples that come, to records, and to the samples of a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ipll.data.stream import Ints, Task
from ipll.engine.state import MEMORY
from ipll.errors import DataError
from ipll.own.decisions import Decision, Decisions, decided_sets, logged, resolve
from ipll.own.reading.images import Images
from ipll.own.reading.samples import Samples
from ipll.own.records import Records


def settle(
    records: Records, before: tuple[Decision, ...], samples: Samples, names: tuple[str, ...], update: int,
    given: Decisions | None,
) -> tuple[tuple[Decision, ...], Samples]:  # fmt: skip
    """-> all decisions, and the samples with the sets of those that are on them; rows count on from the records."""
    if given is None:
        return before, samples
    n, more = len(records), []
    found = resolve(given, [*records.ids, *records.ids_of(samples, update)], names)
    for (row, name), who, when in zip(found, given.who, given.when, strict=True):
        if row < n:
            codes = records.codes[records.offsets[row] : records.offsets[row + 1]]
            was, candidates = names[records.label[row]], tuple(names[c] for c in codes.tolist())
        else:
            was, candidates = "", tuple(samples.names[c] for c in np.flatnonzero(samples.candidates[row - n]))
        more.append(Decision(row, name, who, when, was, candidates))
    said = logged(before, more)
    sets = {row - n: [names[c] for c in classes] for row, classes in decided_sets(said, names).items() if row >= n}
    return said, decided_samples(samples, sets)


def decided_samples(samples: Samples, sets: Mapping[int, list[str]]) -> Samples:
    """-> the samples with the sets that were decided, by position; those that are of no class stay as they are."""
    candidates, votes = samples.candidates.copy(), samples.votes  # people's mistakes stay known
    column = {name: c for c, name in enumerate(samples.names)}
    new = [name for name in dict.fromkeys(n for names in sets.values() for n in names) if name not in column]
    column |= {name: len(samples.names) + k for k, name in enumerate(new)}
    candidates = np.pad(candidates, ((0, 0), (0, len(new))))
    votes = None if votes is None else np.pad(votes, ((0, 0), (0, len(new))))
    for row, names in sets.items():
        if names:
            candidates[row] = False
            candidates[row, [column[name] for name in names]] = True
    return replace(samples, names=(*samples.names, *new), candidates=candidates, votes=votes)


def impose(
    records: Records, tensors: Mapping[str, Tensor], sets: Mapping[int, list[int]]
) -> tuple[Records, dict[str, Tensor]]:
    """-> records and the learner's tensors in which decided samples have the sets that were decided.

    A sample that is of no class leaves the memory. What is not in the memory changes its record alone.
    """
    sets = {row: classes for row, classes in sets.items() if row < len(records)}
    return _imposed_records(records, sets), _imposed_memory(tensors, sets)


def _imposed_records(records: Records, sets: Mapping[int, list[int]]) -> Records:
    label, confidence, in_memory = records.label.copy(), records.confidence.copy(), records.in_memory.copy()
    named = {row: classes for row, classes in sets.items() if classes}
    for row, classes in sets.items():
        if not classes:
            confidence[row], in_memory[row] = 0, False
            label[row] = label[row] if label[row] >= 0 else records.codes[records.offsets[row]]
        elif len(classes) == 1:
            label[row], confidence[row] = classes[0], 1
        elif label[row] not in classes:
            label[row], confidence[row] = classes[0], 1 / len(classes)
        elif not in_memory[row]:
            confidence[row] = max(1 / len(classes), min(float(confidence[row]), 1 - 1e-3))
    sizes = np.diff(records.offsets)
    keep = np.ones(len(records), np.bool_)
    keep[list(named)] = False
    sizes[list(named)] = [len(classes) for classes in named.values()]
    offsets = np.append(0, np.cumsum(sizes))
    codes, fresh = np.zeros(int(offsets[-1]), np.int64), np.repeat(~keep, sizes)
    codes[~fresh] = records.codes[np.repeat(keep, np.diff(records.offsets))]
    codes[fresh] = [c for row in sorted(named) for c in named[row]]
    return replace(records, label=label, confidence=confidence, in_memory=in_memory, offsets=offsets, codes=codes)


def _imposed_memory(tensors: Mapping[str, Tensor], sets: Mapping[int, list[int]]) -> dict[str, Tensor]:
    tensors = dict(tensors)
    ids = tensors.get(f"{MEMORY}ids")
    if ids is None or not len(ids) or not sets:
        return tensors
    candidates, p, classes = (tensors[f"{MEMORY}{name}"].clone() for name in ("candidates", "p", "classes"))
    keep = torch.ones(len(ids), dtype=torch.bool)
    for place, row in enumerate(ids.tolist()):
        chosen = sets.get(row)
        if chosen is None:
            continue
        if not chosen:
            keep[place] = False
            continue
        candidates[place] = False
        candidates[place, chosen] = True
        weights = p[place] * candidates[place]
        p[place] = weights / weights.sum() if weights.sum() > 0 else candidates[place] / len(chosen)
        classes[place] = int(p[place].argmax())
    tensors |= {f"{MEMORY}candidates": candidates, f"{MEMORY}p": p, f"{MEMORY}classes": classes}
    if not bool(keep.all()):
        own = [n for n, t in tensors.items() if n.startswith(MEMORY) and t.ndim and len(t) == len(ids)]
        tensors |= {name: tensors[name][keep] for name in own}
    return tensors


def no_samples(kind: str, shape: tuple[int, ...], feature_names: tuple[str, ...]) -> Samples:
    """-> a batch without samples, of a model's shape: what goes on learning is the memory."""
    none = Samples.bare("decisions", [], np.zeros(0, np.int64), "decision")
    if kind == "images":
        return replace(none, images=Images(np.zeros((0, *shape), np.uint8), shape[-1], shape[0]))
    return replace(none, features=np.zeros((0, *shape), np.float32), feature_names=feature_names)


def check_any_left(samples: Samples, learnt: int, before: Records) -> None:
    """A DataError where people decided that all samples are none of their classes, and nothing was learnt before."""
    if len(samples) and not learnt and not before.in_memory.any():
        raise DataError(
            f"{samples.source}: all its samples were decided to be of none of their classes, so there is nothing to "
            "learn from. Give samples of the classes, or other decisions."
        )


def keeps_all(records: Records, decisions: Sequence[Decision]) -> bool:
    """Are all samples in the memory, but those that are none of their classes?"""
    named = {one.row for one in decisions if one.name is not None}
    out = {one.row for one in decisions} - named
    return bool(np.array_equal(np.flatnonzero(~records.in_memory), sorted(out)))


def all_again(tensors: Mapping[str, Tensor], seen: int, certain: Ints | None) -> Task:
    """-> what the memory keeps, as if all of it came now. What was settled before holds nothing back: a network that
    has memorised labels would not let go of them, and is no better for having learnt twice."""
    ids, samples, candidates = (tensors[f"{MEMORY}{name}"].numpy() for name in ("ids", "samples", "candidates"))
    order, votes = np.argsort(ids), tensors.get(f"{MEMORY}votes")
    return Task(
        index=0, ids=ids[order], samples=samples[order], candidates=candidates[order][:, :seen], old=0, seen=seen,
        known=np.zeros(seen, np.bool_), certain=certain,
        votes=votes.numpy()[order][:, :seen] if votes is not None and len(votes) else None,
    )  # fmt: skip
