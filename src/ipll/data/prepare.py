"""Preparation: the images of a data set, decoded and resized once, in one file that is then mapped into memory.

A prepared data set is a folder of two files. `images-DIGEST.npy` holds uint8 [n, 3, size, size], training images first.
`index.json` says what they are: class names, split, and path, label, size and time of each image file, which of them
were left out and why, with the SHA-256 of the images and of itself. It is written last and names the file it belongs
to, so there is never a moment when something half-written could be taken for whole. Until then the images go, in order,
to `images.part`, and `progress.json` says how many files are dealt with, their images safely on the disk: a preparation
that was killed goes on from there.

Threads share the work: decoding and resizing run outside Python's lock, and a script that calls `ipll.run` needs no
guard against being imported anew by worker processes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import time
from collections.abc import Container, Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from filelock import BaseFileLock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ipll.data.pictures import Picture, Pixels, Unreadable, read_pictures
from ipll.engine.files import sha256_of, write_json, write_text
from ipll.engine.locks import lock, released
from ipll.engine.regular import check_regular, clear_link
from ipll.errors import DataError, Interrupted
from ipll.messages import tell

VERSION = 2  # 2: images as `ipll fit` reads them, turned by their EXIF, 16 bits as 8; some may be left out
KEEP_SECONDS = 2.0  # between two notes of how far it has got

Facts = dict[str, Any]
Skipped = dict[int, str]  # position in a listing -> why the image cannot be used
B = TypeVar("B", bound=Sized)


@dataclass(frozen=True)
class Listing:
    """The image files of a data set, and how they are to be resized."""

    dataset: str
    folder: Path
    home: Path  # where the prepared images go, in a folder .ipll
    class_names: tuple[str, ...]
    pictures: tuple[Picture, ...]  # training images first
    train: int  # how many are for training
    size: int
    margin: float  # see `pictures.read_picture`

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.pictures), 3, self.size, self.size)

    def table(self) -> Facts:
        """-> what an index says about it."""
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "size": self.size,
            "margin": self.margin,
            "class_names": list(self.class_names),
            "train": self.train,
            "files": [list(picture) for picture in self.pictures],
        }

    def without(self, skipped: Container[int]) -> Listing:
        """-> the listing without the images at these positions. Each class must keep some, of training and of test."""
        kept = [i for i in range(len(self.pictures)) if i not in skipped]
        groups = [(i >= self.train, picture.label) for i, picture in enumerate(self.pictures)]
        if lost := set(groups) - {groups[i] for i in kept}:
            test, label = min(lost)
            raise DataError(
                f"none of the {'test' if test else 'training'} images of class '{self.class_names[label]}' in "
                f"{self.folder} can be read. Replace them, or remove the class."
            )
        train = sum(i < self.train for i in kept)
        return replace(self, pictures=tuple(self.pictures[i] for i in kept), train=train)


class Prepared(NamedTuple):
    """A data set whose images are mapped into memory."""

    place: Path  # its folder
    images: Pixels  # [n, 3, size, size], read-only
    listing: Listing  # of these images
    skipped: list[str]  # what was left out: path and reason


class Unfit(Exception):
    """A folder does not hold the prepared images. The message says why where they were there once."""


def cache_root() -> Path:
    """-> where things are kept that cannot be written below the data root."""
    return Path("~/.cache/ipll").expanduser()


def prepare(
    listing: Listing, data_root: Path, *, jobs: int = 0, verify: bool = False, skip_bad: bool = False
) -> Prepared:
    """-> the prepared data set. Where it is missing or no longer fits the image files, it is made first, by `jobs`
    threads (0: one per core).

    verify: reads all of it once, and makes it anew where its checksum is wrong.
    skip_bad: images that cannot be read are left out; else the first is an error. What was made without them is used
    from then on, unless it is to be verified and they are not to be skipped.
    """
    places = _places(listing, data_root)
    whole = verify and not skip_bad
    for place in places:
        with suppress(Unfit):
            return _open(place, listing, verify, whole)
    place, claim = _claim(places)
    with released(claim):
        try:
            return _open(place, listing, verify, whole)  # another process has made it meanwhile
        except Unfit as unfit:
            if str(unfit):
                tell(f"{place}: {unfit}. It is prepared again.")
        try:
            return _make(place, listing, jobs, skip_bad)
        except KeyboardInterrupt:
            message = f"Stopped. What is prepared of {listing.folder} is kept: the same command goes on from there."
            raise Interrupted(message, signal.SIGINT) from None
        except Unreadable as unreadable:
            raise DataError(
                f"{unreadable}. Replace it, or leave out all that cannot be read: ipll prepare {listing.dataset} "
                f"--size {listing.size} --data-root {data_root} --skip-bad"
            ) from unreadable
        except OSError as error:
            needed = np.prod(listing.shape) / 1e9
            raise DataError(
                f"cannot write {place}: {error.strerror or error}. It takes {needed:.1f} GB; make room, or use "
                "another --data-root."
            ) from error


def _places(listing: Listing, data_root: Path) -> list[Path]:
    """-> where the prepared data set may be: at its home, whatever the data root was called; where it used to be put,
    in the data set's folder or the data root; else in the user's cache."""
    home, folder, root = (Path(os.path.abspath(path)) for path in (listing.home, listing.folder, data_root))
    above = [root] if folder.is_relative_to(root) else []
    name = f"{listing.dataset}-{listing.size}"
    told_apart = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    near = dict.fromkeys((home, folder, *above))
    return [*(place / ".ipll" / name for place in near), cache_root() / "prepared" / f"{name}-{told_apart}"]


def _claim(places: list[Path]) -> tuple[Path, BaseFileLock]:
    """-> the first place that can be written, and its lock."""
    refused = ""
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            try:
                claim = lock(place / ".lock", wait=False)
            except BlockingIOError:
                tell(f"{place}: another process prepares it; waiting.")
                claim = lock(place / ".lock", wait=True)
        except OSError as error:
            refused = refused or f"{place} ({error.strerror or error})"
            continue
        if refused:
            tell(f"Cannot write {refused}: the prepared images go to {place}.")
        return place, claim
    raise DataError(f"cannot write {refused}, nor {places[-1]}. Use a --data-root that can be written.")


def _open(place: Path, listing: Listing, verify: bool, whole: bool) -> Prepared:
    """-> the prepared images, if they are those of the listing; all of them, where `whole` says so."""
    path = place / "index.json"
    try:
        check_regular(path)
        index = json.loads(path.read_text(encoding="utf-8"))
        if index.pop("checksum") != _digest(index):
            raise ValueError
    except (FileNotFoundError, NotADirectoryError):
        raise Unfit from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Unfit("its index is damaged") from None
    if difference := _difference(index, listing.table()):
        raise Unfit(difference)
    try:
        skipped: Skipped = {int(position): str(reason) for position, reason in index["skipped"]}
        if not re.fullmatch(r"images-[0-9a-f]+\.npy", index["images"]):  # nothing outside the folder
            raise ValueError
        check_regular(place / index["images"])
        images = np.lib.format.open_memmap(place / index["images"], mode="r")
    except (OSError, ValueError, KeyError, TypeError):
        raise Unfit("its images are missing or cut short") from None
    if whole and skipped:
        raise Unfit(f"{len(skipped):,} images that could not be read are not in it")
    kept = listing.without(skipped) if skipped else listing
    if images.dtype != np.uint8 or images.shape != kept.shape:
        raise Unfit("its images are not what its index says")
    if verify and sha256_of(place / index["images"]) != index.get("sha256"):
        raise Unfit("its images have a wrong checksum")
    return Prepared(
        place,
        images,
        kept,
        [f"{picture.path} {skipped[i]}" for i, picture in enumerate(listing.pictures) if i in skipped],
    )


def _difference(index: Facts, expected: Facts) -> str:
    if all(index.get(key) == value for key, value in expected.items()):
        return ""
    if index.get("version") != expected["version"]:
        return "it was prepared by another version of ipll"
    if not isinstance(index.get("files"), list) or not all(isinstance(row, list) and row for row in index["files"]):
        return "its index is damaged"
    before, now = ({str(row[0]): row for row in table["files"]} for table in (index, expected))
    changed = sum(before[path] != row for path, row in now.items() if path in before)
    counts = f"{len(now.keys() - before)} image files added, {len(before.keys() - now)} removed, {changed} changed"
    return f"the data set has changed since it was prepared ({counts})"


def _make(place: Path, listing: Listing, jobs: int, skip_bad: bool) -> Prepared:
    """Decodes what is not yet decoded, and makes the whole known."""
    part, note, table = place / "images.part", place / "progress.json", listing.table()
    skipped = _decode(part, note, _digest(table), listing, jobs, skip_bad)
    digest = sha256_of(part)
    images = place / f"images-{digest[:16]}.npy"
    part.replace(images)
    table |= {"images": images.name, "sha256": digest, "skipped": list(skipped.items())}
    write_text(place / "index.json", json.dumps(table | {"checksum": _digest(table)}))
    note.unlink()
    for old in place.glob("images-*.npy"):
        if old != images:
            old.unlink()  # a process that has mapped it keeps it until it ends
    return _open(place, listing, verify=False, whole=False)


def _decode(part: Path, note: Path, plan: str, listing: Listing, jobs: int, skip_bad: bool) -> Skipped:
    """Adds to `part` the images that it lacks, and notes now and then how far this `plan` has got -> those left out."""
    head, each = _head(listing), int(np.prod(listing.shape[1:]))
    done, skipped = _progress(note, plan)
    if skipped and not skip_bad:  # the first of them is tried again
        done, skipped = min(skipped), {}
    clear_link(part)
    if not part.exists() or part.stat().st_size < len(head) + (done - len(skipped)) * each:
        done, skipped = 0, {}
    tell(
        f"Preparing {len(listing.pictures) - done:,} images of {listing.folder} at {listing.size} x {listing.size} "
        f"in {part.parent}{f', after {done:,} that are there' if done else ''}. This is done once."
    )
    with part.open("r+b" if done else "wb") as file:
        file.write(head)
        file.truncate(len(head) + (done - len(skipped)) * each)
        file.seek(0, os.SEEK_END)

        def keep() -> float:
            file.flush()
            os.fsync(file.fileno())
            write_json(note, {"plan": plan, "images": done, "skipped": list(skipped.items())})
            return time.monotonic()

        kept = keep()
        paths = [listing.folder / picture.path for picture in listing.pictures[done:]]
        try:
            for block in _shown(read_pictures(paths, listing.size, margin=listing.margin, jobs=jobs), listing, done):
                for found in block:
                    if not isinstance(found, Unreadable):
                        file.write(found.data)
                    elif skip_bad:
                        skipped[done] = found.reason
                    else:
                        raise found
                    done += 1
                if time.monotonic() - kept >= KEEP_SECONDS:
                    kept = keep()
        finally:
            keep()
        file.seek(0)
        file.write(_head(listing.without(skipped)))  # as long as the first: NumPy leaves room for a count to change
    return skipped


def _head(listing: Listing) -> bytes:
    """-> the first bytes of a .npy file of its images."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": listing.shape})
    return head.getvalue()


def _progress(note: Path, plan: str) -> tuple[int, Skipped]:
    """-> how many image files of this very plan are dealt with, and which of them cannot be used."""
    try:
        check_regular(note)
        found = json.loads(note.read_text(encoding="utf-8"))
        done = int(found["images"]) if found["plan"] == plan else 0
        return max(0, done), {
            int(position): str(reason) for position, reason in found["skipped"] if 0 <= position < done
        }
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0, {}


def _shown(blocks: Iterable[B], listing: Listing, done: int) -> Iterator[B]:
    """Passes the blocks on and shows a bar, where stderr is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        shown = bar.add_task(listing.folder.name, total=len(listing.pictures), completed=done)
        for block in blocks:
            yield block
            bar.advance(shown, len(block))


def _digest(table: Facts) -> str:
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()
