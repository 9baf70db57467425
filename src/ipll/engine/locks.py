"""Locks between processes. One goes with its process, however that ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import BaseFileLock, FileLock, Timeout

from ipll.engine.files import OWNER, append_to, read_ours

POLL = 0.01  # seconds between two looks at a lock that another process has


def lock(path: Path, *, wait: bool) -> BaseFileLock:
    """Locks the file at `path` until it is released or the process ends.

    Without `wait`, BlockingIOError where another process has it. OSError where there is no regular file.
    """
    while True:
        with append_to(path) as probe:  # refuses links and pipes, which older versions of filelock would open
            held = FileLock(str(path), thread_local=False)
            try:
                held.acquire(timeout=-1 if wait else 0, poll_interval=POLL)
            except Timeout:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process has it", str(path)) from None
            except FileNotFoundError:
                continue  # removed just as some versions of filelock opened it
            if _is_still(path, probe):
                return held
            held.release()  # the one before us has removed the file that we waited for


def _is_still(path: Path, file: BinaryIO) -> bool:
    """Is the open file the one that lies at `path` now? Then it was all the time, and is the one locked."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def released(held: BaseFileLock) -> Iterator[None]:
    """Releases a lock at the end. (`with held` would lock it once more.)"""
    try:
        yield
    finally:
        held.release()


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Processes that use the same lock file wait for each other; the last one leaves no file behind."""
    with released(lock(path, wait=True)):
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes none that someone waits for
                path.unlink(missing_ok=True)


def owner_of(folder: Path) -> str:
    """-> who works on a locked folder, as `check_writable` wrote it."""
    try:
        return read_ours(folder / OWNER).decode("utf-8", "replace")[:100] or "another process"
    except OSError:
        return "another process"
