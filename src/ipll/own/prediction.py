"""Predictions: a class, how probable it is, how far it is from what was learnt; and how good predictions are."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.engine.state import part_of
from ipll.errors import DataError
from ipll.families.classifier import best_temperature
from ipll.families.classifier.prototypes import PrototypeClassifier
from ipll.learner import Learner
from ipll.own.reading.samples import Samples
from ipll.prototypes import Prototypes

BINS = 15


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of n samples. Classes are columns of `names`."""

    names: tuple[str, ...]
    classes: npt.NDArray[np.int64]  # [n], the most probable class
    probabilities: npt.NDArray[np.float32]  # [n, names]
    distance: npt.NDArray[np.float32]  # [n], from the features to the prototype of the predicted class
    unlike: npt.NDArray[np.bool_]  # [n], farther from it than 99 % of the training samples from theirs

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def labels(self) -> list[str]:
        """-> the predicted classes by name."""
        return [self.names[c] for c in self.classes.tolist()]

    @property
    def confidence(self) -> npt.NDArray[np.float32]:
        """-> the probability of the predicted class [n]."""
        return self.probabilities[np.arange(len(self)), self.classes]

    def top(self, k: int) -> npt.NDArray[np.int64]:
        """-> the k most probable classes of each sample [n, k], the predicted one first; as many as there are."""
        return np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]


def class_scores(learner: Learner, features: Tensor, logits: Tensor) -> Tensor:
    """-> what the softmax of the probabilities is taken of [n, capacity]; -inf for a class not to be predicted.

    Prototypes: the negative squared distance. Other classifiers: their scores. Where a method has prototypes, a class
    that has none (no sample ever settled on it) is not predicted.
    """
    prototypes, classifier = part_of(learner.ctx.parts, Prototypes), learner.classifier
    if prototypes is not None and type(classifier) is PrototypeClassifier and classifier.settings.metric == "euclidean":
        return -prototypes.distances(features).square()
    return allowed(learner, classifier.scores(features, logits))


def allowed(learner: Learner, scores: Tensor) -> Tensor:
    """-> scores [n, capacity], -inf for classes not to be predicted: where a method has prototypes, those without."""
    prototypes = part_of(learner.ctx.parts, Prototypes)
    scores = scores.masked_fill(~learner.ctx.network.head.born, -torch.inf)
    return scores if prototypes is None else scores.masked_fill(~prototypes.known, -torch.inf)


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """-> T that minimises the cross-entropy of softmax(scores / T) [n, classes] with the labels [n].

    The samples were trained on, so often all of them are right, and colder would always be better. As in Platt's
    scaling, one more sample is therefore counted that could be of any class.
    """
    rows = scores.gather(1, labels[:, None])[:, 0].isfinite()
    scores, labels = scores[rows].double(), labels[rows]
    allowed = scores.isfinite()
    count = allowed.sum(dim=1)
    spread = float((scores.amax(dim=1) - scores.where(allowed, 0).sum(dim=1) / count).mean()) if len(scores) else 0.0
    if not spread > 0:
        return 1.0
    smooth = 1 / (len(scores) + 1)
    right = scores.gather(1, labels[:, None])[:, 0]
    wanted = (1 - smooth) * right + smooth * scores.where(allowed, 0).sum(dim=1) / count

    def loss(log_t: float) -> float:
        t = math.exp(log_t)
        return float(((scores / t).logsumexp(dim=1) - wanted / t).mean())

    return best_temperature(loss, spread)


class ClassRow(NamedTuple):
    name: str
    samples: int
    accuracy: float  # a share


class Bin(NamedTuple):
    """Predictions whose confidence lies in (low, high]: on the average, is it as often right as it says?"""

    low: float
    high: float
    samples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """How good predictions are, where labels are given. Accuracies are shares, from 0 to 1."""

    samples: int  # that have a label
    unlabelled: int
    accuracy: float
    per_class: tuple[ClassRow, ...]  # the model's classes in its order, then labels that it does not know
    calibration_error: float  # the mean over samples of |confidence - accuracy| of their bin
    bins: tuple[Bin, ...]  # those that are not empty
    unknown: dict[str, int]  # labels that the model does not know, with their samples; these count as wrong
    unlike: int  # samples unlike anything seen

    def to_dict(self) -> dict[str, Any]:
        """-> plain values, for JSON."""
        values = dict(vars(self))
        return values | {key: [row._asdict() for row in values[key]] for key in ("per_class", "bins")}


def evaluate(predictions: Predictions, samples: Samples) -> Evaluation:
    """-> how the predictions agree with the samples' labels."""
    labelled = np.array([bool(name) for name in samples.label_names])
    if not labelled.any():
        raise DataError(f"{samples.source}: no sample has a label to compare with. Add a column 'label'.")
    position = {name: index for index, name in enumerate(predictions.names)}
    given = [name for name in samples.label_names if name]
    unknown = Counter(name for name in given if name not in position)
    for name in unknown:
        position[name] = len(position)
    truth = np.array([position[name] for name in given])
    right = predictions.classes[labelled] == truth
    counts, hits = np.bincount(truth, minlength=len(position)), np.bincount(truth[right], minlength=len(position))
    rows = tuple(
        ClassRow(name, int(counts[c]), float(hits[c] / counts[c])) for name, c in position.items() if counts[c]
    )
    bins = calibration(predictions.confidence[labelled], right)
    error = sum(one.samples * abs(one.confidence - one.accuracy) for one in bins) / len(truth)
    return Evaluation(
        samples=len(truth),
        unlabelled=int((~labelled).sum()),
        accuracy=float(right.mean()),
        per_class=rows,
        calibration_error=error,
        bins=bins,
        unknown=dict(unknown.most_common()),
        unlike=int(predictions.unlike[labelled].sum()),
    )


def calibration(confidence: npt.NDArray[np.float32], right: npt.NDArray[np.bool_]) -> tuple[Bin, ...]:
    """-> the bins of equal width that hold any of these predictions [n]."""
    where = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return tuple(
        Bin(b / BINS, (b + 1) / BINS, int(here.sum()), float(confidence[here].mean()), float(right[here].mean()))
        for b in range(BINS)
        if (here := where == b).any()
    )
