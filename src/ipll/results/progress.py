"""Live progress of a run: tasks, epochs, accuracy so far and time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ipll.config import Config
from ipll.data.stream import Stream
from ipll.learner import Position
from ipll.messages import tell
from ipll.results.conditions import accuracy_word


class Reporter(Protocol):
    """Is told how a run goes. The default one says nothing."""

    def note(self, message: str) -> None: ...
    def begin(self, config: Config, stream: Stream, position: Position, accuracies: Sequence[float]) -> None: ...
    def step(self, position: Position, steps: int, phases: int) -> None: ...
    def task(self, record: dict[str, Any]) -> None: ...
    def end(self) -> None: ...


class Silent:
    def note(self, message: str) -> None: ...
    def begin(self, config: Config, stream: Stream, position: Position, accuracies: Sequence[float]) -> None: ...
    def step(self, position: Position, steps: int, phases: int) -> None: ...
    def task(self, record: dict[str, Any]) -> None: ...
    def end(self) -> None: ...


QUIET = 60  # seconds without a line, where there is no bar


class LiveProgress:
    """A bar where the console is a terminal; otherwise a line at each task's end, and one a minute in between."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def note(self, message: str) -> None:
        tell(message, self.console, style="yellow")

    def begin(self, config: Config, stream: Stream, position: Position, accuracies: Sequence[float]) -> None:
        self.config, self.tasks, self.accuracies = config, len(stream), list(accuracies)
        self.phases = 1
        self.accuracy = accuracy_word(config.data.scored_on)
        memory = next(p.settings.size if p.kind != "none" else 0 for p in config.parts if p.family == "memory")
        samples = [int((stream.task == t).sum()) + (memory if t else 0) for t in range(len(stream))]
        self.work = [count * config.train.epochs_of(t) for t, count in enumerate(samples)]
        self.start, self.started = self._done(position, 1), time.monotonic()
        self.spoken = self.started
        self.id = self.bar.add_task(config.method, total=1.0, left="")
        self.bar.start()

    def _done(self, position: Position, steps: int) -> float:
        """The share of the whole work, counted in samples over all epochs; every phase of a task counts the same."""
        if position.task == self.tasks:
            return 1.0
        epochs = self.config.train.epochs_of(position.task)
        epoch = position.phase * epochs + position.epoch + position.step / max(steps, 1)
        within = min(epoch / (epochs * self.phases), 1.0)
        return (sum(self.work[: position.task]) + within * self.work[position.task]) / sum(self.work)

    def step(self, position: Position, steps: int, phases: int) -> None:
        self.phases = phases
        epochs = self.config.train.epochs_of(position.task)
        ending = position.epoch == epochs and position.phase == phases - 1
        last = f"prototypes, memory and {self.config.data.scored_on}"
        doing = last if ending else f"epoch {min(position.epoch + 1, epochs)}/{epochs}"
        if not self.console.is_terminal:
            if time.monotonic() - self.spoken > QUIET:
                self._say(f"task {position.task + 1}/{self.tasks}, {doing}")
            return
        done = self._done(position, steps)
        elapsed = time.monotonic() - self.started
        left = elapsed * (1 - done) / (done - self.start) if done > self.start else 0.0
        mean = sum(self.accuracies) / max(len(self.accuracies), 1)
        accuracy = f" · {self.accuracy} {mean:.1f}" if self.accuracies else ""
        self.bar.update(
            self.id,
            completed=done,
            description=f"{self.config.method} · task {position.task + 1}/{self.tasks} · {doing}{accuracy}",
            left=f"{int(left) // 60}:{int(left) % 60:02d} left",
        )

    def task(self, record: dict[str, Any]) -> None:
        self.accuracies.append(record["accuracy"])
        if not self.console.is_terminal:
            self._say(
                f"task {record['task'] + 1}/{self.tasks}, {record['seen_classes']} classes seen, "
                f"{self.accuracy} {record['accuracy']:.1f}, pseudo-labels {record['pseudo_label_accuracy']:.1f}"
            )

    def _say(self, text: str) -> None:
        tell(f"{self.config.method}: {text}", self.console)
        self.spoken = time.monotonic()

    def end(self) -> None:
        self.bar.stop()
