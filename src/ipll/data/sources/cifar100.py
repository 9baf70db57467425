"""CIFAR-100 (Krizhevsky, 2009), read from the official 'python version', which is fetched where it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ipll.data.download import extract, fetch
from ipll.data.source import SOURCES, Source, SourceLoader
from ipll.data.unpickle import load_pickle
from ipll.errors import DataError

FOLDER = "cifar-100-python"
CLASSES = 100
SUPERCLASSES = 20

Split = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


@SOURCES.register("cifar100")
class Cifar100(SourceLoader):
    name = "cifar100"
    description = "CIFAR-100: 100 classes, 50,000 + 10,000 colour images of 32 x 32"
    url: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    checksum: ClassVar[str] = "md5:eb9058c3a382ffc7106e4002c42a8d85"
    sizes: ClassVar[Mapping[str, int]] = {"train": 50_000, "test": 10_000}

    def available(self, data_root: Path) -> bool:
        return self._folder(data_root) is not None or self._archive(data_root).exists()

    def load(self, data_root: Path) -> Source:
        folder = self._folder(data_root)
        if folder is None:
            folder = extract(fetch(self.url, self._archive(data_root), self.checksum), data_root / FOLDER)
        train_samples, train_labels, train_coarse = self._read(folder / "train")
        test_samples, test_labels, test_coarse = self._read(folder / "test")
        superclasses = np.full(CLASSES, -1, dtype=np.int64)
        superclasses[train_labels] = train_coarse
        if (superclasses < 0).any():
            missing = np.flatnonzero(superclasses < 0).tolist()
            raise DataError(f"{folder / 'train'} has no sample of class {missing}. {self._way_out(folder / 'train')}")
        for split, labels, coarse in (("train", train_labels, train_coarse), ("test", test_labels, test_coarse)):
            rows = np.flatnonzero(superclasses[labels] != coarse)
            if rows.size:
                raise DataError(
                    f"{folder / split}: class {labels[rows[0]]} has superclass {coarse[rows[0]]} in row {rows[0]}, "
                    f"elsewhere {superclasses[labels[rows[0]]]}. {self._way_out(folder / split)}"
                )
        return Source(
            name=self.name,
            train_samples=train_samples,
            train_labels=train_labels,
            test_samples=test_samples,
            test_labels=test_labels,
            class_names=self._class_names(folder / "meta"),
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            superclasses=superclasses,
        )

    def _folder(self, data_root: Path) -> Path | None:
        """-> where the three files are: in the official folder under the data root, or in the data root itself."""
        for folder in (data_root / FOLDER, data_root):
            if all((folder / name).is_file() for name in (*self.sizes, "meta")):
                return folder
        return None

    def _archive(self, data_root: Path) -> Path:
        return data_root / f"{FOLDER}.tar.gz"

    def _way_out(self, path: Path) -> str:
        return f"Delete {path} and run again to fetch it."

    def _entry(self, path: Path, content: Any, key: str) -> Any:
        if not isinstance(content, dict) or key not in content:
            raise DataError(f"{path} has no entry '{key}'. {self._way_out(path)}")
        return content[key]

    def _read(self, path: Path) -> Split:
        """-> images [n, 3, 32, 32], fine labels [n], coarse labels [n] of one split."""
        content = load_pickle(path)
        size = self.sizes[path.name]
        images = self._entry(path, content, "data")
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != (size, 3 * 32 * 32):
            found = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
            raise DataError(f"{path}: 'data' is {found}, expected uint8 [{size}, 3072]. {self._way_out(path)}")
        fine = self._labels(path, content, "fine_labels", CLASSES)
        coarse = self._labels(path, content, "coarse_labels", SUPERCLASSES)
        return images.reshape(size, 3, 32, 32), fine, coarse

    def _labels(self, path: Path, content: Any, key: str, classes: int) -> npt.NDArray[np.int64]:
        """-> labels [n], all in 0 .. classes - 1."""
        values = self._entry(path, content, key)
        size = self.sizes[path.name]
        if not isinstance(values, list) or len(values) != size or set(map(type, values)) != {int}:
            raise DataError(f"{path}: '{key}' is not a list of {size} whole numbers. {self._way_out(path)}")
        labels = np.array(values)
        rows = np.flatnonzero((labels < 0) | (labels >= classes))
        if rows.size:
            raise DataError(
                f"{path}: '{key}' has {labels[rows[0]]} in row {rows[0]}, expected 0 to {classes - 1}. "
                f"{self._way_out(path)}"
            )
        return labels.astype(np.int64)

    def _class_names(self, path: Path) -> tuple[str, ...]:
        names = self._entry(path, load_pickle(path), "fine_label_names")
        if not isinstance(names, list) or len(names) != CLASSES or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: 'fine_label_names' is not a list of {CLASSES} names. {self._way_out(path)}")
        return tuple(names)


@SOURCES.register("cifar100-h")
class Cifar100H(Cifar100):
    name = "cifar100-h"
    description = "CIFAR-100 for streams whose tasks follow its 20 superclasses"
