"""Separation by confidence and by entropy: the statistics against loops, and where they are used."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from ipll.families.separation import Separation, SeparationSettings
from ipll.families.separation.mixture import lower_component
from ipll.families.separation.model_output import Confidence, Entropy
from live import Live, array, as_sets, bare_context, random_sets

OLD, SEEN, CLASSES, DIM = 4, 7, 10, 5


def naive_confidence(scores: np.ndarray, s: set[int], old: int) -> float:
    """1 - the largest probability, in the softmax over old classes, of an old candidate."""
    f = reference.softmax(scores[:old])
    return 1 - max([f[j] for j in s if j < old], default=0.0)


def naive_entropy(scores: np.ndarray, s: set[int], old: int) -> float:
    """Of the softmax over old classes, whatever the candidates."""
    return -sum(f * math.log(f) for f in reference.softmax(scores[:old]) if f > 0)


NAIVE = {"confidence": naive_confidence, "entropy": naive_entropy}
PARTS = {"confidence": Confidence, "entropy": Entropy}


def separation(kind: str, alpha: float = 0.8) -> Separation:
    made = PARTS[kind](SeparationSettings(alpha=alpha))
    made.build(bare_context(classes=CLASSES, dim=DIM, old=OLD, seen=SEEN))
    return made


def problem(scale: float, n: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """-> features, logits, candidate sets; a third of the samples look old to the network."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(scale=scale, size=(n, CLASSES))).float()
    logits[range(n // 3), rng.integers(OLD, size=n // 3)] += 3 * scale
    logits[:, SEEN:] = -1e4
    sets = torch.zeros(n, CLASSES, dtype=torch.bool)
    sets[:, :SEEN] = random_sets(rng, n, SEEN)
    return torch.from_numpy(rng.normal(size=(n, DIM))).float(), logits, sets


@pytest.mark.parametrize("scale", [1.0, 4.0, 60.0])
@pytest.mark.parametrize("kind", NAIVE)
def test_the_statistic(kind: str, scale: float) -> None:
    features, logits, sets = problem(scale)
    made = separation(kind)
    found = made.statistic(features, logits, sets & made.ctx.old_mask)
    expected = [NAIVE[kind](o, s, OLD) for o, s in zip(array(logits), as_sets(sets), strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=2e-6)
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", NAIVE)
def test_sure_samples_are_judged_old(kind: str) -> None:
    """The mixture is over samples with an old candidate; c* stays the candidate with the nearest prototype."""
    features, logits, sets = problem(3.0)
    made = separation(kind)
    prototypes = made.ctx.prototypes
    prototypes.mu[:OLD] = torch.from_numpy(np.random.default_rng(1).normal(size=(OLD, DIM)))
    prototypes.known[:OLD] = True
    judged = made.judge(features, logits, sets)
    names = as_sets(sets)
    measured = [i for i, s in enumerate(names) if any(j < OLD for j in s)]
    e = reference.min_max([NAIVE[kind](array(logits[i]), names[i], OLD) for i in measured])
    w = lower_component(torch.tensor(e), max_iter=10, tol=1e-2, reg=5e-4)
    np.testing.assert_allclose(judged.probability[measured].numpy(), w.numpy(), atol=2e-3)
    rest = [i for i in range(len(names)) if i not in measured]
    assert rest
    assert not judged.old[rest].any()
    assert torch.equal(judged.old, judged.probability > 0.8)
    old_e = [e[k] for k, i in enumerate(measured) if judged.old[i]]
    new_e = [e[k] for k, i in enumerate(measured) if not judged.old[i]]
    assert max(old_e) < min(new_e)
    mu = {c: array(prototypes.mu[c]) for c in range(OLD)}
    nearest = reference.distance_set(array(features), names, mu, OLD, "cosine")
    assert [int(judged.nearest[i]) for i in measured] == [nearest[i][1] for i in measured]


@pytest.mark.parametrize("method", ["pgdr", "pico+pgdr", "papi+pgdr"])
@pytest.mark.parametrize(("variant", "kind"), [("conf-separation", "confidence"), ("entropy-separation", "entropy")])
def test_live_separation_is_by_the_old_network_before_training(
    live: Live, method: str, variant: str, kind: str
) -> None:
    learner = live.learner(f"{method}/{variant}", learnt=1)
    task = live.task(learner, 1)
    with torch.no_grad():
        views = learner.ctx.views.plain(torch.from_numpy(task.samples))
        scores = array(learner.network.eval()(views).logits)
    learner._begin_task(task)
    names = [set(np.flatnonzero(row).tolist()) for row in task.candidates]
    measured = [i for i, s in enumerate(names) if min(s) < task.old]
    e = reference.min_max([NAIVE[kind](scores[i], names[i], task.old) for i in measured])
    w = lower_component(torch.tensor(e, dtype=torch.float64), max_iter=10, tol=1e-2, reg=5e-4)
    certain = [i for i, s in enumerate(names) if max(s) < task.old]
    expected = {i for i, probability in zip(measured, w.tolist(), strict=True) if probability > 0.8} | set(certain)
    assert set(learner.ctx.pool.judged_old.nonzero()[:, 0].tolist()) == expected
    assert len(certain) < len(expected) < len(names)
