"""Eq. 12: the class of the nearest prototype; and the linear classifier it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from ipll.families.classifier.prototypes import PrototypeClassifier, PrototypeClassifierSettings
from live import Live, array, bare_context, known_prototypes

CLASSES, SEEN, DIM = 10, 6, 5


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_eq12_nearest_prototype(metric: str) -> None:
    """Classes without a prototype are never chosen, although theirs reads 0, which is nearest to most features here."""
    ctx = bare_context(classes=CLASSES, dim=DIM, old=3, seen=SEEN)
    rng = np.random.default_rng(0)
    ctx.prototypes.mu[:SEEN] = torch.from_numpy(rng.normal(scale=3, size=(SEEN, DIM)))
    ctx.prototypes.known[:SEEN] = True
    part = PrototypeClassifier(PrototypeClassifierSettings(metric=metric))
    part.build(ctx)
    features = torch.from_numpy(rng.normal(size=(300, DIM)) * rng.choice([0.2, 1, 4], size=(300, 1))).float()
    misleading = torch.from_numpy(rng.normal(size=(300, CLASSES))).float()  # the logits have no say
    mu = known_prototypes(ctx.prototypes)
    chosen = part.scores(features, misleading).argmax(dim=1).tolist()
    assert chosen == [reference.classify(array(x), mu, metric) for x in features]
    assert set(chosen) == set(range(SEEN))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_class_without_a_prototype_is_not_chosen_even_if_all_others_are_far(metric: str) -> None:
    ctx = bare_context(classes=4, dim=2, old=0, seen=3)
    ctx.prototypes.mu[1:3] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
    ctx.prototypes.known[1:3] = True  # class 0 is born but has none, class 3 is not born: both read (0, 0)
    part = PrototypeClassifier(PrototypeClassifierSettings(metric=metric))
    part.build(ctx)
    scores = part.scores(torch.tensor([[-1.0, 0.1], [-1.0, -0.1], [-0.1, 0.0]]), torch.zeros(3, 4))
    assert scores[:2].argmax(dim=1).tolist() == [1, 2]
    assert bool((scores[:, [0, 3]] == -torch.inf).all())


def test_the_metrics_differ() -> None:
    """Euclidean takes the near prototype, cosine the far one that points the same way."""
    mu = {0: np.array([1.0, 0.2]), 1: np.array([10.0, 0.0])}
    assert reference.classify(np.array([2.0, 0.0]), mu, "euclidean") == 0
    assert reference.classify(np.array([2.0, 0.0]), mu, "cosine") == 1


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_live_prediction(live: Live, metric: str) -> None:
    learner = live.learner(learnt=2, classifier__metric=metric)
    ctx = learner.ctx
    samples = torch.from_numpy(live.source.test_samples)
    with torch.no_grad():
        out = learner.network.eval()(ctx.views.plain(samples))
    prediction = learner.predict(samples)
    mu = known_prototypes(ctx.prototypes)
    assert set(mu) == set(range(ctx.seen))
    for x, c in zip(array(out.features), prediction.classes.tolist(), strict=True):
        nearest = reference.distance(x, mu[reference.classify(x, mu, metric)], metric)
        assert reference.distance(x, mu[c], metric) <= nearest * (1 + 1e-4)  # float32 may turn a near tie
    born = set(range(ctx.seen))
    assert prediction.linear.tolist() == [reference.argmax_within(scores, born) for scores in array(out.logits)]
    assert prediction.classes.tolist() != prediction.linear.tolist()


def test_the_linear_classifier_never_chooses_a_class_that_is_not_born(live: Live) -> None:
    learner = live.learner("pgdr/linear-classifier", learnt=1)
    ctx = learner.ctx
    assert ctx.seen == 4
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(200, ctx.capacity))).float()  # without the head's own mask
    scores = learner.classifier.scores(torch.zeros(200, learner.network.dim), logits)
    expected = [reference.argmax_within(row, set(range(ctx.seen))) for row in array(logits)]
    assert scores.argmax(dim=1).tolist() == expected
    samples = torch.from_numpy(live.source.test_samples)
    prediction = learner.predict(samples)
    assert torch.equal(prediction.classes, prediction.linear)
    assert set(prediction.classes.tolist()) <= set(range(4))
