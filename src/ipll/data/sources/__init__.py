"""The data sets that ipll knows by name, one file each. Importing this package registers them."""

from __future__ import annotations

import os
from pathlib import Path

from ipll.data.source import SOURCES, Source
from ipll.data.sources import cifar100, digits

__all__ = ["cifar100", "default_data_root", "digits", "load_source"]


def default_data_root() -> Path:
    """-> the folder in which data sets are kept: the environment variable IPLL_DATA, else ~/.cache/ipll."""
    return Path(os.environ.get("IPLL_DATA") or "~/.cache/ipll").expanduser()


def load_source(name: str, data_root: Path | None = None) -> Source:
    """-> the data set called `name`, read from `data_root` and fetched to it where it is missing."""
    return SOURCES[name]().load(data_root or default_data_root())
