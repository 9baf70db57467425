"""Claims: two processes never work on the same cell at once, on one machine or on a shared file system.

A cell's claims are numbered files, claims/000001.json and so on; the highest number counts. Taking a cell means making
the next number with O_EXCL, which only one of several rivals can do. No claim is ever renamed, replaced or removed, so
a rival that is late finds its number taken; and a holder writes only to its own file, so one that was asleep cannot
harm its successor's. While it works, the holder rewrites its file in place every few seconds: the beat. A claim is
free where its holder has released it, or is a process of this machine that is gone, or has shown no change for
`stale` seconds of the *watcher's* clock. Clocks of two machines are never compared.

A holder that could not beat for half of that time (suspended, or cut off from the disk) no longer trusts its claim: it
competes for the next number like everyone else, and stops if it loses.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ipll.engine.files import make_folder, parse_json, read_ours

STALE = 60.0  # seconds
BEATS = 20  # so many within that time
SIZE = 1024  # bytes of a claim: every beat overwrites the one before


class ClaimLost(BaseException):
    """Another process has taken the cell over: stop, and write nothing. No Exception, so that no part swallows it."""


class HeldClaim(NamedTuple):
    """A claim as others see it."""

    number: int
    raw: bytes
    record: Mapping[str, Any]  # empty where it was never written

    @property
    def over(self) -> bool:
        """Released, or of a process of this machine that is gone."""
        if self.record.get("released"):
            return True
        pid, started = self.record.get("pid"), self.record.get("started")
        if self.record.get("machine") != _machine() or not isinstance(pid, int) or not isinstance(started, str):
            return False
        return not _alive(pid, started)


class Watch:
    """Judges claims by whether they change, on this process's own clock."""

    def __init__(self, stale: float = STALE) -> None:
        self.stale = stale
        self._seen: dict[Path, tuple[int, bytes, float]] = {}

    def look(self, folder: Path) -> tuple[HeldClaim | None, bool]:
        """-> the cell's last claim, and whether the cell is free to take."""
        held = newest(folder)
        if held is None or held.over:
            return held, True
        number, raw, since = self._seen.get(folder, (0, b"", 0.0))
        if (number, raw) != (held.number, held.raw):
            self._seen[folder] = (held.number, held.raw, _now())
            return held, False
        said = held.record.get("stale")
        return held, _now() - since > max(self.stale, said if isinstance(said, float | int) else 0.0)


def newest(folder: Path) -> HeldClaim | None:
    """-> the claim that counts."""
    number = _highest(folder)
    if not number:
        return None
    try:
        raw = read_ours(_file(folder, number))  # opening it makes a network file system look again
    except OSError:
        raw = b""  # a link, or a pipe: no beat comes from it, so it grows stale
    try:
        record = parse_json(raw)
    except ValueError:
        record = {}
    return HeldClaim(number, raw, record if isinstance(record, dict) else {})


def take(folder: Path, *, judged: int = 0, stale: float = STALE) -> Claim | None:
    """-> a claim of this process's, or None where another holds the cell. `judged` is the number of a claim that a
    `Watch` has found stale."""
    make_folder(folder / "claims")
    held = newest(folder)
    if held and not held.over and held.number != judged:
        return None
    number = held.number + 1 if held else 1
    descriptor = _make(folder, number)
    return None if descriptor is None else Claim(folder, number, descriptor, stale, forced=bool(held and not held.over))


class Claim:
    """A cell held by this process, from `with` to its end. `progress` is shown to whoever looks at the claim."""

    def __init__(self, folder: Path, number: int, descriptor: int, stale: float, *, forced: bool = False) -> None:
        self.folder, self.number, self.stale = folder, number, stale
        self.forced = forced  # was it taken from a process that may only be asleep?
        self.progress: Mapping[str, Any] = {}
        self._descriptor, self._token = descriptor, secrets.token_hex(8)
        self._lock, self._checking = threading.Lock(), False
        self._end, self._lost, self._count = threading.Event(), False, 0
        self._beaten = _now()
        try:
            self._write()
        except OSError:
            os.close(descriptor)
            raise
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._main:  # a suspended process that goes on looks at its claim first of all
            self._before = signal.signal(signal.SIGCONT, self._woken)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._main:
            signal.signal(signal.SIGCONT, self._before)
        self._end.set()
        self._thread.join()
        try:
            if not self._lost:
                self._write(released=True)
        except OSError:
            pass  # a full disk: the claim grows stale, and what was done stays done
        finally:
            os.close(self._descriptor)

    def check(self) -> None:
        """Raises ClaimLost unless the cell is still this process's. Cheap; to be called before anything is written."""
        self._checking = True
        try:
            if not self._lost and _now() - self._beaten > self.stale / 2:
                with self._lock:
                    self._beat()
        finally:
            self._checking = False
        if self._lost:
            raise ClaimLost(f"{self.folder} was taken over by another process.")

    def _woken(self, *_: object) -> None:
        if not self._checking:
            self.check()

    def _keep_beating(self) -> None:
        while not self._end.wait(self.stale / BEATS):
            try:
                with self._lock:
                    self._beat()
            except OSError:
                continue  # the disk is away: `check` decides once that has lasted
            if self._lost and self._main:
                os.kill(os.getpid(), signal.SIGCONT)  # tells the main thread, which may be far from its next check

    def _beat(self) -> None:
        now = _now()
        if self._lost:
            return
        if now - self._beaten > self.stale / 2:  # someone may be taking over at this very moment: compete
            descriptor = _make(self.folder, self.number + 1)
            if descriptor is None:
                self._lost = True
                return
            self._write(released=True)  # the old one
            os.close(self._descriptor)
            self._descriptor, self.number = descriptor, self.number + 1
        self._write()
        self._beaten = now
        self._lost = _highest(self.folder) > self.number

    def _write(self, *, released: bool = False) -> None:
        self._count += 1
        record = {
            "host": socket.gethostname()[:100],
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "machine": _machine(),
            "token": self._token,
            "stale": self.stale,
            "beat": self._count,
            "released": released,
        }
        text = json.dumps(record | {"progress": self.progress})
        if len(text) >= SIZE:
            text = json.dumps(record)
        os.pwrite(self._descriptor, text.ljust(SIZE - 1).encode() + b"\n", 0)
        os.fsync(self._descriptor)


def _file(folder: Path, number: int) -> Path:
    return folder / "claims" / f"{number:06d}.json"


def _highest(folder: Path) -> int:
    try:
        names = os.listdir(folder / "claims")
    except FileNotFoundError:
        return 0
    return max((int(name[:-5]) for name in names if re.fullmatch(r"[0-9]{6,}\.json", name)), default=0)


def _make(folder: Path, number: int) -> int | None:
    """-> a descriptor of the new claim, or None where a rival was first."""
    try:
        return os.open(_file(folder, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None


def _now() -> float:
    """Seconds, which go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@cache
def _machine() -> str:
    """Where process numbers mean the same: the host since it was started, and the container."""
    try:
        boot, container = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = container = ""
    return f"{socket.gethostname()[:100]} {boot} {container}"


def _started(pid: int) -> str | None:
    """-> when a process was started, which tells it from a later one of the same number; None where it is gone.
    '' where the system does not tell."""
    if not Path("/proc/self/stat").exists():
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]  # killed, but its parent has not looked yet


def _alive(pid: int, started: str) -> bool:
    found = _started(pid)
    if found != "":
        return found == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
