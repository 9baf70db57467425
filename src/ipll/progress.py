"""Live progress: what is to be learnt, who is told how it goes, and one that shows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ipll.config import Config
from ipll.data.stream import Stream
from ipll.learner import Position
from ipll.messages import cell, counted, tell
from ipll.results.conditions import accuracy_word

FIRST, QUIET = 5, 60  # seconds without a line, where there is no bar: at first, twice as many each time, and at most
SOON = 2  # and before the next stage


@dataclass(frozen=True)
class Plan:
    """The tasks that a run, a fit or an update learns, one after another."""

    title: str
    samples: Sequence[int]  # of each task, the memory's among them
    epochs: Sequence[int]  # of each task
    last: str = "prototypes and memory"  # what follows a task's last epoch
    first: int = 0  # the number of the first task
    accuracy: str = ""  # what accuracies are called; '' where nothing is scored
    accuracies: Sequence[float] = ()  # of the tasks that are done already

    @classmethod
    def of_run(cls, config: Config, stream: Stream, accuracies: Sequence[float]) -> Plan:
        memory = config.part("memory").settings.size if config.part("memory").kind != "none" else 0
        return cls(
            title=config.method,
            samples=[int((stream.task == t).sum()) + (memory if t else 0) for t in range(len(stream))],
            epochs=[config.train.epochs_of(t) for t in range(len(stream))],
            last=f"prototypes, memory and {config.data.scored_on}",
            accuracy=accuracy_word(config.data.scored_on),
            accuracies=accuracies,
        )

    def share(self, position: Position, steps: int = 1, phases: int = 1) -> float:
        """-> of the whole work, counted in samples over all epochs; every phase of a task counts the same."""
        t = position.task - self.first
        if t == len(self.epochs):
            return 1.0
        epoch = position.phase * self.epochs[t] + position.epoch + position.step / max(steps, 1)
        within = min(epoch / (self.epochs[t] * phases), 1.0)
        work = [samples * epochs for samples, epochs in zip(self.samples, self.epochs, strict=True)]
        return (sum(work[:t]) + within * work[t]) / sum(work)

    def doing(self, position: Position, phases: int) -> str:
        """-> in words, what comes next in a task."""
        epochs = self.epochs[position.task - self.first]
        if position.epoch == epochs and position.phase == phases - 1:
            return self.last
        return f"epoch {min(position.epoch + 1, epochs)}/{epochs}"


class Listener:
    """Is told how a run, a fit or an update goes. Those that override some of it hear of that only."""

    def note(self, message: str) -> None:
        """Something that people should know."""

    def photos(self, done: int, total: int, seconds: float) -> None:
        """So many of the photos that a pretrained network has to look at are done, after so many seconds."""

    def stage(self, words: str) -> None:
        """Something begins that may take long, before learning or after it: what it is about."""

    def begin(self, plan: Plan, position: Position) -> None:
        """Learning starts, or goes on from here."""

    def step(self, position: Position, steps: int, phases: int) -> None:
        """A step or an epoch has ended; there are so many steps in an epoch and phases in the task."""

    def epoch(self, position: Position, record: dict[str, Any]) -> None:
        """An epoch has ended. A run's record is its line of metrics.jsonl; of people's own data it has `changed`, how
        many samples changed their label, and `confidence`, the mean of it in the labels settled on."""

    def task(self, record: dict[str, Any]) -> None:
        """A task has been learnt. A run's record is its line of metrics.jsonl."""

    def end(self) -> None:
        """What went on has ended, or was stopped: learning, or something before or after it."""


class Silent(Listener):
    """Says nothing; the default."""


class LiveProgress(Listener):
    """A bar where the console is a terminal; otherwise a line at each task's end, and now and then one in between."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.title = ""  # until learning begins
        self.id: TaskID | None = None  # until something is shown
        self.spoken = time.monotonic()

    def note(self, message: str) -> None:
        tell(message, self.console, style="yellow")

    def photos(self, done: int, total: int, seconds: float) -> None:
        rate = done / seconds if seconds else 0.0
        words = f"{done:,} of {total:,} photos embedded" + (f" · {rate:.1f} a second" if rate else "")
        left = _minutes((total - done) / rate) if rate else ""
        if not self.console.is_terminal:
            if done == total or time.monotonic() - self.spoken > QUIET:
                tell(words + (f", {left}" if 0 < done < total else ""), self.console)
                self.spoken = time.monotonic()
            return
        self._show(words, completed=done / total, left=left)

    def begin(self, plan: Plan, position: Position) -> None:
        self.plan, self.accuracies, self.state = plan, list(plan.accuracies), ""
        self.start: float | None = None  # until the first step, before which all may have to be compiled
        self.spoken, self.quiet, self.title = time.monotonic(), FIRST, plan.title
        self._show(plan.title, completed=0.0, left="")

    def stage(self, words: str) -> None:
        if self.console.is_terminal:
            self._show(" · ".join(filter(None, (self.title, words))))
        elif time.monotonic() - self.spoken > SOON:
            self._say(words)

    def _show(self, words: str, **fields: Any) -> None:
        if self.id is None:
            self.id = self.bar.add_task("", total=1.0, left="")
        self.bar.update(self.id, description=cell(words), **fields)
        self.bar.start()  # again, where something had ended before

    def step(self, position: Position, steps: int, phases: int) -> None:
        doing = self.plan.doing(position, phases)
        done = self.plan.share(position, steps, phases)
        if self.start is None:
            self.start, self.started = done, time.monotonic()
        rate = (done - self.start) / max(time.monotonic() - self.started, 1e-9)
        left = _minutes((1 - done) / rate) if rate else ""
        if not self.console.is_terminal:
            if doing == self.plan.last and not self.plan.accuracy:  # of people's own data, which may be large
                self.stage(doing)
            elif time.monotonic() - self.spoken > min(self.quiet, QUIET):
                told = [*self._which(position.task), doing, f"{100 * done:.0f} %", left]
                self._say(", ".join(filter(None, told)))
                self.quiet *= 2
            return
        mean = sum(self.accuracies) / max(len(self.accuracies), 1)
        accuracy = f" · {self.plan.accuracy} {mean:.1f}" if self.accuracies else ""
        words = " · ".join([self.plan.title, *self._which(position.task), doing])
        self._show(words + accuracy + self.state, completed=done, left=left)

    def _which(self, task: int) -> list[str]:
        """-> in words, which task of a run it is; nothing where there is one only, of a user's own data."""
        return [f"task {task + 1}/{len(self.plan.epochs)}"] if self.plan.accuracy else []

    def epoch(self, position: Position, record: dict[str, Any]) -> None:
        if "changed" in record:
            self.state = f" · {counted(record['changed'], 'label')} changed"
            self.state += f" · mean weight on the label {record['confidence']:.2f}"

    def task(self, record: dict[str, Any]) -> None:
        words = f"{counted(self.plan.epochs[-1], 'epoch')}{self.state}"
        if self.plan.accuracy:
            self.accuracies.append(record["accuracy"])
            words = (
                f"{self._which(record['task'])[0]}, {record['seen_classes']} classes seen, "
                f"{self.plan.accuracy} {record['accuracy']:.1f}, pseudo-labels {record['pseudo_label_accuracy']:.1f}"
            )
        if not self.console.is_terminal:
            self._say(words)

    def _say(self, text: str) -> None:
        tell(": ".join(filter(None, (self.title, text))), self.console)
        self.spoken = time.monotonic()

    def end(self) -> None:
        self.bar.stop()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"
