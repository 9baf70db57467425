"""CUB-200-2011 (Wah et al., 2011): birds, in its official layout, with its official split; or a copy of it that comes
as a folder of class folders."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ipll.data.pictures import folders, pictures
from ipll.data.prepare import Listing
from ipll.data.source import SOURCES
from ipll.data.sources.folder import Folder, held_out
from ipll.data.sources.images import ImageSource, Official, read_rows
from ipll.errors import DataError
from ipll.messages import tell


@SOURCES.register("cub200")
class Cub200(ImageSource):
    name = "cub200"
    description = "CUB-200-2011: 200 species of birds, 5,994 + 5,794 colour images, prepared at 224 x 224"
    official: ClassVar[Official] = Official(
        "CUB_200_2011",
        known_by="train_test_split.txt",
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        checksum="md5:97eceeb196236b17998738112f37df78",
    )
    counts: ClassVar[tuple[int, int, int]] = (200, 5_994, 5_794)  # classes, training images, test images

    def available(self, data_root: Path) -> bool:
        return self.official.available(data_root) or self._copy(data_root) is not None

    def listing(self, data_root: Path) -> Listing:
        if copy := self._copy(data_root):
            return self._copy_listing(copy)
        folder = self.official.obtain(data_root)
        classes, paths, classed, split = (
            dict(read_rows(folder / name, 2))
            for name in ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")
        )
        for name, table in (("image_class_labels.txt", classed), ("train_test_split.txt", split)):
            if table.keys() != paths.keys():
                other = next(iter(table.keys() ^ paths.keys()))
                raise DataError(
                    f"{folder / name} and images.txt do not name the same images (such as {other}). "
                    f"{self.official.way_out(folder)}"
                )
        label_of = {number: label for label, number in enumerate(classes)}
        if unknown := set(classed.values()) - label_of.keys():
            raise DataError(
                f"{folder / 'image_class_labels.txt'} names class {min(unknown)}, which classes.txt does not have. "
                f"{self.official.way_out(folder)}"
            )
        train = [key for key, chosen in split.items() if chosen == "1"]
        test = [key for key, chosen in split.items() if chosen != "1"]
        if (found := (len(classes), len(train), len(test))) != self.counts:
            raise DataError(
                f"{folder} lists {found[0]} classes, {found[1]} training and {found[2]} test images, expected "
                f"{self.counts[0]}, {self.counts[1]} and {self.counts[2]}. {self.official.way_out(folder)}"
            )
        expected = Counter(path.rpartition("/")[0] for path in paths.values())
        there = {
            picture.path: picture for place in sorted(expected) for picture in pictures(folder, f"images/{place}", -1)
        }
        missing = Counter(path.rpartition("/")[0] for path in paths.values() if f"images/{path}" not in there)
        if missing:
            short = [(f"images/{place}", expected[place] - n, expected[place]) for place, n in sorted(missing.items())]
            raise self.official.not_whole(folder, short)
        files = tuple(there[f"images/{paths[key]}"]._replace(label=label_of[classed[key]]) for key in (*train, *test))
        home = self.official.home(folder)
        return Listing(self.name, folder, home, _plain(classes.values()), files, len(train), self.size, self.margin)

    def _copy(self, data_root: Path) -> Path | None:
        """-> the folder of a copy in class folders, where the official layout is not there with its images."""
        official = self.official.find(data_root)
        if official and (official / "images").is_dir():
            return None
        return next((place for place in self.official.places(data_root) if _is_copy(place)), None)

    def _copy_listing(self, folder: Path) -> Listing:
        tell(f"{folder} holds class folders: they are read as they are, '{held_out(folder)}' as the test set.")
        listing = Folder().listing(folder)
        return replace(
            listing,
            dataset=self.name,
            home=self.official.home(folder),
            class_names=_plain(listing.class_names),
            size=self.size,
            margin=self.margin,
        )


def _is_copy(place: Path) -> bool:
    """Is it a folder of class folders, and CUB by its name (CUB...) or by those of its classes (001.Black_footed...)?
    Other data sets may lie beside it."""
    if not os.access(place / "train", os.R_OK | os.X_OK) or held_out(place) is None:
        return False
    named = place.absolute().name.upper().startswith("CUB")
    return named or all(re.match(r"\d{3}\.", name) for name in folders(place / "train"))


def _plain(names: Iterable[str]) -> tuple[str, ...]:
    """-> the names of classes without their numbers."""
    return tuple(name.partition(".")[2] or name for name in names)
