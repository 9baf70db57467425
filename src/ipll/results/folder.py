"""The run folder: what a run leaves behind, and how two processes keep out of each other's way.

config.toml, environment.json and stream.npz are written first; metrics.jsonl grows; checkpoint/ holds the last two
checkpoints; result.json is written last, at once: where it is, the run is done.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np

from ipll.config import Config
from ipll.data.stream import Stream
from ipll.engine import checkpoint
from ipll.engine.files import lock, write_atomically, write_json, write_text
from ipll.errors import RunError


class RunFolder:
    """A folder locked by this process. The lock goes with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> RunFolder:
        """A folder for a new run; one that holds a run already is refused, unless it may be overwritten."""
        check_free(path, overwrite=overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {path}: {error.strerror}. Choose another --out.") from None
        folder = cls(path)
        for name in ("result.json", "config.toml", "metrics.jsonl", "gallery.npz", "report.html", "stream.npz"):
            (path / name).unlink(missing_ok=True)
        shutil.rmtree(path / "checkpoint", ignore_errors=True)
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run that was stopped."""
        if not (path / "config.toml").exists():
            raise RunError(f"{path}: there is no run here (no config.toml). Start one: ipll run PRESET --out {path}")
        return cls(path)

    def begin(self, config: Config, environment: dict[str, Any], stream: Stream, facts: dict[str, Any]) -> None:
        write_json(self.path / "facts.json", facts)
        stream.save(self.path / "stream.npz")
        write_json(self.path / "environment.json", environment)
        write_atomically(self.path / "config.toml", config.save)

    def facts(self) -> dict[str, Any]:
        """-> what the run was begun with; {} where an older version began it."""
        try:
            facts: dict[str, Any] = json.loads((self.path / "facts.json").read_text(encoding="utf-8"))
            return facts
        except FileNotFoundError:
            return {}

    def append_metrics(self, record: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def save_checkpoint(self, tensors: dict[str, Any], meta: dict[str, Any]) -> None:
        """Copies it now and writes it while the caller goes on; the last one must be on the disk by then."""
        lines = _lines(self.path / "metrics.jsonl")
        copied = checkpoint.copy(tensors, meta | {"metrics_lines": len(lines)})
        self.settle()
        self._writing = self._writer.submit(checkpoint.write, self.path / "checkpoint", copied)

    def settle(self) -> None:
        """Waits until the last checkpoint is on the disk, and says what the disk refused."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def load_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The newest whole checkpoint; metrics written after it are cut, since those steps will be done again."""
        found = checkpoint.load_latest(self.path / "checkpoint")
        metrics = self.path / "metrics.jsonl"
        kept = _lines(metrics)[: found.meta["metrics_lines"] if found else 0]
        write_text(metrics, "".join(kept))
        return found

    def save_gallery(self, gallery: list[dict[str, Any]], images: Any) -> None:
        write_atomically(self.path / "gallery.npz", lambda temporary: _save_gallery(temporary, gallery, images))

    def finish(self, result: dict[str, Any]) -> None:
        self.settle()
        write_json(self.path / "result.json", result)

    def close(self) -> None:
        self._writer.shutdown()
        self._lock.close()


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


def read_result(path: Path) -> dict[str, Any]:
    """-> result.json of a finished run."""
    file = path / "result.json"
    if not path.is_dir():
        raise RunError(f"{path}: there is no such run folder.")
    if not file.exists():
        unfinished = (path / "config.toml").exists()
        remedy = f"Finish it with: ipll resume {path}" if unfinished else "Name the folder of a run."
        raise RunError(f"{path}: there is no result.json here. {remedy}")
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{file}: damaged ({error}). Run it again with --overwrite.") from None
    return result


def _lines(path: Path) -> list[str]:
    """The whole lines of a file; a last one without its end was cut short."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _save_gallery(path: Path, gallery: list[dict[str, Any]], images: Any) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, images=images, samples=np.array(json.dumps(gallery)))


def _lock(path: Path) -> IO[str]:
    file = path / ".lock"
    try:
        return lock(file, wait=False)
    except BlockingIOError:
        owner = file.read_text(encoding="utf-8") or "another process"
        raise RunError(f"{path}: {owner} is working on this run. Wait for it, or choose another --out.") from None
