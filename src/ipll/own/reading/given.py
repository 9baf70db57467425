"""What a fit, an update or a prediction is given: a table, raw votes, or a folder of images; by split."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ipll.data.pictures import is_picture, passed_over, pictures
from ipll.errors import ConfigError, DataError
from ipll.messages import counted
from ipll.own.reading.columns import NO_CANDIDATES
from ipll.own.reading.images import image_files
from ipll.own.reading.problems import Problems
from ipll.own.reading.read import TEXT, accept, gather, read_table
from ipll.own.reading.samples import Samples, checked, plain_split
from ipll.own.reading.separators import check_separator
from ipll.own.reading.tables import open_table, release_memory
from ipll.own.reading.votes import read_votes

TEST = "test"
HEIC = (".heic", ".heif")  # what phones write
SHOWN = 3  # files in a message


class Given(NamedTuple):
    """Samples by their split: what is learnt from, what is only evaluated, and what is neither."""

    train: Samples
    test: Samples | None  # split 'test'
    others: dict[str, int]  # further splits, with their number of samples


def read_given(
    table: str | Path | None,
    votes: str | Path | None = None,
    *,
    min_votes: int = 1,
    skip_bad: bool = False,
    update: bool = False,
    known: Iterable[str] = (),
    classes: Iterable[str] = (),
) -> Given:
    """-> the samples to learn from. An update may bring one class only, a fit may not; `known` are the features of the
    model that it is for, and `classes` its classes: the candidate '*' stands for these, too.

    Images of the split 'test' are not decoded here: that is for the evaluation, which leaves out what is broken.
    """
    if votes is not None:
        samples = read_votes(
            votes, samples=table, min_votes=min_votes, skip_bad=skip_bad, allow_one_class=True, known=known
        )
    elif table is None:
        decided = ", or what people decided with --decisions FILE" if update else ""
        raise ConfigError(f"nothing to learn from. Give a TABLE, or raw votes with --votes FILE{decided}.")
    elif min_votes != 1:
        raise ConfigError("--min-votes counts raw votes, and there are none. Give them with --votes FILE.")
    else:
        samples = _read_table(Path(table), skip_bad, known, classes)
    given = _by_split(samples)
    checked(given.train, allow_one_class=update)
    release_memory()
    return given


def read_to_predict(source: Path, *, skip_bad: bool, known: Iterable[str] = ()) -> Samples:
    """-> the samples of a table, whose candidates do not matter, or all images in a folder and those within it, or
    one image."""
    if source.is_dir():
        return _read_folder(source, skip_bad)
    if is_picture(str(source)):
        return _read_image(source)
    return read_table(source, skip_bad=skip_bad, allow_one_class=True, unlabelled=True, known=known)


def of_split(samples: Samples, split: str | None) -> Samples:
    """-> the samples of this split; without one those of 'test' where there are any, else all."""
    splits = [plain_split(name) for name in samples.split or ()]
    wanted = plain_split(split) if split is not None else TEST if TEST in splits else None
    if wanted is None:
        return samples
    chosen = np.array([index for index, name in enumerate(splits) if name == wanted], np.int64)
    if not len(chosen):
        known = ", ".join(f"'{name}'" for name in dict.fromkeys(splits)) or "no column 'split'"
        raise DataError(f"{samples.source}: no {samples.word} of the split '{split}'. There: {known}.")
    return samples.take(chosen)


def _read_table(path: Path, skip_bad: bool, known: Iterable[str], classes: Iterable[str]) -> Samples:
    """-> all rows. Only those that are learnt from need candidates."""
    table = open_table(path, TEXT)
    problems = table.problems()
    unlabelled = {"split", "candidates"} <= set(table.columns)
    samples, broken = gather(table, problems, unlabelled=unlabelled, known=known, classes=classes)
    if "candidates" in table.columns:
        check_separator(table, samples, classes)
    if samples.split is not None:
        empty = samples.learnt_from & ~samples.candidates.any(1)
        problems.add(samples.rows[empty], "no candidates", NO_CANDIDATES)
    return accept(samples, broken, problems, skip_bad, image_size=None, allow_one_class=True)


def _by_split(samples: Samples) -> Given:
    if samples.split is None:
        return Given(samples, None, {})
    splits = np.array([plain_split(name) for name in samples.split])
    learnt = samples.learnt_from
    if not learnt.any():
        raise DataError(
            f"{samples.source}: nothing to learn from: no {samples.word} has the split 'train', or none. "
            "Correct the column 'split', or remove it."
        )
    test = np.flatnonzero(splits == TEST)
    names, counts = np.unique(splits[~learnt & (splits != TEST)], return_counts=True)
    return Given(
        samples.take(np.flatnonzero(learnt)),
        samples.take(test) if len(test) else None,
        dict(zip(names.tolist(), counts.tolist(), strict=True)),
    )


def _read_image(path: Path) -> Samples:
    """-> one image, as a folder of one."""
    images, broken = image_files([str(path)])
    samples = Samples.bare(str(path), [_name(path.name)], np.array([1]), "image")
    return accept(replace(samples, images=images), broken, Problems(str(path), "image"), False, None, True)


def _read_folder(folder: Path, skip_bad: bool) -> Samples:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(f"cannot read the folder {folder}: Permission denied. Check its permissions.")
    paths = [picture.path for picture in pictures(folder, below=math.inf)]
    notes = _others(folder)
    if not paths:
        raise DataError(" ".join([f"{folder} has no images in it. Name a folder of images, or a table.", *notes]))
    images, broken = image_files([os.path.join(folder, path) for path in paths])
    samples = Samples.bare(str(folder), [_name(path) for path in paths], np.arange(1, len(paths) + 1), "image")
    samples = replace(samples, images=images, warnings=notes)
    return accept(samples, broken, Problems(str(folder), "image"), skip_bad, None, True)


def _others(folder: Path) -> list[str]:
    """-> a warning of the files in a folder that are no images, those of a phone first."""
    names = sorted(passed_over(folder, below=math.inf), key=lambda name: not name.lower().endswith(HEIC))
    if not names:
        return []
    some = ", ".join(map(_name, names[:SHOWN])) + ", ..." * (len(names) > SHOWN)
    remedy = " Convert HEIC to JPEG or PNG." * names[0].lower().endswith(HEIC)
    files = counted(len(names), "file")
    return [f"{folder}: {files} ignored ({some}), whose ending is not that of an image that can be read.{remedy}"]


def _name(path: str) -> str:
    """-> a file's name as text; bytes of it that are not UTF-8 are shown, since no table could hold them."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
