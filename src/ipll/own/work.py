"""Fits and updates of a model in its folder: one at a time, gone on with after a stop, saved whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ipll.driver import stop_requests
from ipll.engine.files import check_no_others
from ipll.errors import ConfigError, RunError
from ipll.own.defaults import AUTO, METHODS, Facts, choose, configure
from ipll.own.folder import PENDING, change_facts, clear_pending, working_on
from ipll.own.history import Score, as_facts
from ipll.own.model import Model
from ipll.own.reading.samples import Samples
from ipll.own.saved import write_model
from ipll.progress import Listener, Silent

SAVING = "All is learnt, and the model is being saved; press again to throw it away."
KINDS = tuple(  # of data, as settings are chosen from them
    Facts(kind, samples, classes=2, side=32, channels=3, gpu=False)
    for kind in ("features", "images")
    for samples in (1_000, 50_000, 1_000_000)
)
LEFTOVERS = (".*", "state-*.safetensors", "records-*.parquet")  # of a fit that was killed as it saved its model


def check_settings(method: str, seed: int, given: Mapping[str, Any]) -> None:
    """Raises, before anything is read, where the method or a setting is wrong whatever the data are."""
    mistakes = []
    for facts in KINDS:
        try:
            configure(METHODS[facts.kind] if method == AUTO else method, seed, choose(facts, given), given)
            return
        except ConfigError as error:
            mistakes.append(error)
    raise mistakes[0]


def fit_folder(folder: str | Path, samples: Samples, *, overwrite: bool = False, **options: Any) -> Model:
    """`Model.fit` into a folder: waits for whoever works on it, goes on where the same fit was stopped, and saves."""
    folder = Path(folder)
    check_free(folder, overwrite=overwrite)
    with working_on(folder, new=True):
        check_free(folder, overwrite=overwrite)  # again: it may have had to wait for another one
        model = Model.fit(samples, pending=folder / PENDING, **options)
        check_free(folder, overwrite=overwrite)  # again: it may have taken long
        save(model, folder, options.get("reporter"))
    return model


class Opened(NamedTuple):
    """A model in its folder, on which nobody else works meanwhile."""

    folder: Path
    model: Model

    def update(self, samples: Samples | None, **options: Any) -> Model:
        """`Model.update`, which goes on where the same one was stopped, and saves; a failure leaves what was there.
        Without samples, `decisions` are among the options; where all of them were made before, the model stays."""
        model = self.model.update(samples, pending=self.folder / PENDING, **options)
        if samples is None and set(model.decisions) == set(self.model.decisions):
            return self.model
        save(model, self.folder, options.get("reporter"))
        return model


@contextmanager
def opened(folder: Path, *, plugins: Sequence[str | Path] = ()) -> Iterator[Opened]:
    """Waits for whoever works on the folder."""
    with working_on(folder):
        yield Opened(folder, Model.load(folder, plugins=plugins))


def update_folder(
    folder: str | Path, samples: Samples | None, *, plugins: Sequence[str | Path] = (), **options: Any
) -> Model:
    """The model in a folder learns from more samples, or from `decisions`, and takes its own place."""
    with opened(Path(folder), plugins=plugins) as place:
        return place.update(samples, **options)


def save(model: Model, folder: Path, reporter: Listener | None = None) -> None:
    """Saves to the end, also if Ctrl-C comes now: it takes no time beside what was learnt."""
    reporter = reporter or Silent()
    with stop_requests(note=lambda _: reporter.note(SAVING)):
        reporter.stage("the model is saved")
        try:
            write_model(folder, vars(model))
            clear_pending(folder)
        finally:
            reporter.end()


def keep_score(folder: Path, model: Model, score: Score) -> None:
    """Keeps how a model that was saved there scored; not where it has learnt on since."""
    scored = (*model.history[:-1], model.history[-1]._replace(score=score))

    def change(facts: dict[str, Any]) -> dict[str, Any]:
        return facts | {"history": as_facts(scored)} if facts.get("history") == as_facts(model.history) else facts

    with working_on(folder):
        change_facts(folder, change)


def check_free(folder: Path, *, overwrite: bool = False) -> None:
    """Raises unless a new model may go to this folder."""
    for place in (folder, *folder.parents):
        if os.path.exists(place) and not os.path.isdir(place):
            raise RunError(f"{place} is a file, not a folder: choose another --out.")
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise RunError(f"cannot write to {folder}: Permission denied. Choose another --out.")
    if (folder / "model.json").exists():
        if not overwrite:
            raise RunError(
                f"{folder} already holds a model. Choose another --out, replace it with --overwrite, "
                f"or let it learn more: ipll update {folder} TABLE"
            )
    else:
        check_no_others(folder, LEFTOVERS)


def readable(samples: Samples, model: Model, *, skip_bad: bool, **options: Any) -> Samples:
    """-> samples to predict. Photos go through the model's network, where it has one. Images that turn out to be broken
    are left out; else they are decoded block by block."""
    if model.through is not None:
        return model.seen(samples, skip_bad=skip_bad, **options)
    if skip_bad and samples.images is not None and model.kind == "images":
        return samples.decoded(model.shape[-1], model.shape[0], skip_bad=True)
    return samples
