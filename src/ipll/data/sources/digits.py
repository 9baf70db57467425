"""Handwritten digits, 8 x 8, as they come with scikit-learn: nothing to fetch, and small enough for a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ipll.data.source import SOURCES, Source, SourceLoader

SPLIT_SEED = 0  # the data set has no official split; this one is part of it, whatever the seed of a run
TEST_SHARE = 0.2
SCALE = 15  # grey values are 0..16; this brings them to 0..240


@SOURCES.register("digits")
class Digits(SourceLoader):
    name = "digits"
    description = "handwritten digits, 10 classes, 1,797 grey images of 8 x 8 (comes with scikit-learn)"

    def available(self, data_root: Path) -> bool:
        return True

    def load(self, data_root: Path) -> Source:
        from sklearn.datasets import load_digits  # takes seconds to import, which other data sets can do without
        from sklearn.model_selection import train_test_split

        grey, labels = load_digits(return_X_y=True)
        samples = (grey * SCALE).astype(np.uint8).reshape(-1, 1, 8, 8)
        train, test = train_test_split(
            np.arange(len(labels)), test_size=TEST_SHARE, stratify=labels, random_state=SPLIT_SEED
        )
        scaled = samples[train] / 255
        return Source(
            name=self.name,
            train_samples=samples[train],
            train_labels=labels[train].astype(np.int64),
            test_samples=samples[test],
            test_labels=labels[test].astype(np.int64),
            class_names=tuple(map(str, range(10))),
            mean=(float(scaled.mean()),),
            std=(float(scaled.std()),),
        )
