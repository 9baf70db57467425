"""The board: how a campaign goes, live on a terminal; elsewhere a line for each cell that ends, and one a minute."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ipll.messages import tell, visible
from ipll.paper.campaigns.estimate import Estimator, epochs_a_task, in_words
from ipll.paper.campaigns.plan import Track
from ipll.paper.campaigns.state import State
from ipll.paper.catalogue import ACCURACY
from ipll.results.conditions import accuracy_word, scored_on

EVERY = 60.0  # seconds between two lines of the plain board
MOST = 12  # running cells shown at once


class Board:
    def __init__(self, name: str, tracks: Sequence[Track], slots: int, console: Console) -> None:
        self.name, self.tracks, self.slots, self.console = name, tracks, slots, console
        self.estimator = Estimator()
        for track in tracks:
            if track.status.state is State.DONE:
                self.estimator.learn(track.status.result)
        self._said = time.monotonic()
        done = sum(track.settled for track in tracks)
        self.say(f"{name}: {len(tracks)} cells, {done} done, {len(tracks) - done} to run, {slots} at a time")
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        if self._live:
            self._live.start()

    def say(self, text: str, style: str = "") -> None:
        tell(text, self.console, style=style)

    def settled(self, track: Track) -> None:
        """A cell has ended."""
        count = sum(t.settled for t in self.tracks)
        if track.status.state is State.DONE:
            self.estimator.learn(track.status.result)
            result = track.status.result
            accuracy = f"{accuracy_word(scored_on(result))} {result[ACCURACY]:.2f}"
            self.say(f"[{count}/{len(self.tracks)}] {track.cell}: {accuracy}")
        else:
            self.say(f"[{count}/{len(self.tracks)}] {track.cell} failed: {track.status.error}", style="red")

    def show(self, *, stopping: bool = False) -> None:
        if self._live:
            self._live.update(self._drawing(stopping), refresh=True)
        elif time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            cells = "; ".join(f"{t.cell}, {_where(t)}" for t in self._at_work()[:MOST])
            self.say(f"{self._counts()}{': ' if cells else ''}{cells}")

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _at_work(self) -> list[Track]:
        return [track for track in self.tracks if not track.settled and track.progress]

    def _counts(self) -> str:
        done = sum(t.settled and t.status.state is State.DONE for t in self.tracks)
        failed = sum(t.settled and t.status.state is not State.DONE for t in self.tracks)
        left = self.seconds_left()
        time_left = "time left not known yet" if left is None else f"about {in_words(left)} left"
        running = len(self._at_work())
        return f"{self.name}: {done} of {len(self.tracks)} done, {running} running, {failed} failed, {time_left}"

    def seconds_left(self) -> float | None:
        """None where some cell's preset has no finished run yet."""
        total, count = 0.0, 0
        for track in self.tracks:
            if track.settled:
                continue
            seconds = self.estimator.seconds(track.cell, epochs_a_task(track.config))
            if seconds is None:
                return None
            total += seconds * (1 - track.progress.get("share", 0.0))
            count += 1
        return total / max(1, min(self.slots, count))

    def _drawing(self, stopping: bool) -> Group:
        settled = sum(track.settled for track in self.tracks)
        rows = Table.grid(padding=(0, 2))
        for track in self._at_work()[:MOST]:
            bar = ProgressBar(1.0, track.progress.get("share", 0.0), width=16)
            rows.add_row(Text(visible(str(track.cell))), bar, Text(visible(_where(track)), style="dim"))
        more = len(self._at_work()) - MOST
        if more > 0:
            rows.add_row(Text(f"and {more} more", style="dim"))
        head = self._counts() + (" · stopping, each keeps a checkpoint" if stopping else "")
        whole = Table.grid(expand=True)  # by itself, a bar does not end its line
        whole.add_row(ProgressBar(len(self.tracks), settled))
        return Group(Text(head, style="bold"), whole, rows)


def _where(track: Track) -> str:
    at = track.progress
    place = f" on {track.host}" if track.elsewhere else ""
    if "task" not in at:
        return f"starting{place}"
    return f"task {at['task']}/{at['tasks']}, epoch {at['epoch']}/{at['epochs']}{place}"
