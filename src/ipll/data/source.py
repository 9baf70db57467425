"""A source: samples with their true labels, split into training and test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ipll.registry import Registry


@dataclass(frozen=True)
class Source:
    """Samples and the truth about them. Streams and evaluation read it; a learner is only ever given its samples."""

    name: str
    train_samples: npt.NDArray[np.uint8]  # [n, channels, height, width]
    train_labels: npt.NDArray[np.int64]  # [n]
    test_samples: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of samples scaled to [0, 1]
    std: tuple[float, ...]
    superclasses: npt.NDArray[np.int64] | None = None  # [classes], the superclass of each class

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def limited(self, per_class: int) -> Source:
        """-> the first `per_class` samples of each class, for training and for the test; 0: all."""
        if not per_class:
            return self
        train, test = (_first(labels, per_class) for labels in (self.train_labels, self.test_labels))
        return replace(
            self, train_samples=self.train_samples[train], train_labels=self.train_labels[train],
            test_samples=self.test_samples[test], test_labels=self.test_labels[test],
        )  # fmt: skip


def _first(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
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
