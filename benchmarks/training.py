"""A learner in its second task that trains on noise: what the benchmarks of speed measure."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch

import ipll.data.sources  # noqa: F401  (registers the data sets that presets name)
from ipll.config import resolve
from ipll.data.source import Source
from ipll.data.stream import Stream
from ipll.learner import Learner

WAYS = {
    "eager float32": {"train.precision": "float32", "train.compile": "off", "train.graphs": "off"},
    "eager bf16": {"train.precision": "bf16", "train.compile": "off", "train.graphs": "off"},
    "compiled": {"train.precision": "bf16", "train.compile": "on", "train.graphs": "off"},
    "compiled + graphs": {"train.precision": "bf16", "train.compile": "on", "train.graphs": "on"},
    "kernels + graphs": {"train.precision": "bf16", "train.compile": "auto", "train.graphs": "on"},
}
DEFAULT = "kernels + graphs"  # what 'auto' everywhere comes to on a GPU
WARM_EPOCHS = 2
FEW = {"train.steps_per_epoch": 1, "train.batch_size": 16, "memory.size": 100}  # on a CPU, to see that it works


class Shape(NamedTuple):
    """A data set whose place the noise takes."""

    preset: str
    samples: int
    classes: int


SHAPES = {
    32: Shape("cifar100", 50_000, 100),
    64: Shape("tiny-imagenet", 100_000, 200),
    224: Shape("cub200", 5_994, 200),
}  # by height and width


def noise(device: torch.device, size: int = 32) -> Source:
    """As many samples and classes as the data set of this size has; a fiftieth of the samples on a CPU."""
    rng = np.random.default_rng(0)
    _, count, classes = SHAPES[size]
    count = count if device.type == "cuda" else max(count // 50, 2 * classes)

    def images(n: int) -> Any:
        return rng.integers(0, 256, (n, 3, size, size), dtype=np.uint8)

    names = tuple(str(c) for c in range(classes))
    return Source(
        name="noise", train_samples=images(count), train_labels=np.arange(count) % classes,
        test_samples=images(classes), test_labels=np.arange(classes), class_names=names,
        mean=(0.5,) * 3, std=(0.25,) * 3,
    )  # fmt: skip


class Bench:
    """A learner in its second task: teacher, memory and old classes are there."""

    def __init__(
        self, source: Source, method: str, settings: dict[str, Any], epochs: int, device: torch.device
    ) -> None:
        self.started = time.perf_counter()
        self.device, self.epochs = device, epochs
        overrides = {"train.epochs": epochs + WARM_EPOCHS, "train.later_epochs": 0} | settings
        preset, classes = SHAPES[source.train_samples.shape[-1]].preset, source.classes
        self.config = resolve(preset, method, overrides=overrides)
        self.stream = Stream.build(source, self.config.stream, 0)
        self.learner = Learner(
            self.config, channels=3, classes=classes, mean=source.mean, std=source.std, device=device
        )  # fmt: skip
        self.source = source
        self.first_step = 0.0

    def task(self, t: int) -> Any:
        return self.stream.make_task(t, self.source.train_samples)

    def prepare(self, steps: int) -> None:
        """Leaves the first task after a few steps, as if it had been learnt."""
        for number, _ in enumerate(self.learner.fit(self.task(0)), 1):
            if number == 1:
                self.wait()
                self.first_step = time.perf_counter() - self.started
            if number >= steps:
                break
        self.learner._end_task()

    def measure(self) -> dict[str, float]:
        """-> samples/s and s/epoch over the epochs after the warm-up; an epoch is one of each phase."""
        learner, begun, seconds = self.learner, 0.0, 0.0
        for position in learner.fit(self.task(1)):
            if position.step == 0 and position.epoch == WARM_EPOCHS:
                self.wait()
                begun = time.perf_counter()
            elif position.step == 0 and position.epoch == WARM_EPOCHS + self.epochs:
                self.wait()
                seconds += (time.perf_counter() - begun) / self.epochs
                if position.phase == learner.phases - 1:
                    break
        return {"samples_per_second": learner.steps * learner.batch_size / seconds, "seconds_per_epoch": seconds}

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
