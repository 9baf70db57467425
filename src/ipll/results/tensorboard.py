"""TensorBoard: the curves of a run, written into its folder while it goes on.

Whether a run has them is told by the folder tensorboard/ in its own, so that a resumed run goes on writing. A step is
an epoch of the whole run, counted from 1 over all tasks and phases.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipll.config import TrainConfig
from ipll.engine.files import check_folder, make_folder, parse_json, remove_files
from ipll.errors import ConfigError, DiskError, RunError
from ipll.results.conditions import accuracy_word
from ipll.results.folder import metrics_lines
from ipll.results.schema import CURVES

PLACE = "tensorboard"


def check_tensorboard() -> None:
    """Raises where TensorBoard is not installed."""
    if importlib.util.find_spec(PLACE) is None:
        raise ConfigError("TensorBoard is not installed. Install it with: pip install 'ipll[tensorboard]'")


def prepare(folder: Path, *, wanted: bool) -> None:
    """For a new run: removes the events of one that lay here before, and says whether this one writes some."""
    place = folder / PLACE
    check_folder(place)
    remove_files(place, lambda name: name.startswith("events.out.tfevents."))
    if wanted:
        make_folder(place)
    elif place.is_dir():
        try:
            place.rmdir()
        except OSError as error:
            raise RunError(f"cannot remove {place}: {error.strerror}. Remove it yourself.") from None


class Events:
    """Writes each line of metrics.jsonl as events. What was written after the checkpoint is withdrawn."""

    def __init__(self, folder: Path, train: TrainConfig, scored: str) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # takes a second, so only where it is wanted

        self.train, self.epochs, self.accuracy = train, 0, accuracy_word(scored)
        self.place = folder / PLACE
        check_folder(self.place)
        with self._disk(), _readable(folder):
            done = [parse_json(line) for line in metrics_lines(folder)]
            last = sum(record["kind"] == "epoch" for record in done)
            self.writer: Any = SummaryWriter(str(self.place), purge_step=last)
            for record in done:
                self.epochs += record["kind"] == "epoch"
                if self.epochs == last:  # withdrawn too: an epoch that ends a task shares its step with the task
                    self._write(record)

    @classmethod
    def of(cls, folder: Path, train: TrainConfig, scored: str) -> Events | None:
        """-> the events of a run that has been stripped of what came after its checkpoint, if it is to have any."""
        return cls(folder, train, scored) if (folder / PLACE).is_dir() else None

    def add(self, record: Mapping[str, Any]) -> None:
        self.epochs += record["kind"] == "epoch"
        with self._disk():
            self._write(record)
            self.writer.flush()  # a killed run loses none of the epochs that its checkpoint holds

    def _write(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "epoch":
            values = {"loss/total": record["loss"], "learning rate": self.train.lr_at(record["task"], record["epoch"])}
            values |= {f"loss/{name}": value for name, value in record["terms"].items()}
        else:
            values = {curve.replace("accuracy/", f"{self.accuracy}/"): record[name] for name, curve in CURVES.items()}
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, self.epochs)

    def close(self) -> None:
        with self._disk():
            self.writer.close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Says what to do where the disk refuses."""
        try:
            yield
        except OSError as error:
            way_out = f"Make room, then: ipll resume {self.place.parent}."
            raise DiskError(self.place, error.strerror or str(error), way_out) from error


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Names the metrics where they are damaged."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder / 'metrics.jsonl'}: damaged ({error}). Remove {folder / PLACE} to go on without its curves."
        ) from None
