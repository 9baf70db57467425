"""iCaRL's classifier: the nearest mean of exemplars, everything on the unit sphere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from ipll.families.classifier.exemplar_means import ExemplarMeans
from ipll.learner import Learner
from live import Live, array, part

METHOD = "proden+icarl"


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.sum(x * x))


def naive_means(features: np.ndarray, classes: list[int], before: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Of features at length one, then at length one itself. A class without exemplars keeps the mean it had."""
    means = dict(before)
    for c in set(classes):
        means[c] = unit(sum(unit(x) for x, label in zip(features, classes, strict=True) if label == c))
    return means


def check(learner: Learner, before: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Compares the means with the naive ones, by the network as it is now. -> these."""
    memory, made = learner.memory, part(learner, ExemplarMeans)
    with torch.no_grad():
        features = learner.network.eval()(learner.ctx.views.plain(memory.samples)).features
    expected = naive_means(array(features), memory.classes.tolist(), before)
    assert set(made.known.nonzero()[:, 0].tolist()) == set(expected)
    for c, mean in expected.items():
        np.testing.assert_allclose(array(made.means[c]), mean, rtol=1e-4, atol=1e-5)
    return expected


def test_means_and_predictions_over_three_tasks(live: Live) -> None:
    learner = live.learner(METHOD)
    samples = torch.from_numpy(live.source.test_samples[:150])
    means: dict[int, np.ndarray] = {}
    for t in range(3):
        for _ in learner.fit(live.task(learner, t)):
            pass
        means = check(learner, means)
        with torch.no_grad():
            out = learner.network.eval()(learner.ctx.views.plain(samples))
        predicted = learner.predict(samples)
        assert predicted.classes.tolist() == [reference.classify(unit(x), means) for x in array(out.features)]
        assert predicted.linear.tolist() == out.logits.argmax(dim=1).tolist()
        assert not torch.equal(predicted.classes, predicted.linear)


@pytest.mark.parametrize("lost", [0, 5])
def test_a_class_without_exemplars_keeps_its_mean(live: Live, lost: int) -> None:
    """And one that never had any is never predicted."""
    learner = live.learner(METHOD, learnt=2)
    memory, made = learner.memory, part(learner, ExemplarMeans)
    kept = made.means[lost].clone()
    assert made.known.tolist() == [True] * 7 + [False] * 3
    rows = memory.classes != lost
    memory.samples, memory.classes = memory.samples[rows], memory.classes[rows]
    with torch.no_grad():
        learner.network.head.weight += 1.0  # the head has no say
        for weight in learner.network.backbone.parameters():
            weight *= 1.1  # means of the others move
    before = {c: array(made.means[c]) for c in range(7)}
    with torch.no_grad():
        made.end_task()
    assert torch.equal(made.means[lost], kept)
    assert made.known.tolist() == [True] * 7 + [False] * 3
    check(learner, before)
    scores = made.scores(torch.randn(50, made.means.shape[1]), torch.full((50, 10), 9.0))
    assert torch.equal(scores.isinf().all(dim=0), ~made.known)
    assert scores[:, :7].isfinite().all()


def test_the_length_of_a_feature_does_not_count(live: Live) -> None:
    made = part(live.learner(METHOD, learnt=1), ExemplarMeans)
    x = torch.randn(30, made.means.shape[1], generator=torch.Generator().manual_seed(0))
    logits = torch.zeros(30, 10)
    torch.testing.assert_close(made.scores(x, logits), made.scores(100 * x, logits), atol=1e-3, rtol=1e-3)
