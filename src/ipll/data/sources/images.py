"""What the data sets of image files have in common: they are found, listed, and prepared where they are not yet."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from ipll.data.download import extract, fetch
from ipll.data.pictures import folders
from ipll.data.prepare import Listing, Prepared, cache_root, prepare
from ipll.data.source import Source, SourceLoader
from ipll.engine.locks import one_at_a_time
from ipll.engine.regular import check_regular
from ipll.errors import DataError
from ipll.messages import tell

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageSource(SourceLoader):
    """A data set of image files. `size` may be changed before it is loaded."""

    size: int = 224
    margin: ClassVar[float] = 256 / 224  # how much larger an image is before its middle is cut out, as at test
    mean: ClassVar[tuple[float, ...]] = IMAGENET_MEAN
    std: ClassVar[tuple[float, ...]] = IMAGENET_STD

    @abstractmethod
    def listing(self, data_root: Path) -> Listing:
        """Finds (or fetches) the image files and checks that they are all there."""

    def prepare(self, data_root: Path, jobs: int = 0, *, skip_bad: bool = False) -> Prepared:
        """Prepares the data set, or reads through it where that has been done."""
        return prepare(self.listing(data_root), data_root, jobs=jobs, verify=True, skip_bad=skip_bad)

    def load(self, data_root: Path) -> Source:
        place, images, listing, skipped = prepare(self.listing(data_root), data_root)
        if skipped:
            tell(f"{place}: {len(skipped):,} images that cannot be read were left out when it was prepared.")
        labels = np.array([picture.label for picture in listing.pictures], dtype=np.int64)
        return Source(
            name=self.name,
            train_samples=images[: listing.train],
            train_labels=labels[: listing.train],
            test_samples=images[listing.train :],
            test_labels=labels[listing.train :],
            class_names=listing.class_names,
            mean=self.mean,
            std=self.std,
        )


class Official:
    """The folder of a data set as its authors ship it: its name, the file that it is known by, and its archive."""

    def __init__(self, name: str, known_by: str, url: str, checksum: str) -> None:
        self.name, self.known_by, self.url, self.checksum = name, known_by, url, checksum

    def find(self, data_root: Path) -> Path | None:
        """-> the folder: in the data root, the data root itself, or a level or two lower or higher."""
        return next((folder for folder in self.places(data_root) if self._is_it(folder)), None)

    def home(self, folder: Path) -> Path:
        """-> where the prepared images go: beside the folder, or in it where it has a name of its own, as others
        beside it may have."""
        return folder.absolute().parent if folder.absolute().name == self.name else folder

    def archive(self, data_root: Path) -> Path:
        return data_root / self.url.rpartition("/")[2]

    def available(self, data_root: Path) -> bool:
        return self.find(data_root) is not None or self.archive(data_root).exists()

    def obtain(self, data_root: Path) -> Path:
        """-> the folder, extracted from its archive, and that fetched, where it is missing."""
        if folder := self.find(data_root):
            if folder not in (data_root, data_root / self.name):
                tell(f"You gave {data_root}; the images are in {folder}.")
            return folder
        archive, into = self.archive(data_root), data_root / self.name
        if into.is_dir() and any(into.iterdir()):
            if self._is_it(into):  # another process has extracted it since we looked
                return into
            hint = f"{_by_class(into)} Otherwise:" if _by_class(into) else ""
            raise DataError(f"{into} is not whole: it has no {self.known_by}.{hint} {self.way_out(into)}")
        if hint := _by_class(data_root):
            raise DataError(f"{data_root} holds no {self.name}.{hint} Otherwise: choose another --data-root for it.")
        if archive.exists() and not os.access(data_root, os.W_OK):
            into = cache_root() / self.name
            if self._is_it(into):
                return into
            tell(f"{data_root} cannot be written: {archive.name} is extracted to {into}.")
        archive = fetch(self.url, archive, self.checksum)
        try:
            into.parent.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(into.with_name(f".{into.name}.lock")):
                if self._is_it(into):  # another process has extracted it meanwhile
                    return into
                return extract(archive, into)
        except OSError as error:
            raise DataError(f"cannot extract {archive} to {into}: {error}. Use another --data-root.") from error

    def way_out(self, folder: Path) -> str:
        name = self.url.rpartition("/")[2]
        return f"Delete {folder} and extract {name} again, or run again to fetch it."

    def not_whole(self, folder: Path, short: list[tuple[str, int, int]]) -> DataError:
        """-> the error that names the first of the folders that hold (place, found, expected) images."""
        place, found, expected = short[0]
        others = f", and {len(short) - 1} more folders differ" if len(short) > 1 else ""
        return DataError(
            f"{folder} is not whole: {folder / place} has {found} of {expected} images{others}. {self.way_out(folder)}"
        )

    def _is_it(self, folder: Path) -> bool:
        return os.path.isfile(folder / self.known_by)  # False where we may not look

    def places(self, data_root: Path) -> Iterator[Path]:
        """-> where the folder may be, the most likely first."""
        yield data_root / self.name
        yield data_root
        for name in folders(data_root):
            if not name.endswith(".tmp"):  # an extraction that was killed
                yield data_root / name
                yield data_root / name / self.name
        yield from list(data_root.absolute().parents)[:2]


def _by_class(folder: Path) -> str:
    """-> what to do if its folders 'train' and 'test' (or 'val') hold class folders; nothing where it has none."""
    if not {"test", "val"} & (names := set(folders(folder))) or "train" not in names:
        return ""
    test = "test" if "test" in names else "val"
    return (
        f" If its folders 'train' and '{test}' hold a folder for each class: ipll prepare folder --data-root {folder}, "
        "or a run with --set data.source=folder."
    )


def read_rows(path: Path, columns: int) -> list[list[str]]:
    """-> the lines of a text file, each split at white space into so many columns; the last keeps its spaces."""
    try:
        check_regular(path)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path.parent} is not whole: it has no {path.name}. Extract the data set again.") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}. Extract the data set again.") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(line.strip().split(maxsplit=columns - 1))
            if len(rows[-1]) != columns:
                raise DataError(f"{path}, line {number}: '{line}' has not {columns} columns. Extract it again.")
    return rows
