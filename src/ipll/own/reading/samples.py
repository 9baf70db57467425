"""Samples: what a table, raw votes or arrays have in common once they are read."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ipll.errors import DataError
from ipll.messages import counted
from ipll.own.reading.images import Images
from ipll.own.reading.problems import GAPS, UNSURE, Problems

WHOLE = re.compile(r"^([+-]?\d+)\.0+$")
BETWEEN = re.compile(r"\s*[;,/]\s*|\s+(?:or|and)\s+", re.IGNORECASE)  # what people write for a bar
TRAIN = "train"  # the split that is learnt from
REPLACE_IMAGES = "Restore or replace the images, or leave them out with --skip-bad (skip_bad=True)."


class Annotator(NamedTuple):
    name: str
    votes: int
    reliability: float  # how often the label seems to be known, from 0 to 1: the weight of a vote


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with their candidate sets: `features` or `images`, the other one is None. Photos that went through a
    pretrained network have both: what is learnt from is the features."""

    source: str  # the file they are from, for messages
    ids: list[str]
    rows: npt.NDArray[np.int64]  # [n], where a sample is in its source, as the user counts
    names: tuple[str, ...]  # class names, in the order of their first appearance
    candidates: npt.NDArray[np.bool_]  # [n, names]
    labels: npt.NDArray[np.int64]  # [n], index into names; -1 where there is none, or it is no one's candidate
    label_names: list[str]  # [n], the label as it was given, '' where there is none; only for evaluation
    split: list[str] | None = None
    votes: npt.NDArray[np.float32] | None = None  # [n, names], for each candidate, by the weight of who cast them
    annotators: tuple[Annotator, ...] = ()  # who cast the votes, the least reliable first
    features: npt.NDArray[np.float32] | None = None  # [n, d], NaN where a number is missing
    feature_names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # columns whose values are features of their own, 'habitat' of 'habitat=wood'
    images: Images | None = None
    skipped: list[tuple[int, str]] = field(default_factory=list)  # (row, reason)
    warnings: list[str] = field(default_factory=list)
    word: str = "row"  # what the user calls a row of the source
    numbered_in: str | None = None  # where ids are row numbers: the table, '' of arrays; None: they are the owner's

    @classmethod
    def bare(cls, source: str, ids: list[str], rows: npt.NDArray[np.int64], word: str) -> Samples:
        """-> samples as yet without classes, labels, features and images."""
        n = len(ids)
        return cls(source, ids, rows, (), np.zeros((n, 0), np.bool_), np.full(n, -1), [""] * n, word=word)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def foreign_labels(self) -> dict[str, int]:
        """-> the labels that are no one's candidate, with the number of samples."""
        counts: dict[str, int] = {}
        for index in np.flatnonzero(self.labels < 0).tolist():
            if name := self.label_names[index]:
                counts[name] = counts.get(name, 0) + 1
        return counts

    @property
    def learnt_from(self) -> npt.NDArray[np.bool_]:
        """-> which samples have the split 'train', or none [n]."""
        if self.split is None:
            return np.ones(len(self), np.bool_)
        return np.array([plain_split(name) in (TRAIN, "") for name in self.split], np.bool_)

    def take(self, index: npt.NDArray[np.int64]) -> Samples:
        """-> the samples at these positions. Classes that are no one's candidate any more are dropped."""
        candidates = self.candidates[index]
        kept = np.flatnonzero(candidates.any(0))
        position = np.full(len(self.names) + 1, -1)  # the last one is where a label of -1 looks
        position[kept] = np.arange(len(kept))
        chosen = index.tolist()
        return replace(
            self,
            ids=[self.ids[i] for i in chosen],
            rows=self.rows[index],
            names=tuple(self.names[k] for k in kept.tolist()),
            candidates=candidates[:, kept],
            labels=position[self.labels[index]],
            label_names=[self.label_names[i] for i in chosen],
            split=None if self.split is None else [self.split[i] for i in chosen],
            votes=None if self.votes is None else self.votes[index][:, kept],
            features=None if self.features is None else self.features[index],
            images=None if self.images is None else self.images.take(index),
        )

    def without(self, broken: dict[int, str]) -> Samples:
        """-> the samples without those whose image is broken (index -> reason); they are listed in `skipped`."""
        kept = np.setdiff1d(np.arange(len(self)), list(broken))
        if not len(kept):
            raise DataError(f"{self.source}: none of its {len(self):,} images can be read. Check the image column.")
        skipped = [(int(self.rows[index]), reason) for index, reason in sorted(broken.items())]
        return replace(self.take(kept), skipped=self.skipped + skipped) if broken else self

    def decoded(self, size: int | None = None, channels: int | None = None, *, skip_bad: bool = False) -> Samples:
        """-> the samples with their images in memory, as uint8 [n, channels, size, size].

        Images that cannot be decoded are left out where `skip_bad` says so; else they are a DataError.
        """
        if self.images is None or self.features is not None:
            return self
        array, broken = self.images.decode(size or self.images.side, channels)
        if not skip_bad:
            stop_at(broken, self.rows, Problems(self.source, self.word))
        held = replace(self, images=Images(array, array.shape[2], array.shape[1]))
        return held.without(broken)


def plain_split(name: str) -> str:
    return name.strip().lower()


def of_words(names: Sequence[str], words: Iterable[str]) -> npt.NDArray[np.bool_]:
    """-> which of the features are single words of the columns `words` [names]."""
    starts = tuple(f"{word}=" for word in words)
    return np.array([name.startswith(starts) for name in names], np.bool_)


def with_candidates(samples: Samples, names: tuple[str, ...], candidates: npt.NDArray[np.bool_]) -> Samples:
    """-> the samples with these classes and candidate sets, bool [n, names]; labels are looked up among the names."""
    position = {name: index for index, name in enumerate(names)}
    labels = np.array([position.get(name, -1) for name in samples.label_names], np.int64)
    return replace(samples, names=names, candidates=candidates, labels=labels)


def stop_at(broken: dict[int, str], rows: npt.NDArray[np.int64], problems: Problems) -> None:
    """Raises a DataError if there are broken images (index -> reason) or other problems."""
    for index, reason in broken.items():
        problems.add([rows[index]], reason, REPLACE_IMAGES)
    problems.stop()


def checked(samples: Samples, allow_one_class: bool) -> Samples:
    """-> the samples with warnings about their class names; a DataError where there is one class only."""
    classes = np.flatnonzero(samples.candidates.any(0))
    if len(classes) == 1 and not allow_one_class:
        raise DataError(
            f"{samples.source}: one class only, '{samples.names[classes[0]]}', in all {len(samples):,} samples. "
            "A classifier needs at least two; add samples of others."
        )
    warnings = look_alikes([*samples.names, *samples.foreign_labels])
    warnings += _of_nobody_who_knows(samples) + _of_lists(samples)
    if "-1" in samples.names and len(samples.names) > 2 and all(map(str.isdecimal, {*samples.names} - {"-1"})):
        warnings.append(
            f"{samples.source}: -1 is taken for a class like any other. If it means 'unlabelled', give all classes "
            "that the sample could be as its candidates."
        )
    if samples.names and (foreign := samples.foreign_labels):
        most = ", ".join(f"'{name}' ({n:,})" for name, n in list(foreign.items())[:5])
        more = f" and {len(foreign) - 5:,} more" if len(foreign) > 5 else ""
        warnings.append(f"{samples.source}: labels that are nobody's candidate: {most}{more}.")
    return replace(samples, warnings=samples.warnings + warnings)


def _of_nobody_who_knows(samples: Samples) -> list[str]:
    """-> a warning where a class is called as if it were missing, or not known."""
    counts = zip(samples.names, samples.candidates.sum(0).tolist(), strict=True)
    found = [(name, n) for name, n in counts if _said(name).replace("’", "'") in GAPS | UNSURE]
    if not found:
        return []
    told = ", ".join(f"{name!r} ({counted(n, 'time')})" for name, n in found)
    ways = "leave these votes out" if samples.votes is not None else "give all classes, in a table '*', or leave it out"
    return [
        f"{samples.source}: candidates that are taken for classes like any other: {told}. If they mean that "
        f"something is missing, or that nobody knows, {ways}."
    ]


def _of_lists(samples: Samples) -> list[str]:
    if not (lists := lists_of_others(samples.names)):
        return []
    told = ", ".join(map(repr, list(lists)[:5])) + ", ..." * (len(lists) > 5)
    return [
        f"{samples.source}: classes that look like several of the others, or like a doubt, and are taken for classes "
        f"of their own: {told}. Candidates of a table, and votes, have '|' between the names."
    ]


def check_spelling(known: Iterable[str], arriving: Iterable[str], source: str) -> list[str]:
    """Raises where a class that a model does not know is one that it knows, written otherwise: '1.0' for '1', or an
    accent in another coding. -> warnings of those that may be: another case, other spaces, the same number."""
    known = list(known)
    same, alike = {_written(name): name for name in known}, {_said(name): name for name in known}
    equal = {_number(name): name for name in known}
    warnings = []
    for name in arriving:
        if before := same.get(_written(name)):
            raise DataError(
                f"{source}: the class {name!r} would be new, but the model knows {before!r}, which is the same. Write "
                "it as before: an update cannot be undone."
            )
        for how, before in (
            ("differs only in case or spaces from", alike.get(_said(name))),
            ("is the same number as", equal.get(_number(name), "")),
        ):
            if before:
                warnings.append(
                    f"{source}: the class {name!r} is new, and {how} {before!r}, which the model knows. "
                    "An update cannot be undone."
                )
    return warnings


def _written(name: str) -> str:
    """-> a name, however its characters are coded, and a whole number without the '.0' that a table may give it."""
    return WHOLE.sub(r"\1", unicodedata.normalize("NFC", name))


def _number(name: str) -> float | str:
    """-> its value, if it is a number. Two may be codes of their own all the same: '1.1' and '1.10', '7' and '007'."""
    try:
        value = float(name)
    except ValueError:
        return name
    return value if math.isfinite(value) else name


def _said(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())


def look_alikes(names: Iterable[str], what: str = "class names", taken_for: str = "classes") -> list[str]:
    """-> a warning for each group of names that differ only in case, spaces or the coding of accents, or are the same
    number."""
    said = _groups(names, _said)
    told = [(group, _difference(group)) for group in said]
    told += [(group, "are the same number") for group in _groups([group[0] for group in said], _number)]
    return [
        f"the {what} {', '.join(map(repr, group))} {how}; they are taken for different {taken_for}."
        for group, how in told
        if len(group) > 1
    ]


def _groups(names: Iterable[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return list(groups.values())


def _difference(group: list[str]) -> str:
    accents = len(set(map(_written, group))) == 1
    return f"differ only in {'how accents are coded' if accents else 'case or spaces'}"


def recurring(names: Iterable[str], mark: str) -> float:
    """-> of what a mark separates in names, the share that is in several: most of it, where these are lists."""
    parts = {name: [part for one in name.split(mark) if (part := one.strip(" []()'\""))] for name in names}
    times = Counter(part for found in parts.values() for part in found)
    separated = {part for name, found in parts.items() if mark in name for part in found}
    return sum(times[part] > 1 for part in separated) / max(len(separated), 1)


def lists_of_others(names: Iterable[str], known: Iterable[str] = ()) -> dict[str, list[str]]:
    """-> names that are made of other names, as in 'robin or wren', 'robin/wren', 'robin?', and these."""
    names = list(names)
    alone = {_said(name): name for name in (*known, *names)}
    parts = {name: [_said(part) for part in BETWEEN.split(name.rstrip(" ?"))] for name in names}
    return {
        name: [alone[part] for part in found]
        for name, found in parts.items()
        if found != [_said(name)] and all(part in alone for part in found)
    }


def duplicates(ids: list[str], rows: npt.NDArray[np.int64], problems: Problems, remedy: str) -> None:
    """Notes each id that is there twice, with both rows."""
    first: dict[str, int] = {}
    for name, row in zip(ids, rows.tolist(), strict=True):
        if name and (before := first.setdefault(name, row)) != row:
            problems.add([row], f"id '{name}' is that of {problems.word} {before} too", remedy)
