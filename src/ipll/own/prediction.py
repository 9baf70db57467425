"""Predictions: a class, how probable it is, how far it is from what was learnt; and how good predictions are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
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
    """How one class fares. Shares are None where there is nothing to take them of."""

    name: str
    samples: int  # that are of it
    recall: float | None  # of these, the share that is predicted to be
    predicted: int  # samples that are said to be of it
    precision: float | None  # of these, the share that is
    taken_for: str  # what most of its samples that are not recognised are predicted to be; '' where there are none


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
    balanced_accuracy: float  # the mean recall of the classes that have samples: rare ones count as much as others
    per_class: tuple[ClassRow, ...]  # the worst recall first, then the most samples; those without samples come last
    calibration_error: float  # see `calibration_error`
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
    truth, said = np.array([position[name] for name in given]), predictions.classes[labelled]
    right, confidence = said == truth, predictions.confidence[labelled]
    rows = class_rows(tuple(position), truth, said)
    return Evaluation(
        samples=len(truth),
        unlabelled=int((~labelled).sum()),
        accuracy=float(right.mean()),
        balanced_accuracy=float(np.mean([row.recall for row in rows if row.recall is not None])),
        per_class=rows,
        calibration_error=calibration_error(confidence, right),
        bins=calibration(confidence, right),
        unknown=dict(unknown.most_common()),
        unlike=int(predictions.unlike[labelled].sum()),
    )


def class_rows(names: Sequence[str], truth: npt.NDArray[np.int64], said: npt.NDArray[np.int64]) -> tuple[ClassRow, ...]:
    """-> a row for each class that is the truth [n] or is said [n] of some sample, the worst recall first."""
    right = said == truth
    samples, predicted, hits = (np.bincount(of, minlength=len(names)) for of in (truth, said, truth[right]))
    mistaken = Counter(zip(truth[~right].tolist(), said[~right].tolist(), strict=True))
    taken_for: dict[int, str] = {}
    for (true, wrong), _ in mistaken.most_common():
        taken_for.setdefault(true, names[wrong])
    rows = [
        ClassRow(
            name=names[c],
            samples=int(samples[c]),
            recall=float(hits[c] / samples[c]) if samples[c] else None,
            predicted=int(predicted[c]),
            precision=float(hits[c] / predicted[c]) if predicted[c] else None,
            taken_for=taken_for.get(c, ""),
        )
        for c in np.flatnonzero(samples + predicted).tolist()
    ]
    return tuple(sorted(rows, key=lambda row: (row.recall is None, row.recall or 0.0, -row.samples)))


def calibration_error(confidence: npt.NDArray[np.float32], right: npt.NDArray[np.bool_]) -> float:
    """-> the expected calibration error over BINS bins of equal width, a share: the mean over samples of |confidence -
    accuracy|, where both are means over the sample's bin."""
    return sum(one.samples * abs(one.confidence - one.accuracy) for one in calibration(confidence, right)) / len(right)


def calibration(confidence: npt.NDArray[np.float32], right: npt.NDArray[np.bool_]) -> tuple[Bin, ...]:
    """-> the bins of equal width that hold any of these predictions [n]."""
    where = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return tuple(
        Bin(b / BINS, (b + 1) / BINS, int(here.sum()), float(confidence[here].mean()), float(right[here].mean()))
        for b in range(BINS)
        if (here := where == b).any()
    )
