"""A source: samples with their true labels, split into training and test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ipll.engine.placement import Array, Selection, select
from ipll.errors import ConfigError, DataError
from ipll.registry import Registry
from ipll.rng import numpy_generator
from ipll.settings import check

Ints = npt.NDArray[np.int64]

IMAGES, FEATURES = ("uint8", 4), ("float32", 2)  # type and number of axes of samples


@dataclass(frozen=True, repr=False)
class Source:
    """Samples and the truth about them. Streams and evaluation read it; a learner is only ever given its samples.

    Those of a large data set lie in a file that is mapped into memory; a selection of them is not read either.
    """

    name: str
    train_samples: Array | Selection  # uint8 images [n, channels, height, width], or float32 features [n, d]
    train_labels: Ints  # [n], places in `class_names`
    test_samples: Array | Selection
    test_labels: Ints
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of images per channel, scaled to [0, 1]; of features per feature
    std: tuple[float, ...]
    superclasses: Ints | None = None  # [classes], the superclass of each class
    pictures: Array | Selection | None = None  # of the training samples, where these are features of images

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.train_samples.shape[1:]))
        train, test = len(self.train_samples), len(self.test_samples)
        return f"Source('{self.name}', {self.classes} classes, {train} training and {test} test samples of [{shape}])"

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def limited(self, per_class: int) -> Source:
        """-> the first `per_class` samples of each class, for training and for the test; 0: all."""
        if not per_class:
            return self
        train, test = (_first(labels, per_class) for labels in (self.train_labels, self.test_labels))
        return replace(
            self,
            train_samples=select(self.train_samples, train),
            train_labels=self.train_labels[train],
            test_samples=select(self.test_samples, test),
            test_labels=self.test_labels[test],
        )

    def validating(self, share: float) -> Source:
        """-> the source for choosing settings: this share of every class's training samples, at least one of each, are
        its test samples, the rest its training samples. The test samples are gone, so that nothing can score them.

        The draw is the data set's own, whatever a run's seed: all runs are scored on the same samples. A smaller share
        takes some of those that a larger one takes. 0: the source as it is.
        """
        check(0 <= share < 1, "data.validation", "be in [0, 1)", share)
        if not share:
            return self
        drawn = np.sort(np.concatenate([self._validation(c, share) for c in range(self.classes)]))
        rest = np.setdiff1d(np.arange(len(self.train_labels)), drawn)
        return replace(
            self,
            train_samples=select(self.train_samples, rest),
            train_labels=self.train_labels[rest],
            test_samples=select(self.train_samples, drawn),
            test_labels=self.train_labels[drawn],
        )

    def _validation(self, c: int, share: float) -> Ints:
        """-> the rows of class `c` that are taken out. A class without any is refused when a stream is built."""
        rows = np.flatnonzero(self.train_labels == c)
        count = max(1, round(share * len(rows)))
        if 0 < len(rows) <= count:
            raise ConfigError(
                f"data.validation={share:g} takes {count} of the {len(rows)} training samples of class "
                f"'{self.class_names[c]}' of '{self.name}', and none is left to learn from: choose a smaller share, or "
                "0, or get more samples of the class."
            )
        return numpy_generator(0, "validation", c).permutation(rows)[:count]


def check_source(source: Source) -> Source:
    """-> the source as a loader gave it, where its fields fit together; else the one that does not is named."""
    for split in ("train", "test"):
        _check_split(source, split)
    train, test = list(source.train_samples.shape), list(source.test_samples.shape)
    alike = f"be like its train_samples, {[test[0], *train[1:]]}"
    _must(source, "test_samples", train[1:] == test[1:], alike, test)
    _check_scale(source)
    for field, count in (("superclasses", source.classes), ("pictures", train[0])):
        values = getattr(source, field)
        if values is not None:
            _must(source, field, len(values) == count, f"have {count} entries", len(values))
    return source


def _must(source: Source, field: str, holds: bool, must: str, got: object) -> None:
    if not holds:
        raise DataError(f"data set '{source.name}': its {field} must {must}, got {got}.")


def _check_split(source: Source, split: str) -> None:
    samples, field = getattr(source, f"{split}_samples"), f"{split}_samples"
    kinds = "be uint8 images [n, channels, height, width] or float32 features [n, d]"
    _must(source, field, isinstance(samples, (np.ndarray, Selection)), kinds, type(samples).__name__)
    kind = samples[:0].dtype.name, len(samples.shape)
    _must(source, field, kind in (IMAGES, FEATURES), kinds, f"{kind[0]} {list(samples.shape)}")
    labels, field = np.asarray(getattr(source, f"{split}_labels")), f"{split}_labels"
    fits = labels.dtype.kind in "iu" and labels.shape == (len(samples),)
    whole = f"be whole numbers [{len(samples)}], one for each of the {split}_samples"
    _must(source, field, fits, whole, f"{labels.dtype} {list(labels.shape)}")
    strange = np.setdiff1d(labels, np.arange(source.classes))
    _must(source, field, not len(strange), f"be places in class_names, 0 to {source.classes - 1}", strange[:3].tolist())


def _check_scale(source: Source) -> None:
    each, images = source.train_samples.shape[1], len(source.train_samples.shape) == 4
    one = f"have one number for each of the {each} {'channels' if images else 'features'}"
    for field in ("mean", "std"):
        numbers = np.asarray(getattr(source, field), dtype=float)
        _must(source, field, numbers.shape == (each,), one, numbers.size)
        if images:
            within, kind = (numbers >= 0) & (numbers <= 1), "be of samples scaled to [0, 1], not of grey levels"
        else:
            within, kind = np.isfinite(numbers), "be finite numbers"
        _must(source, field, bool(within.all()), kind, numbers[~within][:3].tolist())
    _must(source, "std", not images or all(source.std), "not be 0: samples are divided by it", list(source.std))


def _first(labels: Ints, count: int) -> Ints:
    """-> in order, the rows that are among the first `count` of their label."""
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its label
    return np.sort(order[place < count])


class SourceLoader(ABC):
    """How one named data set is found (or fetched) and read."""

    name: ClassVar[str]
    description: ClassVar[str]

    @abstractmethod
    def available(self, data_root: Path) -> bool:
        """Can it be read from `data_root` without fetching anything?"""

    @abstractmethod
    def load(self, data_root: Path) -> Source:
        """Reads it; where it is missing, fetches it first, or raises a DataError that says how to get it."""


SOURCES: Registry[type[SourceLoader]] = Registry("data set")
