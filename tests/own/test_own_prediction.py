"""Predictions: probabilities, distances, and what an evaluation says of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.metrics import balanced_accuracy_score, precision_recall_fscore_support

from ipll.own import Model, Predictions, Samples, evaluate, from_arrays
from ipll.own.prediction import fit_temperature

X, Y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def model() -> Model:
    settings = {"train.epochs": 10, "train.threads": 1}
    return Model.fit(from_arrays(X, [str(label) for label in Y]), device="cpu", settings=settings)


def predictions(names: Sequence[str], probabilities: npt.ArrayLike) -> Predictions:
    table = np.array(probabilities, np.float32)
    n = len(table)
    return Predictions(tuple(names), table.argmax(1), table, np.zeros(n, np.float32), np.zeros(n, np.bool_))


def labelled(labels: list[str]) -> Samples:
    return replace(from_arrays(np.zeros((len(labels), 1))), label_names=labels)


def test_probabilities_are_a_softmax_over_negative_squared_distances() -> None:
    settings = {"train.epochs": 10, "train.threads": 1}
    model = Model.fit(from_arrays(X, [str(label) for label in Y]), method="pgdr", device="cpu", settings=settings)
    found = model.predict(from_arrays(X), device="cpu")
    assert found.probabilities.shape == (len(X), 3)
    assert np.allclose(found.probabilities.sum(1), 1, atol=1e-6)
    assert np.array_equal(found.classes, found.probabilities.argmax(1))
    # log p_a - log p_b = (d_b^2 - d_a^2) / T; the distance to the predicted class is d_a
    nearest, second = found.top(2).T
    gap = np.log(found.probabilities[np.arange(150), nearest]) - np.log(found.probabilities[np.arange(150), second])
    squared = gap * model.temperature + found.distance.astype(np.float64) ** 2
    assert (squared >= found.distance**2 - 1e-3).all()
    assert (found.distance >= 0).all()


def test_what_is_far_from_everything_is_unlike() -> None:
    digits, labels = load_digits(return_X_y=True)
    seen = labels < 5
    train = np.flatnonzero(seen[:1200])
    samples = from_arrays(digits[train], [str(label) for label in labels[train]])
    model = Model.fit(samples, device="cpu", settings={"train.epochs": 10, "train.threads": 1})
    assert model.predict(samples, device="cpu").unlike.mean() < 0.06  # 5 % of held-out ones of known classes
    unlike = model.predict(from_arrays(digits[1200:]), device="cpu").unlike
    known, unknown = unlike[seen[1200:]].mean(), unlike[~seen[1200:]].mean()
    assert known < 0.08
    assert unknown > 2.2 * known  # 34 % to 6.6 %; over six seeds 2.5 to 5.5 times as many, by the network it chooses
    noise = np.random.default_rng(0).uniform(0, 16, (50, 64))
    assert model.predict(from_arrays(noise), device="cpu").unlike.all()


def test_many_samples_and_few_are_predicted_alike(model: Model) -> None:
    many = from_arrays(np.tile(X, (60, 1)))  # more than one block
    found = model.predict(many, device="cpu")
    assert len(found) == 9000
    one = model.predict(from_arrays(X[:1]), device="cpu")
    assert found.probabilities[0] == pytest.approx(one.probabilities[0], abs=1e-5)
    assert found.classes[8999] == found.classes[149]


def test_methods_without_prototypes_give_distances_too() -> None:
    settings = {"train.epochs": 10, "train.threads": 1}
    samples = from_arrays(X, [str(label) for label in Y])
    model = Model.fit(samples, method="proden+wa", device="cpu", settings=settings)
    found = model.predict(from_arrays(X), device="cpu")
    assert np.isfinite(found.distance).all()
    assert 0.02 < found.unlike.mean() < 0.08  # 5 % are promised, of samples that networks left out
    assert (np.array(found.labels) == Y.astype(str)).mean() > 0.9


def test_temperature_makes_confidence_what_it_should_be() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(4000, 6, generator=generator)
    labels = torch.multinomial((scores / 2.5).softmax(1), 1, generator=generator)[:, 0]
    assert fit_temperature(scores, labels) == pytest.approx(2.5, rel=0.1)
    assert fit_temperature(1000 * scores, labels) == pytest.approx(2500, rel=0.1)


def test_temperature_stays_finite_where_all_are_right() -> None:
    scores = torch.full((50, 4), -9.0).scatter(1, torch.arange(50)[:, None] % 4, 0.0)
    scores[:, 3] = -torch.inf  # a class that cannot be predicted; samples of it do not count
    temperature = fit_temperature(scores, torch.arange(50) % 4)
    confidence = float((scores[0] / temperature).softmax(0)[0])
    assert 0.9 < confidence < 0.999
    assert fit_temperature(scores[:, :1], torch.zeros(50, dtype=torch.int64)) == 1.0
    assert math.isfinite(fit_temperature(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)))


def test_evaluation_counts_what_is_right() -> None:
    said = predictions("ab", [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.5, 0.5]])
    found = evaluate(said, labelled(["a", "b", "b", "unheard of", ""]))
    assert (found.samples, found.unlabelled, found.accuracy) == (4, 1, 0.5)
    assert [tuple(row) for row in found.per_class] == [
        ("unheard of", 1, 0.0, 0, None, "a"), ("b", 2, 0.5, 1, 1.0, "a"), ("a", 1, 1.0, 3, 1 / 3, ""),
    ]  # fmt: skip
    assert found.balanced_accuracy == pytest.approx((0 + 0.5 + 1) / 3)
    assert found.unknown == {"unheard of": 1}
    assert found.calibration_error == pytest.approx((0.1 + 0.8 + 0.3 + 0.6) / 4)
    assert sum(one.samples for one in found.bins) == 4
    assert all(one.low < one.confidence <= one.high + 1e-6 for one in found.bins)
    told = {"name": "b", "samples": 2, "recall": 0.5, "predicted": 1, "precision": 1.0, "taken_for": "a"}
    assert found.to_dict()["per_class"][1] == told


def test_evaluation_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    names = tuple("abcde")
    said = predictions(names, rng.dirichlet(np.ones(5), 500))
    truth = np.where(rng.random(500) < 0.6, said.classes, rng.choice(5, 500, p=[0.5, 0.3, 0.1, 0.05, 0.05]))
    found = evaluate(said, labelled([names[c] for c in truth]))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, said.classes))
    precision, recall, _, support = precision_recall_fscore_support(truth, said.classes)
    for row in found.per_class:
        c = names.index(row.name)
        assert (row.samples, row.recall, row.precision) == (support[c], recall[c], precision[c])
        wrong = Counter(said.classes[(truth == c) & (said.classes != c)].tolist())
        assert row.taken_for == "" or wrong[names.index(row.taken_for)] == max(wrong.values())
    recalls = [row.recall for row in found.per_class]
    assert recalls == sorted(recalls)


def test_a_class_that_is_predicted_but_has_no_samples_comes_last() -> None:
    found = evaluate(predictions("abc", [[0.1, 0.2, 0.7], [0.9, 0.1, 0.0]]), labelled(["a", "a"]))
    assert [tuple(row) for row in found.per_class] == [("a", 2, 0.5, 1, 1.0, "c"), ("c", 0, None, 1, 0.0, "")]
    assert found.balanced_accuracy == 0.5


def test_calibration_averages_within_bins() -> None:
    said = predictions("ab", [[0.75, 0.25]] * 4)
    found = evaluate(said, labelled(["a", "a", "a", "b"]))
    assert found.calibration_error == pytest.approx(0, abs=1e-6)
    assert len(found.bins) == 1
    assert predictions("ab", [[1.0, 0.0]]).confidence.tolist() == [1.0]
    assert evaluate(predictions("ab", [[1.0, 0.0]]), labelled(["a"])).bins[0].high == 1.0


def test_nothing_to_compare_with_is_an_error(refused: Callable[..., str]) -> None:
    assert "no sample has a label" in refused(evaluate, predictions("a", [[1.0]]), labelled([""]))


def test_the_best_classes_come_first() -> None:
    said = predictions("abc", [[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]])
    assert said.top(2).tolist() == [[1, 2], [0, 1]]
    assert said.top(9).shape == (2, 3)
    assert said.labels == ["b", "a"]
