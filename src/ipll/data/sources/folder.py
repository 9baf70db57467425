"""A folder of class folders: train/CLASS/* and test/CLASS/*."""

from __future__ import annotations

import os
from pathlib import Path

from ipll.data.pictures import Picture, folders, pictures
from ipll.data.prepare import Listing
from ipll.data.source import SOURCES
from ipll.data.sources.images import ImageSource
from ipll.errors import DataError

TEST_NAMES = ("test", "val")
LAYOUT = "A folder of class folders is train/CLASS/*.jpg and test/CLASS/*.jpg"


@SOURCES.register("folder")
class Folder(ImageSource):
    """Images of a class are in its folder or one level below it (CLASS/images/*)."""

    name = "folder"
    description = "your own images: the data root holds train/CLASS/* and test/CLASS/*, prepared at 224 x 224"
    margin = 1.0  # nothing is cut off that `ipll fit` would see

    def available(self, data_root: Path) -> bool:
        return held_out(data_root) is not None

    def listing(self, data_root: Path) -> Listing:
        test = held_out(data_root)
        if test is None:
            raise DataError(_explanation(data_root))
        names = folders(data_root / "train")
        if foreign := set(folders(data_root / test)) - set(names):
            raise DataError(
                f"{data_root / test / min(foreign)} is a class without a folder in {data_root / 'train'}. "
                "Training and test need the same classes."
            )
        splits: dict[str, list[Picture]] = {"train": [], test: []}
        for split, files in splits.items():
            for label, name in enumerate(names):
                images = pictures(data_root, f"{split}/{name}", label, below=1)
                if not images and not (data_root / split / name).is_dir():  # only a class of 'train' can be missing
                    raise DataError(
                        f"{data_root / split / name} is missing, but {data_root / 'train' / name} is there. "
                        f"{LAYOUT}: add images of the class to '{split}', or remove it from 'train'."
                    )
                if not images:
                    raise DataError(f"{data_root / split / name} holds no images. {LAYOUT}; remove an empty class.")
                files += images
        count, both = len(splits["train"]), (*splits["train"], *splits[test])
        return Listing(self.name, data_root, data_root, tuple(names), both, count, self.size, self.margin)


def held_out(data_root: Path) -> str | None:
    """-> the name of the folder of test images, where there is one and a 'train' beside it.

    A 'test' that has no class of 'train' gives way to a 'val' that has: such test images have no labels.
    """
    train = set(folders(data_root / "train"))
    found = {name: set(folders(data_root / name)) for name in TEST_NAMES}
    alike = [name for name in TEST_NAMES if train & found[name]]
    return next(iter(alike or (name for name in TEST_NAMES if train and found[name])), None)


def _explanation(data_root: Path) -> str:
    """-> what is wrong with a data root that is no folder of class folders."""
    if not data_root.is_dir():
        return f"there is no folder {data_root}. Set --data-root to the folder that holds 'train' and 'test'."
    parent = data_root.absolute().parent
    places = [data_root / name for name in folders(data_root)] + [parent] * (data_root.name in ("train", *TEST_NAMES))
    for place in places:
        if os.access(place, os.X_OK) and held_out(place):
            return f"you gave {data_root}; the images are in {place}: set --data-root to that."
    return f"{data_root} has no folders 'train' and 'test' that hold class folders. {LAYOUT}."
