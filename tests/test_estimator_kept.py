"""ipll.IncrementalClassifier: kept and gone on with, its parameters, and among other tools of scikit-learn."""

from __future__ import annotations

import copy
import doctest
import json
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ipll.estimator
from estimators import DIGITS, IMAGES, NAMES, NEW, OLD, TRUTH, Change, X, ambiguous, quick, same
from ipll import ConfigError, DataError, IncrementalClassifier
from ipll.own import Model, from_arrays


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

    def test_unlabelled_as_scikit_learn_marks_it_gets_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="-1 is taken for a class like any other"):
            learner = quick(epochs=1).fit(X, np.where(np.arange(len(X)) % 9, TRUTH, -1))
        assert learner.classes_.tolist() == [-1, 0, 1, 2]

    def test_candidates_in_one_text_get_a_warning(self) -> None:
        with pytest.warns(UserWarning, match=r"each is taken as one name. Candidates are lists: \[one.split"):
            quick(epochs=1).fit(X, np.array([f"{name}|other" for name in NAMES]))
        with pytest.raises(DataError, match=r"candidates as lists: \[one\.split\('\|'\) for one in y\]"):
            quick(epochs=1).fit(X, ["setosa|versicolor" if i % 3 else name for i, name in enumerate(NAMES)])


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


OTHERS = ["proden", "proden+icarl", "pico+bic", "pico+er-ace", "papi+pgdr/pp"]


@pytest.mark.parametrize("method", [*OTHERS, pytest.param("papi+wa", marks=pytest.mark.slow)])
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
    failed, attempted = doctest.testmod(ipll.estimator)
    assert (failed, attempted > 5) == (0, True)
