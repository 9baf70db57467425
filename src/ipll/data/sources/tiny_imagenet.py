"""Tiny-ImageNet-200 (Le and Yang, 2015), in its official layout. Its validation images, which have labels, are the
test set, as everywhere; its test images have none."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ipll.data.pictures import pictures
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
        train = [pictures(folder, f"train/{wnid}/images", label) for label, wnid in enumerate(wnids)]
        short = [
            (f"train/{wnid}/images", len(found), self.train_images)
            for wnid, found in zip(wnids, train, strict=True)
            if len(found) != self.train_images
        ]
        there = {picture.path: picture for picture in pictures(folder, "val/images", -1)}
        if len(there) != self.classes * self.test_images:
            short.append(("val/images", len(there), self.classes * self.test_images))
        if short:
            raise self.official.not_whole(folder, short)
        labels = {wnid: label for label, wnid in enumerate(wnids)}
        test = []
        for name, wnid, _ in read_rows(folder / "val" / "val_annotations.txt", 3):
            path = f"val/images/{name}"
            if path not in there or wnid not in labels:
                what = f"the class '{wnid}'" if wnid not in labels else f"the image {folder / path}"
                raise DataError(
                    f"{folder / 'val' / 'val_annotations.txt'} names {what}, which is not there. "
                    f"{self.official.way_out(folder)}"
                )
            test.append(there.pop(path)._replace(label=labels[wnid]))
        if there:
            raise DataError(
                f"{folder / 'val' / 'val_annotations.txt'} does not name the image {folder / next(iter(there))}. "
                f"{self.official.way_out(folder)}"
            )
        files = tuple(picture for found in train for picture in found)
        names = tuple(words.get(wnid, wnid).partition(",")[0] for wnid in wnids)
        return Listing(self.name, folder, names, (*files, *test), len(files), self.size, self.margin)
