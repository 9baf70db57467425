"""How long cells will take, from runs that have finished: wall seconds in proportion to the epochs.

Runs of the same method on the same preset are the measure; where there are none, other methods on that preset, which
is rough (methods differ by a factor of about three); without any, there is no estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from ipll.bench.catalogue import Cell
from ipll.bench.state import State, read_status


class Estimator:
    def __init__(self) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)  # an epoch of all tasks

    @classmethod
    def of(cls, out: Path, presets: set[str]) -> Estimator:
        """From all finished runs of some presets below `out`."""
        estimator = cls()
        for preset in presets:
            for file in sorted((out / preset).glob("*/*/seed*/result.json")):
                if (status := read_status(file.parent)).state is State.DONE:
                    estimator.learn(status.result)
        return estimator

    def learn(self, result: Mapping[str, Any]) -> None:
        try:
            seconds = float(result["wall_seconds"]) / float(result["epochs"])
            keys = (result["preset"], result["method"]), (result["preset"],)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return
        for key in keys:
            self._seconds[key].append(seconds)

    def same_method(self, cell: Cell) -> bool:
        return bool(self._seconds.get((cell.preset, cell.method)))

    def seconds(self, cell: Cell, epochs: int) -> float | None:
        found = self._seconds.get((cell.preset, cell.method)) or self._seconds.get((cell.preset,))
        return mean(found) * epochs if found else None


def in_words(seconds: float) -> str:
    """'35 s', '12 min', '3 h 20 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
