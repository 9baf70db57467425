"""What the campaign of reliability.py works with: commands in forked children, small folders, and ways to do harm."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import ipll.cli
from ipll.learner import Learner, Position
from ipll.own.model import Model
from ipll.own.reading.arrays import from_arrays

HANG = 60.0  # seconds without an end
BAD = ("wrong", "traceback", "hang", "outside")
TINY = ["train.epochs=2", "stream.tasks=2", "train.steps_per_epoch=3", "train.batch_size=32", "memory.size=40"]
OWN = ["train.epochs=3"]
UNLIKE = ("wall_seconds", "seconds_per_epoch", "samples_per_second", "peak_memory_bytes", "environment", "seal",
          "median_seconds_per_epoch_per_task")  # fmt: skip


class Ended(NamedTuple):
    status: int  # minus the signal that killed it
    text: str  # what it printed, both streams
    hung: bool = False

    def kind(self) -> str:
        """-> how it ended, but for whether its result is right: 'done', 'refused', 'traceback' or 'hang'."""
        if self.hung:
            return "hang"
        if "Traceback (most recent call last)" in self.text or self.status not in (0, 2, 130, 143):
            return "traceback"
        return "refused" if self.status else "done"


def call(words: list[str], where: Path, *, kill_after: float | None = None, kill_at: int = 0) -> Ended:
    """Runs `ipll WORDS` in a child that is forked from this process. It is killed after so many seconds, or kills
    itself after so many steps of training."""
    log = where / "log.txt"
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(words, log, kill_at)
    deadline, killed = time.monotonic() + (HANG if kill_after is None else kill_after), False
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"), hung=False)
        if time.monotonic() > deadline and not killed:
            os.kill(pid, signal.SIGKILL)
            killed = True
            if kill_after is None:
                os.waitpid(pid, 0)
                return Ended(-signal.SIGKILL, log.read_text(errors="replace"), hung=True)
        time.sleep(0.002)


def _child(words: list[str], log: Path, kill_at: int) -> None:
    status = 1
    try:
        if kill_at:
            _kill_at(kill_at)
        descriptor = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(log.parent)
        sys.argv = ["ipll", *words]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ipll.cli.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _kill_at(step: int) -> None:
    fit, done = Learner.fit, itertools.count(1)

    def dying(self: Learner, *rest: Any) -> Iterator[Position]:
        for position in fit(self, *rest):
            yield position  # a checkpoint may be kept here
            if next(done) == step:
                time.sleep(0.3)  # a thread may be writing it
                os.kill(os.getpid(), signal.SIGKILL)

    Learner.fit = dying  # type: ignore[assignment,method-assign]


def _warm_up() -> None:
    """Imports here what children would each import again: forked, they have it."""
    settings = {key: json.loads(value) for key, value in (text.split("=") for text in TINY)}
    ipll.run("digits", device="cpu", **settings)
    samples = from_arrays(np.random.default_rng(0).normal(size=(20, 2)), [[str(i % 2)] for i in range(20)])
    Model.fit(samples, device="cpu", settings={"train.epochs": 1})
    for module in (
        "pyarrow.parquet",
        "pyarrow.csv",
        "ipll.own.audit.page",
        "ipll.own.folder",
        "ipll.own.reading.votes",
    ):
        importlib.import_module(module)


# What is prepared once


class Folders:
    """Small folders of every kind, made once, copied for every trial."""

    def __init__(self, home: Path) -> None:
        self.home = home
        _warm_up()
        rng = np.random.default_rng(0)
        self.names = ("robin", "crow", "wren", "tit")
        self.tables = [self._table(f"part{k}.csv", rng, k) for k in range(2)]
        self._votes(rng)
        self._images(rng)
        settings = [word for text in TINY for word in ("--set", text)]
        self.run = ["run", "digits", *settings, "--device", "cpu"]
        self._must(*self.run, "--out", "finished")
        self._stopped()
        own = [word for text in OWN for word in ("--set", text)]
        self.fit = ["fit", "part0.csv", *own, "--device", "cpu"]
        self._must(*self.fit, "--out", "model")
        self.result = result_of(home / "finished")
        self.updated = self._reference_update()

    def _must(self, *words: str) -> None:
        ended = call(list(words), self.home)
        if ended.status:
            raise SystemExit(f"ipll {' '.join(words)}: {ended.text}")

    def _stopped(self) -> None:
        """A run that was killed in its second task, with two checkpoints."""
        words = [*self.run, "--set", "train.checkpoint_seconds=0", "--out", "stopped"]
        call(words, self.home, kill_at=13)
        if len(list((self.home / "stopped" / "checkpoint").glob("*.json"))) != 2:
            raise SystemExit("the run that is to be resumed has no two checkpoints")
        self._must(*self.run, "--set", "train.checkpoint_seconds=0", "--out", "whole")
        self.resumed = result_of(self.home / "whole")

    def _reference_update(self) -> str:
        copy = self.home / "updated"
        shutil.copytree(self.home / "model", copy)
        self._must("update", "updated", "part1.csv", "--device", "cpu")
        return labels_of(copy)

    def _table(self, name: str, rng: np.random.Generator, k: int) -> Path:
        rows = ["id,candidates,features.a,features.b,features.c"]
        for i in range(60):
            c = int(rng.integers(4))
            other = int(rng.integers(4))
            x = rng.normal(size=3) + np.array([3 * c, -2 * c, c % 2])
            names = sorted({self.names[c], self.names[other]})
            rows.append(f"{k}-{i},{'|'.join(names)}," + ",".join(f"{v:.3f}" for v in x))
        (self.home / name).write_text("\n".join(rows) + "\n")
        return self.home / name

    def _votes(self, rng: np.random.Generator) -> None:
        rows = ["sample,annotator,label"]
        rows += [f"0-{i},ann{j},{self.names[int(rng.integers(4))]}" for i in range(60) for j in range(2)]
        (self.home / "votes.csv").write_text("\n".join(rows) + "\n")
        table = [line.split(",") for line in self.tables[0].read_text().splitlines()]
        (self.home / "samples.csv").write_text("".join(",".join([i, *x]) + "\n" for i, _, *x in table))

    def _images(self, rng: np.random.Generator) -> None:
        for split in ("train", "test"):
            for c in range(2):
                folder = self.home / "photos" / split / f"c{c}"
                folder.mkdir(parents=True)
                for i in range(4):
                    pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{i}.png")


def result_of(folder: Path) -> dict[str, Any]:
    """-> what must not depend on what happened on the way."""
    values = json.loads((folder / "result.json").read_text())
    values["config"].get("train", {}).pop("checkpoint_seconds", None)
    return {key: value for key, value in values.items() if key not in UNLIKE}


def labels_of(folder: Path) -> str:
    """-> a digest of what every sample of a model settled on."""
    records = Model.load(folder).records
    digest = hashlib.sha256(" ".join(records.ids).encode())
    for column in (records.label, records.confidence, records.changed_epoch, records.in_memory):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


# Harm


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def zeros(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    data[start : start + 16] = bytes(len(data[start : start + 16]))


def noise(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    data[start : start + 8] = rng.randbytes(len(data[start : start + 8]))


def doubled(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + 32]


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, flip, flip, cut, zeros, noise, doubled)


def mutate(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    how = rng.choice(MUTATIONS)
    if data:
        how(data, rng)
    path.write_bytes(bytes(data))
    return how.__name__
