"""The ablation 'w PP': pseudo-labels by the nearest prototype, which moves every epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from ipll.component import Batch
from ipll.families.disambiguation.pgdr import MomentumSettings, PrototypePrediction
from ipll.networks.network import Output
from live import Live, array, as_sets, bare_context, known_prototypes, random_sets

METHODS = ["pgdr/pp", "pico+pgdr/pp", "papi+pgdr/pp"]


def prototype_prediction(dim: int, known: list[int], scale: float) -> PrototypePrediction:
    ctx = bare_context(classes=10, dim=dim, old=4, seen=7)
    made = PrototypePrediction(MomentumSettings(beta_start=0.6, beta_end=0.6))
    made.build(ctx)
    made.begin_epoch()
    rng = np.random.default_rng(0)
    for c in known:
        ctx.prototypes.mu[c] = torch.from_numpy(rng.normal(scale=scale, size=dim))
        ctx.prototypes.known[c] = True
    return made


def nearest_candidate(feature: np.ndarray, s: set[int], mu: reference.Prototypes) -> int | None:
    """The candidate with the nearest prototype; None where no candidate has one."""
    with_one = {c: mu[c] for c in s if c in mu}
    return reference.classify(feature, with_one) if with_one else None


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e18])
@pytest.mark.parametrize("known", [[0, 1, 2, 3, 4, 5, 6], [0, 1, 3], [5], [2, 6]])
def test_the_nearest_prototype_among_the_candidates(known: list[int], scale: float) -> None:
    """However far it is: a candidate without a prototype never wins over one with."""
    made = prototype_prediction(5, known, scale)
    rng = np.random.default_rng(1)
    sets = torch.zeros(80, 10, dtype=torch.bool)
    sets[:, :7] = random_sets(rng, 80, 7)
    x = torch.from_numpy(rng.normal(size=(80, 5))).float()
    p = torch.from_numpy(rng.random((80, 10))).float() * sets
    p /= p.sum(dim=1, keepdim=True)
    linear = torch.zeros(80, 10)
    linear[:, 0] = 50.0  # the head has no say
    batch = Batch(torch.arange(80), sets, p, torch.zeros(80).bool(), {})
    use, store = made.targets(p, {"weak": Output(x, linear, linear, x)}, batch)
    assert torch.equal(use, store)
    mu = known_prototypes(made.ctx.prototypes)
    for i, s in enumerate(as_sets(sets)):
        expected = nearest_candidate(array(x[i]), s, mu)
        if expected is None:  # nothing to go by: the target stays
            assert torch.equal(store[i], p[i])
            continue
        gained = store[i] - 0.6 * p[i]
        np.testing.assert_allclose(gained.numpy(), [0.4 if j == expected else 0.0 for j in range(10)], atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_live_targets_and_prototypes(live: Live, method: str) -> None:
    """Targets go by the prototypes of the last epoch; prototypes move at each epoch's end."""
    learner = live.learner(method, learnt=1, train__epochs=3)
    mu = known_prototypes(learner.ctx.prototypes)
    assert set(mu) == set(range(4))
    epoch, moved, by_prototype = 0, 0, 0
    for step in live.steps(learner, 1):
        if step.epoch != epoch:
            epoch = step.epoch
            now = known_prototypes(learner.ctx.prototypes)
            assert set(now) == set(range(7))  # new classes have theirs after the first epoch
            moved += all(not np.allclose(mu[c], now[c]) for c in mu)
            mu = now
        assert known_prototypes(learner.ctx.prototypes).keys() == mu.keys()
        beta = reference.beta_at(epoch, 3, 0.8, 0.6)
        sets, features = as_sets(step.batch.candidates), array(step.out["weak"].features)
        stored = array(learner.ctx.pool.p[step.batch.rows])
        for i, s in enumerate(sets):
            c = nearest_candidate(features[i], s, mu)
            if c is not None:
                by_prototype += 1
                expected = beta * array(step.p[i]) + (1 - beta) * np.eye(10)[c]
                np.testing.assert_allclose(stored[i], expected, atol=1e-5)
    assert moved == 2
    assert by_prototype > 100
