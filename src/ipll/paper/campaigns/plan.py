"""A campaign's plan: which cells a table or figure asks for, checked before anything is run, and how they stand."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipll.config import Config
from ipll.errors import ConfigError
from ipll.paper.campaigns import claims
from ipll.paper.campaigns.estimate import Estimator, epochs_a_task, in_words
from ipll.paper.campaigns.state import State, Status, read_status
from ipll.paper.catalogue import Bench, Cell

MOST = 10_000  # seeds


@dataclass
class Track:
    """A cell on its way."""

    cell: Cell
    folder: Path
    config: Config
    status: Status
    error_before: int = 0  # which error.json lay there at the start
    running: bool = False  # handed to the executor
    elsewhere: bool = False  # another process has it
    settled: bool = False  # done, or tried and failed
    attempts: int = 0
    progress: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""

    def failed_anew(self) -> bool:
        """Has an attempt failed since the start, here or elsewhere?"""
        return error_mark(self.folder) != self.error_before and self.status.state is State.FAILED


def error_mark(folder: Path) -> int:
    """-> what tells one error.json from the next; 0 where there is none."""
    try:
        return (folder / "error.json").stat().st_mtime_ns
    except OSError:
        return 0


@dataclass(frozen=True)
class Plan:
    bench: Bench
    seeds: tuple[int, ...]
    out: Path
    tracks: tuple[Track, ...]
    missing: Mapping[str, int]  # preset -> cells that it would take, if this version had it

    @classmethod
    def make(cls, bench: Bench, seeds: Sequence[int], out: Path) -> Plan:
        for place in (out, *out.parents):
            if place.exists() and not place.is_dir():
                raise ConfigError(f"--out: {place} is a file, not a folder. Choose another place.")
        tracks: dict[Path, Track] = {}
        for cell in bench.cells(seeds):
            try:
                config, folder = cell.config(), cell.folder(out)
            except ConfigError as error:
                raise ConfigError(f"{cell}: {error}") from None
            if folder not in tracks:
                tracks[folder] = Track(cell, folder, config, read_status(folder), error_mark(folder))
        missing = Counter(entry.preset for entry in bench.entries if not entry.available for _ in seeds)
        return cls(bench, tuple(seeds), out, tuple(tracks.values()), missing)

    def warnings(self) -> Iterator[str]:
        for preset, count in self.missing.items():
            yield f"not available here: {count} cells on {preset}; this version has no preset of that name."
        for track in self.tracks:
            if track.status.damage:
                yield f"{track.status.damage} It is set aside as result.json.corrupt-N, and the cell is run again."

    def summary(self) -> Iterator[str]:
        """What --dry-run says: every cell, how it stands, and the estimated time."""
        estimator = Estimator.of(self.out, {track.cell.preset for track in self.tracks})
        known, rough, unknown, total, watch = 0, 0, 0, 0.0, claims.Watch()
        for track in self.tracks:
            held, free = watch.look(track.folder)
            state, seconds = str(track.status.state), None
            if track.status.state is not State.DONE:
                if held and not free:
                    state = f"running on {held.record.get('host', 'another machine')}"
                seconds = estimator.seconds(track.cell, epochs_a_task(track.config))
                total += seconds or 0.0
                known += seconds is not None and estimator.same_method(track.cell)
                rough += seconds is not None and not estimator.same_method(track.cell)
                unknown += seconds is None
            about = f", about {in_words(seconds)}" if seconds is not None else ""
            reason = f": {track.status.error}" if track.status.state is State.FAILED else ""
            yield f"{state:8} {track.cell}{about}{reason}"
        counts = Counter(track.status.state for track in self.tracks)
        yield f"{self.bench.name}: {len(self.tracks)} cells: " + ", ".join(f"{counts[s]} {s}" for s in State)
        if known or rough:
            basis = [f"{known} from finished runs of their method"] * bool(known)
            basis += [f"{rough} roughly, from other methods"] * bool(rough)
            basis += [f"no estimate for {unknown}"] * bool(unknown)
            yield f"estimated time, one at a time: {in_words(total)} ({'; '.join(basis)})"
        elif unknown:
            yield f"no estimate of the time: no finished run of these presets lies in {self.out}."


def parse_seeds(text: str) -> tuple[int, ...]:
    """'3' -> the seeds 0, 1, 2; '0,4' -> just these."""
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    if "," not in text:
        numbers = list(range(min(numbers[0], MOST + 1))) if numbers else []
    seeds = tuple(dict.fromkeys(numbers))
    if not seeds or min(seeds) < 0 or len(seeds) > MOST:
        raise ConfigError(f"--seeds takes how many (3) or which (0,1,2; '2,' for one alone), got '{text}'.")
    return seeds


def stale_seconds() -> float:
    """After how long without a beat a claim counts as stale: 60 s, or what IPLL_STALE says."""
    text = os.environ.get("IPLL_STALE", str(claims.STALE))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"the environment variable IPLL_STALE takes seconds, more than 0, got '{text}'.")
    return seconds
