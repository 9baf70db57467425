"""Live progress of a fit or an update."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ipll.messages import tell


class OwnReporter(Protocol):
    """Is told how a fit or an update goes. Without one, nothing is said."""

    def begin(self, title: str, epochs: int) -> None:
        """Training starts."""

    def epoch(self, done: int, changed: int, confidence: float) -> None:
        """An epoch has ended: so many are done, so many samples changed their label in it, and the mean confidence
        in the labels settled on is this."""

    def end(self) -> None:
        """Training has ended, or was stopped."""


class Silent:
    def begin(self, title: str, epochs: int) -> None: ...
    def epoch(self, done: int, changed: int, confidence: float) -> None: ...
    def end(self) -> None: ...


class LiveProgress:
    """A bar where the console is a terminal; otherwise one line when training has ended."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("epoch {task.completed:.0f}/{task.total:.0f}{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def begin(self, title: str, epochs: int) -> None:
        self.title, self.epochs, self.done, self.state = title, epochs, 0, ""
        self.id = self.bar.add_task(title, total=epochs, state="")
        self.bar.start()

    def epoch(self, done: int, changed: int, confidence: float) -> None:
        self.done = done
        self.state = f" · {changed:,} label{'' if changed == 1 else 's'} changed · confidence {confidence:.2f}"
        self.bar.update(self.id, completed=done, state=self.state)

    def end(self) -> None:
        self.bar.stop()
        if not self.console.is_terminal:
            of_all = "" if self.done == self.epochs else f" of {self.epochs}"
            tell(f"{self.title}: {self.done}{of_all} epochs{self.state}", self.console)
