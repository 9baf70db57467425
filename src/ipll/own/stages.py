"""Stages of a fit or an update: each is told as it begins, and none goes on for long once somebody asks to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ipll.driver import Stop, stop_requests
from ipll.progress import Listener, Silent

STOPPED = "Stopped. No model was changed."
AGAIN = " The same command goes on from here."


class Stages:
    """Who is told, and whether somebody asked to stop."""

    def __init__(self, listener: Listener, stop: Stop) -> None:
        self.listener, self.stop = listener, stop

    def begin(self, words: str) -> None:
        """The next stage begins, unless somebody asked to stop."""
        self.check()
        self.listener.stage(words)

    def check(self) -> None:
        """Between two things that take a while, where there is nothing to be kept."""
        if self.stop.asked:
            self.stop.obey()


@contextmanager
def stages(listener: Listener | None) -> Iterator[Stages]:
    """SIGINT and SIGTERM end what is done inside with Interrupted, whatever the stage, within a second or two."""
    listener = listener or Silent()
    with stop_requests(STOPPED, listener.note) as stop:
        try:
            yield Stages(listener, stop)
        finally:
            listener.end()
        if stop.asked:  # whoever asked does not want what comes after it either
            stop.obey()
