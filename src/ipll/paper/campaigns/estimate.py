"""How long cells will take, from runs that have finished: wall seconds in proportion to the epochs over all tasks.

Runs of the same method on the same preset are the measure; where there are none, other methods on that preset, which
is rough (methods differ by a factor of about three); without any, there is no estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from ipll.config import Config
from ipll.errors import NewerVersion
from ipll.paper.campaigns.state import State, read_status
from ipll.paper.catalogue import Cell


class Estimator:
    def __init__(self) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)  # an epoch of all tasks

    @classmethod
    def of(cls, out: Path, presets: set[str]) -> Estimator:
        """From all finished runs of some presets below `out`."""
        estimator = cls()
        for preset in presets:
            for file in sorted((out / preset).glob("*/*/seed*/result.json")):
                with suppress(NewerVersion):
                    if (status := read_status(file.parent)).state is State.DONE:
                        estimator.learn(status.result)
        return estimator

    def learn(self, result: Mapping[str, Any]) -> None:
        try:
            seconds = float(result["wall_seconds"]) / _epochs_of_result(result)
            keys = (result["preset"], result["method"]), (result["preset"],)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
            return
        for key in keys:
            self._seconds[key].append(seconds)

    def same_method(self, cell: Cell) -> bool:
        return bool(self._seconds.get((cell.preset, cell.method)))

    def seconds(self, cell: Cell, epochs: float) -> float | None:
        """-> how long a cell of so many epochs a task, on average, will take; None where nothing is known."""
        found = self._seconds.get((cell.preset, cell.method)) or self._seconds.get((cell.preset,))
        return mean(found) * epochs if found else None


def epochs_a_task(config: Config) -> float:
    """-> the epochs of a task, on average over all tasks of a run."""
    return _mean_epochs(config.train.epochs, config.train.later_epochs, config.stream.tasks)


def _epochs_of_result(result: Mapping[str, Any]) -> float:
    """The same, of a finished run; one of an older version knows no other epochs of later tasks."""
    config = result.get("config", {})
    later = int(config.get("train", {}).get("later_epochs", 0))
    return _mean_epochs(float(result["epochs"]), later, int(config["stream"]["tasks"]) if later else 1)


def _mean_epochs(first: float, later: int, tasks: int) -> float:
    return (first + (later or first) * (tasks - 1)) / tasks


def in_words(seconds: float) -> str:
    """'35 s', '12 min', '3 h 20 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
