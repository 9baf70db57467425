"""The result of a run, as Python sees it. Whoever reads a result file reads it here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ipll.errors import RunError
from ipll.results import schema
from ipll.results.conditions import on_samples, scored_on
from ipll.results.folder import AGAIN, read_result


class Result(Mapping[str, Any]):
    """The fields of result.json, and the folder they lie in (None if the run left none)."""

    def __init__(self, values: Mapping[str, Any], folder: Path | None = None) -> None:
        self._values = values
        self.folder = folder

    @classmethod
    def load(cls, folder: str | Path, remedy: str = AGAIN) -> Result:
        """-> the result of a finished run; a RunError names the file and the field that cannot be used, and what the
        caller says that helps. Measures that an earlier version did not take are None."""
        folder = Path(folder)
        values = read_result(folder, remedy)
        if wrong := schema.problem(values):
            raise RunError(f"{folder / 'result.json'}: {wrong}. {remedy}".rstrip())
        tasks = len(values["accuracy_per_task"])
        return cls({**{schema.per_task(name): [None] * tasks for name in schema.LATER}, **values}, folder)

    @property
    def tasks(self) -> tuple[schema.TaskRow, ...]:
        """What was measured at the end of each task."""
        return schema.task_rows(self)

    @property
    def average_incremental_accuracy(self) -> float:
        """The mean over tasks of the accuracy on all classes seen so far, in percent."""
        return float(self["average_incremental_accuracy"])

    @property
    def accuracy_per_task(self) -> list[float]:
        return list(self["accuracy_per_task"])

    @property
    def last_accuracy(self) -> float:
        return float(self["last_accuracy"])

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        what = f"{self['method']} on {self['preset']}, seed {self['seed']}"
        where = on_samples(scored_on(self))
        return f"Result({what}: average incremental accuracy{where} {self.average_incremental_accuracy:.2f})"
