"""The errors a user can meet. Each message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class IpllError(Exception):
    """Base of every error that ipll raises on purpose; the command line prints it and exits with status 2."""


class ConfigError(IpllError, ValueError):
    """A setting is unknown, of the wrong type or out of range, or two settings do not go together."""


class DataError(IpllError, ValueError):
    """A data file is missing, damaged or not what it should be."""


class DiskError(DataError):
    """A file cannot be written: the disk is full or read-only, or something is in the way."""

    def __init__(self, path: Path, reason: str, way_out: str = "Make room, or choose another place.") -> None:
        super().__init__(f"cannot write {path}: {reason}. {way_out}")
        self.path, self.reason = path, reason


class RunError(IpllError):
    """A run cannot start, continue or be read: its folder is taken, finished, damaged, or training diverged."""


class NewerVersion(RunError):
    """A file was written by a version of ipll to come: it is whole, but cannot be read here."""


class Interrupted(IpllError):
    """A run was asked to stop and has left a checkpoint. `signal` is the number of the signal that asked."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def suggest(word: str, known: Iterable[str], overview: Iterable[str] | None = None) -> str:
    """-> ' Did you mean ...?' for the nearest known word; where nothing is near, the list of what is known, or of the
    `overview` where that would be too long."""
    names = sorted(known)
    if not names:
        return " There are none."
    return nearest(word, names) or f" Known: {', '.join(overview or names)}."


def nearest(word: str, known: Iterable[str]) -> str:
    """-> ' Did you mean ...?' for the nearest known word, or nothing."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6) or [n for n in names if n.endswith("." + word)][:1]
    return f" Did you mean '{near[0]}'?" if near else ""
