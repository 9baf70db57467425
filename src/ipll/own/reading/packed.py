"""Files of text that gzip may have packed (.csv.gz): opened as if it had not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from ipll.engine import machine
from ipll.errors import DataError

PACKABLE = (".csv", ".tsv", ".jsonl", ".ndjson")
PIECE = 2**20  # bytes


def ending(path: Path) -> str:
    """-> what a file is by its name: '.csv' of 'birds.csv' and of 'birds.csv.gz'."""
    inner = Path(path.stem).suffix.lower()
    return inner if is_packed(path) else path.suffix.lower()


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz" and Path(path.stem).suffix.lower() in PACKABLE


def open_bytes(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if is_packed(path) else path.open("rb")


def check_packed(path: Path) -> None:
    """A DataError where what is packed is damaged, or would not fit into memory: a gigabyte of blanks takes one
    megabyte."""
    if not is_packed(path):
        return
    left = machine.memory()
    try:
        with open_bytes(path) as file:
            while piece := file.read(PIECE):
                left -= len(piece)
                if left < 0:
                    raise DataError(f"{path} would unpack to more than this machine's memory could hold.")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). Pack it again: gzip {path.stem}.") from error
