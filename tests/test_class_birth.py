"""Classes that are born as false candidates: which rows are made when, and what counts as old."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import uniform_over
from ipll.data.sources import load_source
from ipll.data.stream import Task
from ipll.engine.state import part_of
from ipll.families.disambiguation import by_votes
from ipll.families.disambiguation.terial import Terial
from ipll.families.memory import quotas
from ipll.families.retention.er_ace import ErAce
from ipll.learner import Learner
from ipll.prototypes import Prototypes, PrototypeSettings
from live import Live, bare_context


@pytest.fixture(scope="module")
def live() -> Live:
    return Live(load_source("digits"))


EVERY_PART = [
    *("pgdr", "pgdr/pp", "pgdr/conf-separation", "pgdr/entropy-separation", "pgdr/random-memory", "pico+pgdr"),
    *("papi+pgdr", "proden", "pico+icarl", "papi+bic", "terial+ancl", "proden+wa", "proden+er-ace", "proden+c-flat"),
]


def late_class(live: Live, learner: Learner, known: list[bool]) -> Task:
    """-> the second task, in which these of its seven classes count as old."""
    task = live.task(learner, 1)
    return replace(task, old=sum(known), known=np.array(known))


MIDDLE_IS_NEW = [True, True, False, True, False, False, False]  # class 2 was seen in the first task, as a candidate


def fit(learner: Learner, task: Task) -> None:
    for _ in learner.fit(task):
        pass


def test_masks_follow_the_known_classes(live: Live) -> None:
    learner = live.learner(learnt=1)
    learner._begin_task(late_class(live, learner, MIDDLE_IS_NEW))
    ctx = learner.ctx
    assert (ctx.old, ctx.seen) == (3, 7)
    assert ctx.old_mask.tolist() == [*MIDDLE_IS_NEW, False, False, False]
    assert ctx.new_mask.tolist() == [*(not old for old in MIDDLE_IS_NEW), False, False, False]


def test_a_prefix_is_the_default(live: Live) -> None:
    plain, said = live.learner(learnt=1), live.learner(learnt=1)
    task = live.task(plain, 1)
    fit(plain, task)
    fit(said, replace(task, known=np.arange(task.seen) < task.old))
    for name, tensor in plain.tensors().items():
        assert torch.equal(tensor, said.tensors()[name]), name


@pytest.mark.parametrize("method", ["pgdr", "terial"])
def test_a_class_that_is_still_new_keeps_what_it_has_learnt(live: Live, method: str) -> None:
    """Its row of the head, and TERIAL's label, are made once: when it is first seen."""
    learner = live.learner(method, learnt=1)
    head, terial = learner.network.head, part_of(learner.ctx.parts, Terial)
    before = [head.weight.detach().clone(), head.bias.detach().clone()]
    before += [terial.labels.detach().clone()] if terial else []
    learner._begin_task(late_class(live, learner, MIDDLE_IS_NEW))
    after = [head.weight, head.bias, *([terial.labels] if terial else [])]
    assert learner.ctx.arriving == [4, 5, 6]
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:4], other[:4])
        assert not one[4:].any()
        assert other[4:7].flatten(start_dim=1).any(dim=1).all() if other.ndim > 1 else other[4:7].all()


@pytest.mark.parametrize("method", EVERY_PART)
def test_every_part_learns_with_any_old_classes(live: Live, method: str) -> None:
    """No part takes the old classes for the first ones, or for fewer than all."""
    for known in (MIDDLE_IS_NEW, [True] * 7, [False] * 7):
        learner = live.learner(method, learnt=1)
        task = late_class(live, learner, known)
        rows = slice(0, 96)
        task = replace(task, ids=task.ids[rows], samples=task.samples[rows], candidates=task.candidates[rows])
        before = learner.network.head.weight.detach().clone()
        fit(learner, task)
        assert not torch.equal(learner.network.head.weight, before), "nothing was learnt"
        state = learner.state_dict().values()
        assert all(tensor.isfinite().all() for tensor in state if tensor.is_floating_point())
        assert int(learner.predict(torch.from_numpy(live.source.test_samples)).classes.max()) < 7


@pytest.mark.parametrize("method", ["proden+wa", "proden+bic", "proden+ancl"])
def test_a_task_without_new_classes_is_learnt_by_cross_entropy_too(live: Live, method: str) -> None:
    """Their weight of the cross-entropy is the share of new classes, and would be zero."""
    learner = live.learner(method, learnt=1)
    learner._begin_task(late_class(live, learner, [True] * 7))
    weights = [part.weights() for part in learner.ctx.parts]
    assert np.prod([own.get("ce", 1.0) for own in weights]) == pytest.approx(1 / 7)


def test_er_ace_has_no_warm_up_without_new_classes(live: Live) -> None:
    """In its warm-up, incoming samples would compete among new classes only: here, among none."""
    learner = live.learner("proden+er-ace", learnt=1)
    part = part_of(learner.ctx.parts, ErAce)
    assert part is not None
    learner.ctx.epoch = 0
    for known, warming_up in ((MIDDLE_IS_NEW, True), ([True] * 7, False)):
        learner._begin_task(late_class(live, learner, known))
        assert part.stage() == warming_up


def test_only_known_classes_take_samples_in_the_separation(live: Live) -> None:
    """PGDR keeps every new candidate, and at most one old one."""
    learner = live.learner(learnt=1)
    learner._begin_task(late_class(live, learner, MIDDLE_IS_NEW))
    pool, new = learner.ctx.pool, learner.ctx.new_mask
    first, sets = pool.p[: pool.incoming] > 0, pool.candidates[: pool.incoming]
    assert torch.equal(first & new, sets & new)
    assert (first & ~new).sum(dim=1).max() == 1
    assert (first[:, 2] & (first & learner.ctx.old_mask).any(dim=1)).any()


# Prototypes of classes that nothing settled on


def prototypes(*, fallback: bool) -> Prototypes:
    part = Prototypes(PrototypeSettings(fallback=fallback))
    part.build(bare_context(classes=4, dim=2, old=0, seen=3))
    return part


FEATURES = torch.tensor([[0.0, 1.0], [2.0, 3.0], [5.0, 5.0]])
P = torch.tensor([[0.7, 0.0, 0.3, 0.0], [0.8, 0.0, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0]])


@pytest.mark.parametrize("fallback", [True, False])
def test_a_false_candidate_has_a_prototype_only_with_the_fallback(fallback: bool) -> None:
    part = prototypes(fallback=fallback)
    part.update(FEATURES, torch.tensor([0, 0, 1]), P)
    assert part.known.tolist() == [True, True, fallback, False]
    assert part.mu[2].any() == fallback
    assert part.distances(FEATURES)[:, 2].isfinite().all() == fallback
    assert part.mu[:2].tolist() == [[1.0, 2.0], [5.0, 5.0]]


def test_without_the_fallback_a_false_candidate_is_never_chosen(live: Live) -> None:
    learner = live.learner(learnt=1, prototypes__fallback=False)
    known = learner.ctx.prototypes.known
    fit(learner, replace(live.task(learner, 1), known=known[:7].numpy(), old=int(known.sum())))
    assert learner.ctx.prototypes.known.sum() <= 7
    predicted = learner.predict(torch.from_numpy(live.source.test_samples)).classes
    assert learner.ctx.prototypes.known[predicted].all()


# Shares: where soft targets start


def test_shares_are_restricted_and_renormalised() -> None:
    sets = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 1, 1]]).bool()
    shares = torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]])
    expected = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert torch.allclose(by_votes(sets, shares), expected)


@pytest.mark.parametrize("method", ["pgdr", "proden", "pico", "papi", "terial"])
@pytest.mark.parametrize("learnt", [0, 1])
def test_targets_start_as_the_shares(live: Live, method: str, learnt: int) -> None:
    plain, given = live.learner(method, learnt=learnt), live.learner(method, learnt=learnt)
    task = live.task(plain, learnt)
    weights = np.random.default_rng(0).random(task.candidates.shape, np.float32) * task.candidates
    plain._begin_task(task)
    given._begin_task(replace(task, votes=weights))
    n, seen = task.candidates.shape
    first = plain.ctx.pool.p[:n, :seen] > 0
    expected: Tensor = F.normalize(torch.from_numpy(weights) * first, p=1, dim=1)
    assert torch.allclose(given.ctx.pool.p[:n, :seen], expected, atol=1e-6)
    assert torch.equal(plain.ctx.pool.p[n:], given.ctx.pool.p[n:])
    assert torch.allclose(plain.ctx.pool.p[:n], uniform_over(plain.ctx.pool.p[:n] > 0))


# A memory with fewer places than classes


def test_places_go_around_all_classes() -> None:
    kept = [quotas(torch.full((5,), 9), 2, 5, task).nonzero()[:, 0].tolist() for task in range(5)]
    assert kept == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_classes_without_samples_are_passed_over() -> None:
    assert quotas(torch.tensor([4, 4, 0, 0, 4]), 2, 5, task=1).tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("task", range(4))
def test_a_memory_with_room_for_every_class_does_not_rotate(task: int) -> None:
    available = torch.tensor([9, 2, 7, 0, 5])
    for size in (5, 8, 23):
        assert torch.equal(quotas(available, size, 5, task), quotas(available, size, 5))


@pytest.mark.parametrize("method", ["pgdr", "pgdr/random-memory", "proden+icarl"])
def test_every_class_has_its_turn_in_a_small_memory(live: Live, method: str) -> None:
    learner = live.learner(method, learnt=1, memory__size=3)
    first, kept = set(learner.memory.classes.tolist()), set()
    for index in range(1, 5):
        fit(learner, replace(live.task(learner, 1), index=index))
        assert len(learner.memory.ids) == 3
        kept |= set(learner.memory.classes.tolist())
    assert len(first) == 3
    assert len(kept) > 3
