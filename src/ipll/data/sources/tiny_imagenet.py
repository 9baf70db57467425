"""Tiny-ImageNet-200 (Le and Yang, 2015), in its official layout. Its validation images, which have labels, are the
test set, as everywhere; its test images have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ipll.data.pictures import Picture, pictures
from ipll.data.prepare import Listing
from ipll.data.source import SOURCES
from ipll.data.sources.images import ImageSource, Official, read_rows
from ipll.errors import DataError


@SOURCES.register("tiny-imagenet")
class TinyImageNet(ImageSource):
    name = "tiny-imagenet"
    description = "Tiny-ImageNet: 200 classes, 100,000 + 10,000 colour images of 64 x 64"
    official: ClassVar[Official] = Official(
        "tiny-imagenet-200",
        known_by="wnids.txt",
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        checksum="md5:90528d7ca1a48142e341f4ef8d21d0de",
    )
    classes: ClassVar[int] = 200
    train_images: ClassVar[int] = 500  # of each class
    test_images: ClassVar[int] = 50
    size = 64
    margin = 1.0  # the images are 64 x 64 already
    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2302, 0.2265, 0.2262)

    def available(self, data_root: Path) -> bool:
        return self.official.available(data_root)

    def listing(self, data_root: Path) -> Listing:
        folder = self.official.obtain(data_root)
        wnids = [row[0] for row in read_rows(folder / "wnids.txt", 1)]
        if len(set(wnids)) != self.classes:
            raise DataError(
                f"{folder / 'wnids.txt'} names {len(set(wnids))} classes, expected {self.classes}. "
                f"{self.official.way_out(folder)}"
            )
        words = dict(row[0].split("\t", 1) for row in read_rows(folder / "words.txt", 1) if "\t" in row[0])
        train = self._by_class(folder, "train", wnids, self.train_images)
        test = self._test(folder, wnids)
        first = [words.get(wnid, wnid).partition(",")[0] for wnid in wnids]
        shared = Counter(first)
        names = tuple(f"{name} ({wnid})" if shared[name] > 1 else name for name, wnid in zip(first, wnids, strict=True))
        home = self.official.home(folder)
        return Listing(self.name, folder, home, names, (*train, *test), len(train), self.size, self.margin)

    def _by_class(self, folder: Path, split: str, wnids: Sequence[str], count: int) -> list[Picture]:
        """-> the images of SPLIT/WNID/images, or of SPLIT/WNID where there is no such folder: `count` of each class."""
        found, short = [], []
        for label, wnid in enumerate(wnids):
            place = f"{split}/{wnid}"
            place += "/images" * (folder / place / "images").is_dir()
            images = pictures(folder, place, label)
            found += images
            if len(images) != count:
                short.append((place, len(images), count))
        if short:
            raise self.official.not_whole(folder, short)
        return found

    def _test(self, folder: Path, wnids: Sequence[str]) -> list[Picture]:
        """-> the validation images, in the order of val_annotations.txt; those of copies in which they were moved to
        class folders, as they often are, by class."""
        annotations = folder / "val" / "val_annotations.txt"
        there = {picture.path: picture for picture in pictures(folder, "val/images", -1)}
        moved = any((folder / "val" / wnid).is_dir() for wnid in wnids)
        if moved and not (there and annotations.is_file()):
            return self._by_class(folder, "val", wnids, self.test_images)
        if len(there) != self.classes * self.test_images:
            raise self.official.not_whole(folder, [("val/images", len(there), self.classes * self.test_images)])
        labels = {wnid: label for label, wnid in enumerate(wnids)}
        test = []
        for name, wnid, _ in read_rows(annotations, 3):
            path = f"val/images/{name}"
            if path not in there or wnid not in labels:
                what = f"the class '{wnid}'" if wnid not in labels else f"the image {folder / path}"
                raise DataError(f"{annotations} names {what}, which is not there. {self.official.way_out(folder)}")
            test.append(there.pop(path)._replace(label=labels[wnid]))
        if there:
            raise DataError(
                f"{annotations} does not name the image {folder / next(iter(there))}. {self.official.way_out(folder)}"
            )
        return test
