"""The data sets that ipll knows by name. MEMBERS are their modules, which register themselves as they are imported."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from ipll.data.source import SOURCES, Source, SourceLoader, check_source
from ipll.data.sources.images import ImageSource
from ipll.errors import ConfigError

__all__ = ["SOURCES", "Source", "SourceLoader", "default_data_root", "image_source", "load_source"]

MEMBERS = ("cifar100", "cub200", "digits", "folder", "tiny_imagenet")

for _member in MEMBERS:
    import_module(f"{__name__}.{_member}")


def default_data_root() -> Path:
    """-> the folder in which data sets are kept: the environment variable IPLL_DATA, else ~/.cache/ipll."""
    return Path(os.environ.get("IPLL_DATA") or "~/.cache/ipll").expanduser()


def load_source(name: str, data_root: str | Path | None = None, size: int = 0) -> Source:
    """-> the data set called `name`, read from `data_root` and fetched to it where it is missing.

    `size` is that of the images, where they are resized; 0: the data set's own.
    """
    loader = image_source(name, size) if size else SOURCES[name]()
    return check_source(loader.load(Path(data_root) if data_root else default_data_root()))


def image_source(name: str, size: int = 0) -> ImageSource:
    """-> the data set of image files called `name`, which is prepared before it is used."""
    loader = SOURCES[name]()
    if not isinstance(loader, ImageSource):
        prepared = [other for other in SOURCES if issubclass(SOURCES[other], ImageSource)]
        raise ConfigError(
            f"'{name}' is ready as it comes, at one size: only {', '.join(prepared)} are prepared and have a size."
        )
    if size:
        if not 8 <= size <= 1024:
            raise ConfigError(f"the size of images is {size}: choose 8 to 1024.")
        loader.size = size
    return loader
