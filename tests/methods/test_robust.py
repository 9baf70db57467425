"""PGDR that expects misses: what a label from outside the set leads to, and that nothing changes without it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ipll.config import resolve
from ipll.data.stream import Stream
from ipll.errors import ConfigError
from ipll.families.disambiguation.robust import HeldOut, Misses
from ipll.learner import Learner, Position
from ipll.testing import check_method
from live import Live

MISSING: dict[str, Any] = {
    "stream__miss": 0.15, "stream__q": 0.2, "train__epochs": 8, "train__steps_per_epoch": 0, "memory__size": 120,
    "disambiguation__miss_rate": 0.25,
}  # fmt: skip


def original_sets(live: Live, learner: Learner) -> tuple[Tensor, Tensor]:
    """-> of the pool's samples, the sets with which they came [n, classes], and their true classes [n]."""
    stream = Stream.build(live.source, learner.config.stream, learner.config.seed)
    ids = learner.ctx.pool.ids.numpy()
    truth = stream.arrival[live.source.train_labels][ids]
    return torch.from_numpy(stream.candidates[ids][:, stream.class_order]), torch.from_numpy(truth)


def train(live: Live, learner: Learner, stop: Position | None = None, *, voted: bool = False) -> Learner:
    """Learns the first task, with random votes for the candidates or without; at `stop`, a fresh learner takes over."""
    task = live.task(learner, 0)
    if voted:
        counts = np.random.default_rng(0).integers(1, 4, task.candidates.shape) * task.candidates
        task = replace(task, votes=counts.astype(np.float32))
    for position in learner.fit(task):
        if position == stop:
            tensors = {name: tensor.clone() for name, tensor in learner.tensors().items()}
            fresh = live.learner(learner.config.method, **MISSING)
            fresh.restore(tensors, task, within=True)
            for _ in fresh.fit(task, position):
                pass
            return fresh
    return learner


def test_no_weight_within_the_set_and_no_class_with_half_outside() -> None:
    """All that is left of such a sample is its set."""
    sets = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
    p = torch.tensor([[0, 0, 0.3, 0.4, 0.3], [0, 0, 0.1, 0.8, 0.1], [0.3, 0.1, 0.4, 0.2, 0.0]])
    pool = SimpleNamespace(p=p, candidates=sets, certain=torch.zeros(3, dtype=torch.bool), votes=None)
    ctx = SimpleNamespace(pool=pool, capacity=5, seen=5, device=torch.device("cpu"), parts=())
    HeldOut(ctx, 0.1).end_task()  # type: ignore[arg-type]
    expected = torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 0, 1, 0], [0.75, 0.25, 0, 0, 0]])
    torch.testing.assert_close(pool.p, expected)


def test_labels_outside_the_sets_are_found_and_count(live: Live) -> None:
    """The samples are in the memory, and so in the prototypes, as members of the class that was found for them."""
    learner = train(live, live.learner("pgdr/robust", **MISSING))
    ctx, memory = learner.ctx, learner.memory
    pool = ctx.pool
    original, truth = original_sets(live, learner)
    missed = ~original[torch.arange(len(pool)), truth]
    label = pool.p.argmax(dim=1)
    outside = ~original[torch.arange(len(pool)), label]
    right = (label == truth) & outside
    assert right.sum() > 0.4 * missed.sum()
    assert (outside & ~missed).sum() <= 0.01 * len(pool)
    assert not pool.p[~pool.candidates].any()
    assert not (original & ~pool.candidates).any()
    assert (ctx.pool_predictions() == truth)[right].float().mean() > 0.9  # what prototypes and memory go by
    kept = {int(i): row for row, i in enumerate(memory.ids)}
    found = [(row, kept[int(pool.ids[row])]) for row in right.nonzero()[:, 0].tolist() if int(pool.ids[row]) in kept]
    assert len(found) > 5
    assert all(torch.equal(memory.candidates[to], pool.candidates[row]) for row, to in found)
    assert np.mean([bool(memory.classes[to] == truth[row]) for row, to in found]) > 0.9
    misses = learner.ctx.parts[0].misses
    assert isinstance(misses, Misses)
    assert len(misses.evidence) == 0  # nothing but the memory is kept of a task


@pytest.mark.parametrize(
    ("stop", "voted"),
    [(Position(0, 0, 5), False), (Position(0, 0, 6, 3), False), (Position(0, 0, 8), False), (Position(0, 0, 6), True)],
    ids=str,
)
def test_resumed_to_the_bit(live: Live, stop: Position, voted: bool) -> None:
    """Stopped after an epoch in which sets grew, within the next, and between training and the task's end."""
    whole, resumed = (train(live, live.learner("pgdr/robust", **MISSING), at, voted=voted) for at in (None, stop))
    assert (whole.ctx.pool.candidates & ~original_sets(live, whole)[0]).any()
    assert torch.equal(whole.ctx.pool.candidates, resumed.ctx.pool.candidates)
    left, right = whole.tensors(), resumed.tensors()
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_looking_changes_nothing_until_something_is_found(live: Live) -> None:
    """With hardly any misses expected, none is found, and training is plain PGDR's to the bit."""
    plain = live.learner("pgdr", learnt=2)
    watched = live.learner("pgdr", learnt=2, disambiguation__miss_rate=1e-12)
    left, right = plain.tensors(), watched.tensors()
    assert {name.rpartition(".")[2] for name in right.keys() - left.keys()} == {"evidence", "found"}
    assert left.keys() <= right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_off_by_default() -> None:
    assert resolve("digits", "pgdr") == resolve("digits", "pgdr", overrides={"disambiguation.miss_rate": 0.0})
    for method in ("pgdr", "pico+pgdr", "papi+pgdr"):
        rate = [resolve("cifar100", name).parts[0].settings.miss_rate for name in (method, f"{method}/robust")]
        assert rate == [0.0, 0.1]


@pytest.mark.parametrize("rate", [-0.1, 0.5, 1.0])
def test_a_bad_rate_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"disambiguation\.miss_rate must be in \[0, 0\.5\)"):
        resolve("digits", "pgdr", overrides={"disambiguation.miss_rate": rate})


def test_contract_where_sets_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The battery's own runs are too short for any set to grow."""
    grown: list[int] = []
    end_epoch = Misses.end_epoch

    def counting(self: Misses) -> None:
        end_epoch(self)
        grown.append(int(self.found.sum()))

    monkeypatch.setattr(Misses, "end_epoch", counting)
    check_method("pgdr/robust", **{"train.epochs": 5, "stream.miss": 0.2, "disambiguation.miss_rate": 0.3})
    assert sum(grown) > 20


def test_a_network_beside_is_not_asked(live: Live) -> None:
    """ANCL trains an auxiliary network first, with targets of its own: it finds nothing."""
    composed = {"disambiguation__kind": "pgdr", "separation__kind": "prototype-distance"}
    learner = live.learner("proden+ancl", learnt=1, disambiguation__miss_rate=0.1, **composed)
    watched = []
    for position in learner.fit(live.task(learner, 1)):
        misses = learner.ctx.phase.parts[0].misses
        assert isinstance(misses, Misses)
        watched.append((position.phase, misses.evidence.unique().numel() > 1))
    assert set(watched) == {(0, False), (1, True)}
