"""Eq. 4: re-allocated candidate sets, and the samples for which it leaves none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from ipll.component import Context, Pool
from ipll.families.disambiguation.pgdr import Pgdr, PgdrSettings, reallocate
from ipll.families.separation import SeparationSettings
from ipll.families.separation.prototype_distance import PrototypeDistance
from live import Live, array, as_sets, bare_context, known_prototypes

CLASSES, DIM = 7, 3
EMPTY_SET = ["old", "restore"]
# The same examples each time: features are random, and a near tie in float32 would be no failure.
UNTIMED = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def mask_of(sets: list[set[int]]) -> Tensor:
    mask = torch.zeros(len(sets), CLASSES, dtype=torch.bool)
    for i, s in enumerate(sets):
        mask[i, list(s)] = True
    return mask


def test_eq4_precedence() -> None:
    """{c*} u (Y_new n S): c* stays although it is not new, new candidates stay although they are not nearest."""
    ctx = bare_context(classes=CLASSES, dim=DIM, old=3, seen=6)
    candidates = mask_of([{0, 2, 3, 5}, {0, 2, 3, 5}, {1, 4}, {0, 1, 2}])
    old = torch.tensor([True, False, True, True])
    nearest = torch.tensor([2, 2, 1, 0])
    assert as_sets(reallocate(candidates, old, nearest, ctx.new_mask)) == [{2, 3, 5}, {3, 5}, {1, 4}, {0}]


@st.composite
def allocations(draw: st.DrawFn) -> tuple[list[set[int]], list[bool], list[int], int, int]:
    """-> sets, who is judged old, c*, old, seen. A sample without old candidates has no c* and is not judged old."""
    seen = draw(st.integers(2, CLASSES))
    old = draw(st.integers(1, seen - 1))
    sets = draw(st.lists(st.sets(st.integers(0, seen - 1), min_size=1), min_size=1, max_size=30))
    has_old = [any(j < old for j in s) for s in sets]
    judged = [draw(st.booleans()) and has for has in has_old]
    nearest = [draw(st.sampled_from(sorted(j for j in s if j < old) or [0])) for s in sets]
    return sets, judged, nearest, old, seen


@UNTIMED
@given(allocations())
def test_eq4_against_sets(drawn: tuple[list[set[int]], list[bool], list[int], int, int]) -> None:
    sets, judged, nearest, old, seen = drawn
    ctx = bare_context(classes=CLASSES, dim=DIM, old=old, seen=seen)
    result = as_sets(reallocate(mask_of(sets), torch.tensor(judged), torch.tensor(nearest), ctx.new_mask))
    new = set(range(old, seen))
    for i, s in enumerate(sets):
        assert result[i] == (({nearest[i]} | (new & s)) if judged[i] else (new & s))


def begin(
    features: Tensor,
    sets: list[set[int]],
    old: int,
    seen: int,
    *,
    empty_set: str = "old",
    unknown: tuple[int, ...] = (),
) -> tuple[Tensor, Context]:
    """-> the first sets of a task whose samples have these features, and the context they were made in.

    Old classes have prototypes, except the `unknown` ones.
    """
    ctx = bare_context(classes=CLASSES, dim=DIM, old=old, seen=seen)
    rng = np.random.default_rng(5)
    ctx.prototypes.mu[:old] = torch.from_numpy(rng.normal(size=(old, DIM)))
    ctx.prototypes.known[:old] = True
    ctx.prototypes.known[list(unknown)] = False
    ctx.separation = PrototypeDistance(SeparationSettings(metric="euclidean"))
    ctx.separation.build(ctx)
    ctx.embed = lambda samples, network=None: (features, torch.zeros(len(features), CLASSES))  # type: ignore[method-assign]
    n, candidates = len(sets), mask_of(sets)
    ctx.pool = Pool(
        ids=torch.arange(n), samples=torch.zeros(n, 1), candidates=candidates, p=torch.zeros(n, CLASSES), incoming=n,
        held_out=torch.zeros(n, dtype=torch.bool), judged_old=torch.zeros(n, dtype=torch.bool),
        certain=torch.zeros(n, dtype=torch.bool),
    )  # fmt: skip
    part = Pgdr(PgdrSettings(empty_set=empty_set))
    part.build(ctx)
    part.begin_task()
    return part.first_sets(), ctx


@UNTIMED
@given(allocations(), st.sampled_from(EMPTY_SET), st.integers(0, 1000))
def test_first_sets(drawn: tuple[list[set[int]], list[bool], list[int], int, int], empty_set: str, seed: int) -> None:
    """Whatever the features: S' is within S, keeps every new candidate and at most one old one, and is never empty."""
    sets, _, _, old, seen = drawn
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(sets), DIM))).float()
    first, ctx = begin(features, sets, old, seen, empty_set=empty_set)
    judgement = ctx.separation.judge(features, torch.zeros(len(sets), CLASSES), ctx.pool.candidates)
    measured = reference.distance_set(array(features), sets, known_prototypes(ctx.prototypes), old, "euclidean")
    for i, s in enumerate(sets):
        nearest = measured[i][1] if i in measured else None
        result = as_sets(first)[i]
        assert result == reference.reallocated(s, bool(judgement.old[i]), nearest, old, seen, empty_set)
        assert result
        assert result <= s
        new = {j for j in s if j >= old}
        assert {j for j in result if j >= old} == new
        assert len(result - new) <= 1 or (empty_set == "restore" and not new and result == s)
        np.testing.assert_allclose(ctx.pool.p[i].numpy(), reference.uniform(result, CLASSES), rtol=1e-6)  # Eq. 5
        joins = bool(judgement.old[i]) or (empty_set == "old" and not new)
        assert bool(ctx.pool.judged_old[i]) is joins


@pytest.mark.parametrize("empty_set", EMPTY_SET)
def test_live_first_sets(live: Live, empty_set: str) -> None:
    """All of it on real digits: p is uniform over the re-allocated sets, and the memory keeps the p it came with."""
    before = live.learner(learnt=1, disambiguation__empty_set=empty_set)
    learner = live.begun(disambiguation__empty_set=empty_set)
    ctx, pool = learner.ctx, learner.ctx.pool
    own = pool.candidates[: pool.incoming]
    features, logits = ctx.embed(pool.samples[: pool.incoming])
    judgement = ctx.separation.judge(features, logits, own)
    metric = ctx.separation.settings.metric
    mu = known_prototypes(ctx.prototypes)
    measured = reference.distance_set(array(features), as_sets(own), mu, ctx.old, metric)
    sizes = set()
    for i, s in enumerate(as_sets(own)):
        nearest = measured[i][1] if i in measured else None
        expected = reference.reallocated(s, bool(judgement.old[i]), nearest, ctx.old, ctx.seen, empty_set)
        sizes.add((bool(judgement.old[i]), bool(expected == s), len(expected & set(range(ctx.old)))))
        np.testing.assert_allclose(pool.p[i].numpy(), reference.uniform(expected, ctx.capacity), rtol=1e-6)
    assert {(True, False, 1), (False, False, 0)} <= sizes  # both cases of Eq. 4 took something away
    assert torch.equal(pool.p[pool.incoming :], before.memory.p)
    assert torch.equal(pool.candidates[pool.incoming :], before.memory.candidates)


def test_an_old_candidate_without_a_prototype_is_not_the_nearest() -> None:
    """No prototype, no c*: such a sample keeps its set, rather than settle on class 0 by the accident of its number."""
    first, _ = begin(torch.eye(DIM)[[0, 1, 2, 0]], [{0, 1}, {1}, {0, 2}, {0, 3}], old=3, seen=5, unknown=(0, 1))
    assert as_sets(first) == [{0, 1}, {1}, {2}, {3}]


def test_the_first_task_is_not_separated(live: Live) -> None:
    learner = live.begun(learnt=0)
    pool = learner.ctx.pool
    assert not bool(pool.judged_old.any())
    for i, s in enumerate(as_sets(pool.candidates)):
        np.testing.assert_allclose(pool.p[i].numpy(), reference.uniform(s, learner.ctx.capacity), rtol=1e-6)
