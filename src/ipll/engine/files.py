"""Files of our own folders: written whole or not at all, never through a link, and read only where they are files.

A folder may come from anywhere: unpacked, shared, or half destroyed. So what lies under one of our names is trusted to
be a regular file only once it has been looked at.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ipll.errors import ConfigError, DataError, DiskError, RunError

OWNER = ".owner"  # who works on a folder now
LINK = "it is a symbolic link, and ipll follows none within its folders: remove it"
ODD = "it is no regular file: remove it"
SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+\.tmp")


def open_ours(path: Path) -> BufferedReader:
    """Opens a file of a folder of ours. OSError where it is a link, or a pipe, on which one would wait for good."""
    return open(path, "rb", opener=_open_regular)


def append_to(path: Path) -> BufferedWriter:
    """The same, to write at its end; it is made where it is missing."""
    return open(path, "ab", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    with suppress(FileNotFoundError):
        _check_regular(os.lstat(path).st_mode, path)
    descriptor = os.open(path, flags | SAFE, 0o666)
    try:
        _check_regular(os.fstat(descriptor).st_mode, path)  # again: it may have been exchanged
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(mode: int, path: str) -> None:
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, LINK, path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, ODD, path)


def read_ours(path: Path) -> bytes:
    """-> the content of a file of ours."""
    with open_ours(path) as file:
        return file.read()


def parse_json(content: bytes | str) -> Any:
    """-> the value; a ValueError where it is none, also where it is nested too deeply to be one of ours."""
    try:
        return json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_folder(path: Path) -> None:
    """Refuses a link in place of a folder within one of ours: what is written or removed there is someone else's."""
    if path.is_symlink():
        raise DataError(f"{path}: {LINK}.")
    if path.exists() and not path.is_dir():
        raise DataError(f"{path} should be a folder: remove the file.")


def make_folder(path: Path) -> None:
    """Makes a folder within one of ours, unless it is there."""
    check_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(path, _reason(error)) from error


def remove(path: Path) -> None:
    """Removes a file of ours, or a link in its place, if there is one."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"cannot remove {path}: {error.strerror or error}. Remove it yourself.") from error


def remove_files(folder: Path, ours: Callable[[str], object]) -> None:
    """Removes the files of `folder` whose names are `ours`, and what is left over of such ones."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if ours(path.name):
            remove(path)
    remove_leftovers(folder, ours)


def remove_leftovers(folder: Path, ours: Callable[[str], object]) -> None:
    """Removes what killed processes have left of writing files of these names; for who alone may write there."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if (unfinished := TEMPORARY.fullmatch(path.name)) and ours(unfinished["name"]):
            remove(path)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path beside `path`, brings the file to the disk and renames it.

    Missing folders are made. What the disk refuses is a DiskError, whatever kind of error the writer made of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # another's, or a link: never written through
        try:
            mode = _create(temporary)
            write(temporary)
            temporary.chmod(mode)  # some writers (safetensors) make files that only their owner can read
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except _refusals() as error:
        raise DiskError(path, _reason(error)) from error


def _create(path: Path) -> int:
    """Makes an empty file where there is nothing -> its mode."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | SAFE, 0o666)
    try:
        return os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)


def _refusals() -> tuple[type[Exception], ...]:
    """What writers raise where a disk refuses; Arrow's own kind only where it is loaded at all."""
    arrow = sys.modules.get("pyarrow")
    return (OSError, SafetensorError, arrow.ArrowException) if arrow else (OSError, SafetensorError)


def _reason(error: Exception) -> str:
    """-> in few words: those of the system, where the error has them."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    code = re.search(r"\(os error (\d+)\)", str(error))  # so safetensors tells it
    return os.strerror(int(code[1])) if code else str(error)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(text.encode("utf-8")))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def check_writable(folder: Path) -> None:
    """Writes who works here, a small file: a disk that is full or read-only is found before hours of training."""
    write_text(folder / OWNER, f"process {os.getpid()}")


def check_out(path: Path, ending: str) -> None:
    """Refuses what could not be written, before any work is done: a file of this one kind."""
    if path.suffix.lower() != ending:
        raise ConfigError(f"--out must end in {ending}, got '{path}'.")
    if path.is_dir():
        raise ConfigError(f"--out must be a file, but '{path}' is a folder: name a file in it.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out is '{path}', but '{folder}' is no folder that can be written to: choose another.")


def check_no_others(folder: Path, ours: Iterable[str]) -> None:
    """Refuses a folder for something new in which anything lies that is called like none of `ours`, which are patterns:
    our files among a user's own are hard to tell apart, and to remove."""
    try:
        others = sorted(path.name for path in folder.iterdir() if not any(map(path.match, ours)))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot look into {folder}: {error.strerror}. Choose another --out.") from None
    if others:
        raise RunError(f"{folder} holds other files, such as {others[0]}. Choose a new folder with --out.")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
