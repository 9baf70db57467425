"""Files that are whole or not there: written under a temporary name, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ipll.errors import DataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def lock(path: Path, *, wait: bool) -> IO[str]:
    """Opens `path` and locks it until it is closed or the process ends, however it ends. Its text names the owner.

    Without `wait`, BlockingIOError where another process has it.
    """
    file = path.open("a+", encoding="utf-8")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            file.close()
            raise
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()}")
    file.flush()
    return file


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Processes that use the same lock file wait for each other; the last one leaves no file behind."""
    while True:
        with lock(path, wait=True) as file:
            if not _is_still(path, file):
                continue  # the one before us has removed the file that we waited for
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_still(path: Path, file: IO[str]) -> bool:
    """Is the open file the one that lies at `path` now?"""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path beside `path`, brings the file to the disk and renames it.

    Missing folders are made. What the disk refuses is a DataError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # some writers (safetensors) make files that only their owner can read
            write(temporary)
            temporary.chmod(mode)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}. Choose another place, or make room."
        ) from error


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
