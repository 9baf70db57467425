"""The run folder: what a run leaves behind, and how two processes keep out of each other's way.

stream.npz and environment.json are written first, then manifest.json, which is sealed and vouches for stream.npz and
config.toml, and config.toml last: where it is, there is a run. metrics.jsonl grows; checkpoint/ holds the last two
checkpoints; result.json, sealed, is written last of all, at once: where it is, the run is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from filelock import BaseFileLock
from torch import Tensor

from ipll.config import Config, to_toml
from ipll.data.stream import Stream
from ipll.engine import checkpoint
from ipll.engine.files import (
    OWNER,
    append_to,
    check_no_others,
    check_writable,
    open_ours,
    read_ours,
    remove,
    remove_leftovers,
    sha256_of,
    write_atomically,
    write_json,
    write_text,
)
from ipll.engine.locks import lock, owner_of
from ipll.engine.sealed import check_digest, read_sealed, write_sealed
from ipll.errors import DataError, DiskError, RunError

MANIFEST = "manifest.json"
GUARDED = ("stream.npz", "config.toml")  # what the manifest vouches for
LOCKED = ("result.json", "config.toml", MANIFEST, "metrics.jsonl", "gallery.npz", "stream.npz")
OURS = (*LOCKED, "environment.json", "report.html", "checkpoint", "tensorboard", ".*")  # all that a run leaves
GIVEN = ("*.log", "*.txt", "*.out", "*.err", "*.toml", "*.py", "*.sh", "lost+found")  # of whoever starts it


class RunFolder:
    """A folder locked by this process. The lock goes with the process, however it ends.

    `notes` are for the user: what was damaged and could be done without.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self._lock = _lock(path)
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        try:
            remove_leftovers(path, (*LOCKED, "environment.json", OWNER).__contains__)
            with self._disk():
                check_writable(path)
        except DataError:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> RunFolder:
        """A folder for a new run; one that holds a run already is refused, unless it may be overwritten."""
        check_free(path, overwrite=overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {path}: {error.strerror}. Choose another --out.") from None
        folder = cls(path)
        try:
            for name in (*LOCKED, "report.html"):
                remove(path / name)
            checkpoint.clear(path / "checkpoint")
        except DataError:
            folder.close()
            raise
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run that was stopped."""
        if not (path / "config.toml").exists():
            raise RunError(f"{path}: there is no run here (no config.toml). Start one: ipll run PRESET --out {path}")
        check_whole(path)
        return cls(path)

    def begin(
        self,
        config: Config,
        environment: Mapping[str, Any],
        stream: Stream,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Writes what the run is resumed from. `facts` are the caller's, ready for JSON, and sealed."""
        text = to_toml(config.to_table())
        with self._disk():
            stream.save(self.path / "stream.npz")
            write_json(self.path / "environment.json", environment)
            digests = (sha256_of(self.path / "stream.npz"), hashlib.sha256(text.encode()).hexdigest())
            manifest = {"files": dict(zip(GUARDED, digests, strict=True)), "facts": dict(facts)}
            write_sealed(self.path / MANIFEST, manifest)
            write_text(self.path / "config.toml", text)

    def facts(self) -> Mapping[str, Any]:
        """-> what the caller of `begin` gave; nothing of a run of an older version."""
        return read_facts(self.path)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        if self._writing and self._writing.done():
            self.settle()  # tells at once what the disk refused
        file = self.path / "metrics.jsonl"
        try:
            with append_to(file) as metrics:
                metrics.write((json.dumps(record, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise self._refused(file, error.strerror or str(error)) from error

    def save_checkpoint(self, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Copies it now and writes it while the caller goes on; the last one must be on the disk by then."""
        copied = checkpoint.copy(tensors, {**meta, "metrics_lines": len(metrics_lines(self.path))})
        self.settle()
        self._writing = self._writer.submit(checkpoint.write, self.path / "checkpoint", copied)

    def settle(self) -> None:
        """Waits until the last checkpoint is on the disk, and says what the disk refused."""
        writing, self._writing = self._writing, None
        if writing:
            with self._disk():
                writing.result()

    def load_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The newest whole checkpoint; metrics written after it are cut, since those steps will be done again."""
        found, passed = checkpoint.look(self.path / "checkpoint")
        self.notes += passed
        kept = metrics_lines(self.path)[: found.meta["metrics_lines"] if found else 0]
        with self._disk():
            write_atomically(self.path / "metrics.jsonl", lambda temporary: temporary.write_bytes(b"".join(kept)))
        return found

    def save_gallery(self, gallery: Sequence[Mapping[str, Any]], images: Any) -> None:
        def save(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, images=images, samples=np.array(json.dumps(gallery)))

        with self._disk():
            write_atomically(self.path / "gallery.npz", save)

    def finish(self, result: Mapping[str, Any]) -> None:
        self.settle()
        with self._disk():
            write_sealed(self.path / "result.json", result)

    def close(self) -> None:
        self._writer.shutdown()
        with suppress(DataError):  # a disk that became read-only
            remove(self.path / OWNER)
        self._lock.release()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Says how to go on where the disk refuses."""
        try:
            yield
        except DiskError as error:
            raise self._refused(error.path, error.reason) from error

    def _refused(self, file: Path, reason: str) -> DiskError:
        begun = (self.path / "config.toml").exists()
        again = f"then: ipll resume {self.path}" if begun else "then run it again, or choose another --out"
        return DiskError(file, reason, f"Make room, or make {self.path} writable, {again}.")


def check_free(path: Path, *, overwrite: bool = False) -> None:
    """Raises unless a new run may use this folder."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise RunError(f"{place} is a file, not a folder: choose another --out.")
    if overwrite:
        return
    if (path / "result.json").exists():
        raise RunError(f"{path} already holds a finished run. Choose another --out, or replace it with --overwrite.")
    if (path / "config.toml").exists():
        raise RunError(f"{path} already holds a run. Continue it with: ipll resume {path}, or replace it: --overwrite.")
    check_no_others(path, (*OURS, *GIVEN))


AGAIN = "Run it again with --overwrite."


def read_result(path: Path, remedy: str = AGAIN) -> Mapping[str, Any]:
    """-> result.json of a finished run. `remedy` is what the caller says of a damaged one."""
    file = path / "result.json"
    if not path.is_dir():
        raise RunError(f"{path}: there is no such run folder.")
    if not file.exists():
        unfinished = (path / "config.toml").exists()
        remedy = f"Finish it with: ipll resume {path}" if unfinished else "Name the folder of a run."
        raise RunError(f"{path}: there is no result.json here. {remedy}")
    try:
        return read_sealed(file)
    except ValueError as error:
        raise RunError(f"{file}: damaged: it {error}. {remedy}".rstrip()) from None
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror or error}.") from None


def check_whole(path: Path) -> None:
    """Raises a RunError unless the run's configuration and stream are those that it was begun with. Of a run of an
    older version, which has no manifest, only that they are files."""
    guarded = _manifest(path).files
    for name in GUARDED:
        file = path / name
        try:
            check_digest(file, guarded[name]) if guarded else open_ours(file).close()
        except (ValueError, KeyError) as error:
            raise RunError(f"{file}: damaged ({error}). Start again with --overwrite.") from None
        except OSError as error:
            raise RunError(
                f"{file}: cannot be read: {error.strerror or error}. Without it, start again with --overwrite."
            ) from None


def read_facts(path: Path) -> Mapping[str, Any]:
    """-> what the caller of `RunFolder.begin` gave; nothing of a run of an older version."""
    return _manifest(path).facts


class Manifest(NamedTuple):
    files: Mapping[str, str]  # the SHA-256 of each of GUARDED
    facts: Mapping[str, Any]


def _manifest(path: Path) -> Manifest:
    """-> that of a run; empty for one of an older version."""
    file = path / MANIFEST
    try:
        found = read_sealed(file)
        if not (isinstance(found.get("files"), dict) and isinstance(found.get("facts"), dict)):
            raise ValueError("is no manifest")
        return Manifest(found["files"], found["facts"])
    except FileNotFoundError:
        return Manifest({}, {})
    except ValueError as error:
        raise RunError(f"{file}: damaged: it {error}. Start again with --overwrite.") from None
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror or error}. Start again with --overwrite.") from None


def metrics_lines(path: Path) -> list[bytes]:
    """-> the whole lines of a run's metrics.jsonl; a last one without its end was cut short."""
    file = path / "metrics.jsonl"
    try:
        return [line for line in read_ours(file).splitlines(keepends=True) if line.endswith(b"\n")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror or error}.") from None


def _lock(path: Path) -> BaseFileLock:
    try:
        return lock(path / ".lock", wait=False)
    except BlockingIOError:
        raise RunError(
            f"{path}: {owner_of(path)} is working on this run. Wait for it, or choose another --out."
        ) from None
    except OSError as error:
        raise RunError(
            f"cannot lock {path / '.lock'}: {error.strerror or error}. If the disk is read-only, work on a copy."
        ) from None
