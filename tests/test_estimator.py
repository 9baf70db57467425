"""ipll.IncrementalClassifier, as a scikit-learn user meets it. Real data: iris for features, digits for images."""

from __future__ import annotations

import copy
import doctest
import json
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ipll.estimator
from ipll import ConfigError, DataError, IncrementalClassifier
from ipll.learner import Learner
from ipll.own import Model, from_arrays

X, TRUTH = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[TRUTH]
OLD, NEW = np.flatnonzero(TRUTH < 2), np.flatnonzero(TRUTH > 0)
DIGITS = load_digits()
IMAGES = (DIGITS.images[:400] * 15).astype(np.uint8)
QUICK = {"epochs": 4, "random_state": 0}

Change = Callable[[IncrementalClassifier, Path], IncrementalClassifier]


def quick(**parameters: Any) -> IncrementalClassifier:
    return IncrementalClassifier(**(QUICK | parameters))


def ambiguous(labels: np.ndarray, names: list[Any], share: float = 0.4) -> list[list[Any]]:
    """-> candidate sets: the label, and each other name with this probability."""
    extra = np.random.default_rng(0).random((len(labels), len(names))) < share
    return [[n for n, e in zip(names, row, strict=True) if e or n == y] for y, row in zip(labels, extra, strict=True)]


def same(one: IncrementalClassifier, other: IncrementalClassifier, samples: Any = X) -> None:
    """Bit for bit."""
    assert np.array_equal(one.predict_proba(samples), other.predict_proba(samples))
    for name in ("classes_", "pseudo_labels_"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours.dtype.kind == theirs.dtype.kind
        assert ours.tolist() == theirs.tolist()
    assert one.n_features_in_ == other.n_features_in_


@pytest.fixture(scope="module")
def two_batches() -> IncrementalClassifier:
    """Two species, one of them ambiguous; then the second and a third. Do not change it."""
    learner = IncrementalClassifier(epochs=15, random_state=0)
    learner.partial_fit(X[OLD], ambiguous(NAMES[OLD], ["setosa", "versicolor"]))
    return learner.partial_fit(X[NEW], ambiguous(NAMES[NEW], ["versicolor", "virginica"]))


def test_it_learns_from_candidates_batch_after_batch(two_batches: IncrementalClassifier) -> None:
    assert two_batches.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert two_batches.score(X, NAMES) > 0.9
    assert two_batches.pseudo_labels_.shape == (len(NEW),)
    assert np.mean(two_batches.pseudo_labels_ == NAMES[NEW]) > 0.85  # in the order of the batch
    assert len(two_batches.model_.records) == len(OLD) + len(NEW)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
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
            (X, np.ones((len(X), 3), bool)),
            (X, np.ones((len(X), 3), int)),
            (X, np.linspace(0, 1, len(X))),
            (IMAGES.astype(float), NAMES),
            (X[:0], NAMES[:0]),
        ],
        ids=["length", "no y", "nan", "empty", "none", "unnamed", "integers", "regression", "floats", "no X"],
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


def through_folder(learner: IncrementalClassifier, folder: Path) -> IncrementalClassifier:
    learner.save(folder / "model")
    return IncrementalClassifier.load(folder / "model")


def through_pickle(learner: IncrementalClassifier, folder: Path) -> IncrementalClassifier:
    loaded: IncrementalClassifier = pickle.loads(pickle.dumps(learner))
    return loaded


def through_joblib(learner: IncrementalClassifier, folder: Path) -> IncrementalClassifier:
    joblib.dump(learner, folder / "model.joblib")
    loaded: IncrementalClassifier = joblib.load(folder / "model.joblib", mmap_mode="r")
    return loaded


@pytest.mark.parametrize("change", [through_folder, through_pickle, through_joblib, lambda one, _: copy.deepcopy(one)])
def test_what_was_kept_goes_on_the_same(two_batches: IncrementalClassifier, change: Change, tmp_path: Path) -> None:
    kept = change(two_batches, tmp_path)
    assert kept.get_params() == two_batches.get_params()
    same(two_batches, kept)
    more = X[::-1], ambiguous(NAMES[::-1], [*np.unique(NAMES), "a new one"], 0.2)
    same(copy.copy(two_batches).partial_fit(*more), kept.partial_fit(*more))


class TestFolder:
    def test_one_that_the_model_wrote(self, tmp_path: Path) -> None:
        model = Model.fit(from_arrays(X, TRUTH), method="pgdr/no-memory", seed=3, settings={"train.epochs": 2})
        model.save(tmp_path / "model")
        learner = IncrementalClassifier.load(tmp_path / "model")
        assert learner.classes_.tolist() == ["0", "1", "2"]
        assert learner.get_params()["method"] == "pgdr/no-memory"
        assert learner.get_params()["random_state"] == 3

    def test_one_that_the_model_went_on_with(self, tmp_path: Path) -> None:
        learner = quick().partial_fit(X[OLD], TRUTH[OLD], classes=[0, 1, 9])
        learner.save(tmp_path / "model")
        updated = Model.load(tmp_path / "model").update(from_arrays(X[NEW], TRUTH[NEW]))
        updated.save(tmp_path / "model")
        assert IncrementalClassifier.load(tmp_path / "model").classes_.tolist() == [0, 1, 2, 9]
        Model.fit(from_arrays(X, NAMES), settings={"train.epochs": 1}).save(tmp_path / "model")
        with pytest.raises(DataError, match="it belongs to another model"):
            IncrementalClassifier.load(tmp_path / "model")

    def test_all_parameters_are_kept(self, tmp_path: Path) -> None:
        settings = {"train.lr": np.float32(0.015625), "prototypes.gamma": 0.25}
        learner = quick(settings=settings, memory_size=np.int64(30), random_state=np.random.RandomState(4))
        kept = through_folder(learner.fit(X, TRUTH), tmp_path)
        seed = learner.model_.config.seed
        assert kept.get_params() == learner.get_params() | {"random_state": seed}
        assert kept.model_.config == learner.model_.config

    def test_damage_and_absence(self, two_batches: IncrementalClassifier, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no model\.json"):
            IncrementalClassifier.load(tmp_path)
        two_batches.save(tmp_path / "model")
        file = tmp_path / "model" / ipll.estimator.FILE
        whole = json.loads(file.read_text())
        for text in ("{", json.dumps(whole | {"parameters": {"colour": "red"}}), json.dumps({}), "[]"):
            file.write_text(text)
            with pytest.raises(DataError, match="Remove it to load the model"):
                IncrementalClassifier.load(tmp_path / "model")


class TestParameters:
    def test_clone_and_params(self) -> None:
        learner = quick(memory_size=20, settings={"train.lr": 0.02})
        copied = clone(learner.fit(X, TRUTH))
        assert copied.get_params() == learner.get_params()
        assert not hasattr(copied, "classes_")
        assert copied.set_params(epochs=2).epochs == 2
        assert repr(IncrementalClassifier()) == "IncrementalClassifier()"

    def test_they_reach_the_model(self) -> None:
        given = {"epochs": 3, "batch_size": 32, "memory_size": 12, "miss_rate": 0.1, "min_class_samples": 7}
        model = quick(**given, settings={"train.lr": 0.02}).fit(X, TRUTH).model_
        values = model.config.to_table()
        assert values["train"]["epochs"] == 3
        assert values["train"]["batch_size"] == 32
        assert values["train"]["lr"] == 0.02
        assert values["memory"]["size"] == 12
        assert values["disambiguation"]["miss_rate"] == 0.1
        assert model.min_class_samples == 7
        assert model.records.in_memory.sum() == 12

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"epochs": 0}, "train.epochs must be at least 1"),
            ({"epochs": 2.5}, "train.epochs takes a value of type int"),
            ({"settings": {"train.epochs": 3}}, "epochs and settings"),
            ({"settings": {"train.speed": 3}}, "unknown setting 'train.speed'"),
            ({"memory_size": 2}, "the memory holds 2 samples, but there are 3 classes"),
            ({"miss_rate": 0.9}, "miss_rate"),
            ({"min_class_samples": 0}, "min_class_samples must be at least 1"),
            ({"device": "abacus"}, "abacus"),
            ({"random_state": -1}, "seed must not be negative"),
        ],
        ids=str,
    )
    def test_faults(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            quick(**given).fit(X, TRUTH)

    def test_random_state(self) -> None:
        same(quick(random_state=3).fit(X, TRUTH), quick(random_state=np.int32(3)).fit(X, TRUTH))
        state = np.random.RandomState(5)
        one, two = quick(random_state=state).fit(X, TRUTH), quick(random_state=state).fit(X, TRUTH)
        assert one.model_.config.seed != two.model_.config.seed
        same(one, quick(random_state=np.random.RandomState(5)).fit(X, TRUTH))
        open_ended = quick(random_state=None)
        seeds = {open_ended.fit(X, TRUTH).model_.config.seed for _ in range(2)}
        assert len(seeds) == 2

    def test_verbose(self, capsys: pytest.CaptureFixture[str]) -> None:
        quick().fit(X, TRUTH)
        assert capsys.readouterr().out == ""
        quick(verbose=True).fit(X, TRUTH)
        assert "pgdr/tables: 150 samples, 3 classes" in capsys.readouterr().out

    def test_names_that_look_alike_get_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="differ only in case or spaces"):
            quick(epochs=1).fit(X, ["Setosa" if i == 7 else name for i, name in enumerate(NAMES)])


def test_pipelines_and_searches() -> None:
    pipeline = make_pipeline(StandardScaler(), quick(epochs=8))
    assert cross_val_score(pipeline, X, NAMES, cv=2).mean() > 0.85
    search = GridSearchCV(pipeline, {"incrementalclassifier__epochs": np.array([1, 8])}, cv=2).fit(X, NAMES)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.score(X, NAMES) > 0.85
    assert search.classes_.tolist() == np.unique(NAMES).tolist()


def test_a_search_over_candidate_sets() -> None:
    def among(learner: IncrementalClassifier, samples: Any, sets: list[list[str]]) -> float:
        return float(np.mean([label in one for label, one in zip(learner.predict(samples), sets, strict=True)]))

    splits = KFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(quick(), {"epochs": [4, 8]}, cv=splits, scoring=among)
    assert search.fit(X, ambiguous(NAMES, sorted(set(NAMES)), 0.2)).best_score_ > 0.8


def test_data_frames_keep_the_names_of_their_columns(tmp_path: Path) -> None:
    names = ["sepal length", "sepal width", "petal length", "petal width"]
    frame = pa.table(dict(zip(names, X.T, strict=True)))
    learner = quick().fit(frame, TRUTH)
    assert learner.feature_names_in_.tolist() == names
    assert through_folder(learner, tmp_path).feature_names_in_.tolist() == names
    with pytest.raises(ValueError, match="feature names should match"):
        learner.predict(frame.select(names[::-1]))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert np.array_equal(learner.predict(X), learner.predict(frame))
    assert not hasattr(learner.fit(X, TRUTH), "feature_names_in_")
    assert not hasattr(learner.fit(frame, TRUTH).fit(IMAGES[:30], DIGITS.target[:30]), "feature_names_in_")


@pytest.mark.parametrize("method", ["proden", "proden+icarl", "pico+bic", "papi+wa", "pico+er-ace", "papi+pgdr/pp"])
def test_other_engines(method: str, tmp_path: Path) -> None:
    learner = quick(method=method, epochs=6).partial_fit(X[OLD], ambiguous(TRUTH[OLD], [0, 1], 0.2))
    learner.partial_fit(X[NEW], ambiguous(TRUTH[NEW], [1, 2], 0.2))
    assert learner.classes_.tolist() == [0, 1, 2]
    probabilities = learner.predict_proba(X)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert np.array_equal(learner.predict(X), probabilities.argmax(1))
    assert learner.score(X[NEW], TRUTH[NEW]) > 0.6
    same(learner, through_folder(learner, tmp_path))


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(ipll.estimator).attempted > 5
    assert doctest.testmod(ipll.estimator).failed == 0
