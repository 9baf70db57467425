"""Eq. 2: prototypes, their momentum, and the classes it says nothing about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from ipll.component import predict_within
from ipll.learner import Learner
from live import Live, array, as_sets, bare_context, known_prototypes, random_sets

CLASSES, DIM = 9, 6


def check(mu: Tensor, known: Tensor, expected: reference.Prototypes) -> None:
    assert set(known.nonzero()[:, 0].tolist()) == set(expected)
    for c, mean in expected.items():
        np.testing.assert_allclose(mu[c].numpy(), mean, rtol=1e-4, atol=1e-5)


def test_predictions_are_made_within_the_candidate_set() -> None:
    rng = np.random.default_rng(0)
    logits, sets = torch.from_numpy(rng.normal(size=(200, CLASSES))), random_sets(rng, 200, CLASSES)
    expected = [reference.argmax_within(scores, s) for scores, s in zip(array(logits), as_sets(sets), strict=True)]
    assert predict_within(logits, sets).tolist() == expected
    assert expected != logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_eq2_over_three_tasks(gamma: float) -> None:
    """Random features; classes are withheld from the predictions so that each case of Eq. 2 occurs.

    Task 1 (classes 0 to 3): class 3 has no predicted member, so it takes the p-weighted mean. Task 2 (to 6): class 1,
    old, has no member and keeps its prototype; class 5 is new without a member; class 6 has neither member nor weight.
    Task 3 (to 8): class 5 has members and moves, class 6 has its first ones.
    """
    ctx = bare_context(classes=CLASSES, dim=DIM, old=0, seen=4, gamma=gamma)
    rng = np.random.default_rng(1)
    expected: reference.Prototypes = {}
    for seen, unpredicted, weightless in [(4, {3}, set()), (7, {1, 5}, {6}), (9, set(), set())]:
        features = torch.from_numpy(rng.normal(size=(80, DIM)) + rng.integers(3, size=(80, 1))).float()
        sets = torch.zeros(80, CLASSES, dtype=torch.bool)
        sets[:, :seen] = random_sets(rng, 80, seen, q=0.6)
        sets[:, 0] = True  # so that leaving a class out leaves no set empty
        sets[:, list(weightless)] = False
        logits = torch.from_numpy(rng.normal(size=(80, CLASSES))).float()
        logits[:, list(unpredicted)] = -100.0
        p = torch.from_numpy(rng.random((80, CLASSES))).float() * sets
        p = p / p.sum(dim=1, keepdim=True)
        before = dict(expected)
        expected = reference.updated_prototypes(
            before, array(features), array(logits), as_sets(sets), array(p), seen, gamma
        )
        ctx.prototypes.update(features, predict_within(logits, sets), p)
        check(ctx.prototypes.mu, ctx.prototypes.known, expected)
        for c in unpredicted & before.keys():
            np.testing.assert_array_equal(expected[c], before[c])
        assert not weightless & expected.keys()
    assert set(expected) == set(range(CLASSES))


@pytest.mark.parametrize("weight", [1.0, 1e-30, 2.0**-130])
def test_the_weighted_mean_holds_for_weights_however_small(weight: float) -> None:
    """Momentum makes weights small: 0.6 ** 195, of 200 epochs at beta = 0.6, is below the normal numbers of float32."""
    ctx = bare_context(classes=2, dim=DIM, old=0, seen=2)
    features = torch.from_numpy(np.random.default_rng(2).normal(size=(4, DIM))).float()
    p = torch.tensor([[1.0, weight]] * 4)
    expected = reference.updated_prototypes(
        {}, array(features), array(torch.tensor([[1.0, 0.0]] * 4)), [{0, 1}] * 4, array(p), 2, 0.5
    )
    ctx.prototypes.update(features, torch.zeros(4, dtype=torch.int64), p)
    check(ctx.prototypes.mu, ctx.prototypes.known, expected)


def naive_update(learner: Learner, before: reference.Prototypes) -> reference.Prototypes:
    """Eq. 2 on D_t u M with the network as it is: plain views, evaluation mode, the original candidate sets."""
    ctx, pool = learner.ctx, learner.ctx.pool
    network = learner.network.eval()
    with torch.no_grad():
        out = network(ctx.views.plain(pool.samples[:]))
    gamma = learner.config.prototypes.gamma
    return reference.updated_prototypes(
        before, array(out.features), array(out.logits), as_sets(pool.candidates), array(pool.p), ctx.seen, gamma
    )


def test_prototypes_at_the_end_of_a_task_are_over_the_task_and_the_memory(live: Live) -> None:
    learner = live.learner()
    for t in range(2):
        before, kept = known_prototypes(learner.ctx.prototypes), len(learner.memory.ids)
        for _ in live.steps(learner, t):
            assert known_prototypes(learner.ctx.prototypes).keys() == before.keys()  # not during training
        assert len(learner.ctx.pool) - learner.ctx.pool.incoming == kept
        check(learner.ctx.prototypes.mu, learner.ctx.prototypes.known, naive_update(learner, before))
    assert kept > 0


def test_prototypes_may_be_updated_each_epoch(live: Live) -> None:
    learner = live.learner(learnt=1, prototypes__update="epoch")
    before = known_prototypes(learner.ctx.prototypes)
    for position in learner.fit(live.task(learner, 1)):
        if position.step == 0:
            before = naive_update(learner, before)
            check(learner.ctx.prototypes.mu, learner.ctx.prototypes.known, before)
    check(learner.ctx.prototypes.mu, learner.ctx.prototypes.known, before)  # and not once more at the task's end
