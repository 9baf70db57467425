"""ipll.IncrementalClassifier, as a scikit-learn user meets it. Real data: iris for features, digits for images."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from estimators import DIGITS, IMAGES, NAMES, NEW, OLD, TRUTH, X, ambiguous, quick, same
from ipll import ConfigError, DataError, IncrementalClassifier
from ipll.learner import Learner
from ipll.own import Model, from_arrays


def test_it_learns_from_candidates_batch_after_batch(two_batches: IncrementalClassifier) -> None:
    assert two_batches.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert two_batches.score(X, NAMES) > 0.9
    assert two_batches.pseudo_labels_.shape == (len(NEW),)
    assert np.mean(two_batches.pseudo_labels_ == NAMES[NEW]) > 0.85  # in the order of the batch
    assert np.array_equal(two_batches.label_confidence_, two_batches.model_.records.confidence[len(OLD) :])
    assert len(two_batches.model_.records) == len(OLD) + len(NEW)


@pytest.mark.parametrize("load", [load_iris, load_wine, pytest.param(load_breast_cancer, marks=pytest.mark.slow)])
def test_real_tables_need_no_tuning(load: Callable[..., Any]) -> None:
    samples, labels = load(return_X_y=True)
    first, rest = labels < 2, labels > 0
    learner = IncrementalClassifier(epochs=40, random_state=0).partial_fit(samples[first], labels[first])
    assert learner.partial_fit(samples[rest], labels[rest]).score(samples, labels) > 0.9


def test_probabilities_belong_to_the_sorted_classes(two_batches: IncrementalClassifier) -> None:
    probabilities = two_batches.predict_proba(X)
    assert probabilities.shape == (len(X), 3)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert np.array_equal(two_batches.classes_[probabilities.argmax(1)], two_batches.predict(X))
    arrived = quick().fit(X, ["zebra" if t == 0 else "ape" if t == 1 else "cat" for t in TRUTH])
    assert arrived.model_.names == ("zebra", "ape", "cat")
    assert arrived.classes_.tolist() == ["ape", "cat", "zebra"]
    assert np.mean(arrived.predict_proba(X)[:, 2].round() == (TRUTH == 0)) > 0.9


def test_images_in_colour_or_grey() -> None:
    grey = IncrementalClassifier(epochs=8, random_state=0)
    half = len(IMAGES) // 2
    few, many = DIGITS.target[:half] < 5, DIGITS.target[half : 2 * half]
    grey.partial_fit(IMAGES[:half][few], ambiguous(DIGITS.target[:half][few], list(range(5)), 0.2))
    grey.partial_fit(IMAGES[half:], ambiguous(many, list(range(10)), 0.1))
    assert grey.classes_.tolist() == list(range(10))
    assert grey.n_features_in_ == 64
    assert grey.score(IMAGES, DIGITS.target[:400]) > 0.6
    assert np.mean(grey.pseudo_labels_ == many) > 0.8
    assert grey.predict(IMAGES[:3].repeat(2, 1).repeat(2, 2)).shape == (3,)  # they are resized
    colour = quick(epochs=1).fit(np.stack([IMAGES[:60]] * 3, -1), DIGITS.target[:60])
    assert colour.model_.shape == (3, 8, 8)
    with pytest.raises(DataError, match="the model learnt images"):
        grey.predict(X)
    with pytest.raises(DataError, match="the model learnt features"):
        quick().fit(X, TRUTH).predict(IMAGES)


@pytest.mark.parametrize(
    "given",
    [
        lambda sets: [tuple(one) for one in sets],
        lambda sets: [set(one) for one in sets],
        lambda sets: [frozenset(one) for one in sets],
        lambda sets: [np.array(one) for one in sets],
        lambda sets: np.array([*sets, None], object)[:-1],
        lambda sets: np.array([[name in one for name in np.unique(NAMES)] for one in sets]),
        lambda sets: [[bool(name in one) for name in np.unique(NAMES)] for one in sets],
    ],
    ids=["tuples", "sets", "frozensets", "arrays", "objects", "matrix", "lists of bool"],
)
def test_all_ways_to_give_candidates_are_the_same(given: Callable[[Any], Any]) -> None:
    sets = ambiguous(NAMES, sorted(set(NAMES)))
    sets[0] = sorted(set(NAMES))  # all classes have the same order of arrival
    one = quick(epochs=1).fit(X, sets)
    same(one, quick(epochs=1).fit(X, given(sets), classes=np.unique(NAMES)))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (TRUTH * 5, "i"),  # 0, 5, 10: as text, 10 would be before 5
        ((TRUTH * 5).tolist(), "i"),
        (TRUTH.astype(np.uint8), "i"),
        (TRUTH - 1, "i"),
        (TRUTH * 5.0, "f"),
        (TRUTH > 1, "b"),
        (NAMES, "U"),
        (NAMES.tolist(), "U"),
        (NAMES.astype(object), "U"),
        (TRUTH.astype(str), "U"),
    ],
    ids=["int", "list", "uint8", "negative", "float", "bool", "text", "texts", "objects", "digits"],
)
def test_labels_keep_their_type(labels: Any, kind: str, tmp_path: Path) -> None:
    learner = quick().fit(X, labels)
    assert learner.classes_.dtype.kind == learner.pseudo_labels_.dtype.kind == kind
    assert learner.classes_.tolist() == sorted(set(np.asarray(labels).tolist()))
    assert learner.predict(X).dtype.kind == kind
    assert np.array_equal(learner.pseudo_labels_, labels)
    assert learner.score(X, labels) > 0.8
    learner.save(tmp_path / "model")
    same(learner, IncrementalClassifier.load(tmp_path / "model"))


def test_labels_of_several_types_are_refused() -> None:
    for y, classes in [
        ([*TRUTH[:-1].tolist(), "virginica"], None),
        ([[0, "setosa"]] * len(X), None),
        (TRUTH, ["0", "1", "2"]),
        (np.ones((len(X), 2), bool), [1, "one"]),
    ]:
        with pytest.raises(DataError, match="several types: int and str"):
            quick().fit(X, y, classes)
    learner = quick().fit(X, TRUTH)
    with pytest.raises(DataError, match="several types"):
        learner.partial_fit(X, NAMES)
    assert quick().fit(X, [(0, np.int64(1)) if t < 2 else [np.uint8(2)] for t in TRUTH]).classes_.tolist() == [0, 1, 2]


def test_classes_that_are_named_before_they_come() -> None:
    learner = quick().partial_fit(X[OLD], TRUTH[OLD], classes=[2, 1, 0, 9])
    assert learner.classes_.tolist() == [0, 1, 2, 9]
    assert not learner.predict_proba(X)[:, 2:].any()
    learner.partial_fit(X[NEW], TRUTH[NEW])
    assert learner.classes_.tolist() == [0, 1, 2, 9]
    assert learner.predict_proba(X)[:, 2].max() > 0.5
    assert not learner.predict_proba(X)[:, 3].any()
    learner.partial_fit(X[:20], [4] * 20)  # nobody had named it
    assert learner.classes_.tolist() == [0, 1, 2, 4, 9]
    with pytest.raises(DataError, match="sample 0: candidate '0' is not in classes"):
        learner.partial_fit(X, TRUTH, classes=[1, 2])


def test_a_first_batch_of_one_class() -> None:
    one = np.zeros(50, int)
    with pytest.raises(DataError, match="one class only"):
        quick().partial_fit(X[:50], one)
    learner = quick(epochs=10).partial_fit(X[:50], one, classes=[0, 1])
    assert learner.predict(X[:50]).tolist() == [0] * 50
    assert learner.partial_fit(X[50:100], one + 1).score(X[:100], np.arange(100) // 50) > 0.8


def test_fit_forgets() -> None:
    learner = quick().fit(X, NAMES).partial_fit(X, NAMES)
    learner.fit(X[OLD], TRUTH[OLD])
    same(learner, quick().fit(X[OLD], TRUTH[OLD]))
    assert learner.classes_.tolist() == [0, 1]
    assert learner.model_.updates == 1
    learner.fit(IMAGES[:40], DIGITS.target[:40])
    assert learner.n_features_in_ == 64


def test_the_estimator_is_a_shell_of_the_model() -> None:
    learner = quick().fit(X, NAMES)
    samples = from_arrays(X, NAMES)
    model = Model.fit(samples, seed=0, settings={"train.epochs": 4})
    assert np.array_equal(model.predict(samples).probabilities, learner.predict_proba(X))


class TestFailures:
    """What raises leaves the estimator as it was."""

    def unchanged(self, learner: IncrementalClassifier, act: Callable[[], Any], error: type[BaseException]) -> None:
        before, probabilities = dict(vars(learner)), learner.predict_proba(X)
        tensors = {name: tensor.clone() for name, tensor in learner.model_.tensors.items()}
        with pytest.raises(error):
            act()
        assert vars(learner).keys() == before.keys()
        assert all(vars(learner)[name] is value for name, value in before.items())
        assert all(tensor.equal(tensors[name]) for name, tensor in learner.model_.tensors.items())
        assert np.array_equal(learner.predict_proba(X), probabilities)

    @pytest.mark.parametrize("word", ["fit", "partial_fit"])
    @pytest.mark.parametrize(
        ("samples", "labels"),
        [
            (X, NAMES[:-1]),
            (X, None),
            (X * np.nan, NAMES),
            (X, [[]] * len(X)),
            (X, [None] * len(X)),
            (X, np.ones((3, len(X)), bool)),
            (X, np.full((len(X), 3), 2)),
            (X, np.linspace(0, 1, len(X))),
            (IMAGES.astype(float), NAMES),
            (X[:0], NAMES[:0]),
        ],
        ids=["length", "no y", "nan", "empty", "none", "on its side", "integers", "regression", "floats", "no X"],
    )
    def test_bad_input(self, two_batches: IncrementalClassifier, word: str, samples: Any, labels: Any) -> None:
        self.unchanged(two_batches, lambda: getattr(two_batches, word)(samples, labels), ValueError)

    def test_another_width(self, two_batches: IncrementalClassifier) -> None:
        for word in (two_batches.partial_fit, two_batches.score):
            self.unchanged(two_batches, lambda word=word: word(X[:, :3], NAMES), ValueError)

    @pytest.mark.parametrize("word", ["fit", "partial_fit"])
    def test_in_the_middle_of_training(
        self, two_batches: IncrementalClassifier, word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fit = Learner.fit

        def broken(self: Learner, *arguments: Any, **named: Any) -> Any:
            for step, position in enumerate(fit(self, *arguments, **named)):
                if step == 20:
                    raise RuntimeError("the device is gone")
                yield position

        monkeypatch.setattr(Learner, "fit", broken)
        more = X[:, :2] if word == "fit" else X
        self.unchanged(two_batches, lambda: getattr(two_batches, word)(more, NAMES, [*NAMES[::50], "z"]), RuntimeError)

    def test_an_interruption_ends_a_search_too(
        self, two_batches: IncrementalClassifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fit = Learner.fit

        def stopped(self: Learner, *arguments: Any, **named: Any) -> Any:
            for step, position in enumerate(fit(self, *arguments, **named)):
                if step == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                yield position

        monkeypatch.setattr(Learner, "fit", stopped)
        self.unchanged(two_batches, lambda: two_batches.partial_fit(X, NAMES), KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            GridSearchCV(quick(), {"epochs": [1, 2]}, cv=2).fit(X, TRUTH)

    def test_before_anything_was_learnt(self) -> None:
        learner = quick(method="pdgr")
        with pytest.raises(ConfigError, match="Did you mean 'pgdr'"):
            learner.fit(X, NAMES)
        with pytest.raises(NotFittedError):
            learner.predict(X)
        with pytest.raises(NotFittedError):
            learner.save("nowhere")


def test_a_matrix_of_numbers_or_a_sparse_one_is_that_of_booleans() -> None:
    matrix = np.eye(3, dtype=bool)[TRUTH] | (np.random.default_rng(0).random((len(X), 3)) < 0.2)
    names = ["setosa", "versicolor", "virginica"]
    learners = [
        IncrementalClassifier(epochs=2, random_state=0).fit(X, y, classes=names)
        for y in (matrix, matrix.astype(int), csr_array(matrix.astype(float)), matrix.astype(int).tolist())
    ]
    for learner in learners[1:]:
        assert np.array_equal(learner.predict_proba(X), learners[0].predict_proba(X))


def test_score_refuses_candidate_sets(two_batches: Any) -> None:
    for y in (ambiguous(NAMES, sorted(set(NAMES))), np.ones((len(X), 3), bool), csr_array(np.ones((len(X), 3)))):
        with pytest.raises(DataError, match="plain labels"):
            two_batches.score(X, y)


def test_parameters_that_come_too_late_are_told() -> None:
    learner = IncrementalClassifier(epochs=2, random_state=0).partial_fit(X, NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.set_params(device="cpu", epochs=2).partial_fit(X, NAMES)
    learner.set_params(miss_rate=0.1, settings={"train.lr": 0.1})
    with pytest.warns(UserWarning, match="miss_rate, settings: changed since the first batch, and without effect"):
        learner.partial_fit(X, NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.fit(X, NAMES).partial_fit(X, NAMES)
    assert learner.model_.given["disambiguation.miss_rate"] == 0.1
