"""Fits and updates of a model in its folder: one at a time, gone on with after a stop, saved whole."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ipll.driver import stop_requests
from ipll.engine.files import check_no_others
from ipll.errors import ConfigError, RunError
from ipll.own.certainty import FLAGGED
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
LOOKED_AT, MANY = 10_000, 0.25  # rows of an update, about; the share of them that is told to be unlike what is known
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
        if samples is not None and (message := far_from_known(self.model, samples, options.get("device", "auto"))):
            warnings.warn(message, stacklevel=2)
        model = self.model.update(samples, pending=self.folder / PENDING, **options)
        if samples is None and set(model.decisions) == set(self.model.decisions):
            return self.model
        save(model, self.folder, options.get("reporter"))
        return model


def far_from_known(model: Model, samples: Samples, device: str = "auto") -> str:
    """-> a warning where rows of classes that the model knows are unlike anything that it has learnt, far more of them
    than usual: in other units, say, they would be learnt without a word. Else ''."""
    if samples.features is None or model.kind != "features" or model.through is not None:
        return ""
    known = {name for name, there in zip(model.names, model.known.tolist(), strict=True) if there}
    new = np.array([name not in known for name in samples.names], np.bool_)
    rows = np.flatnonzero(~samples.candidates[:, new].any(1))
    rows = rows[:: max(1, len(rows) // LOOKED_AT)]
    if not len(rows):
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is to be said of the samples is said as they are learnt
        unlike = int(model.predict(samples.take(rows), device=device).unlike.sum())
    n, usual = len(rows), FLAGGED if model.config.model.folds else 0.01
    if unlike < 2 or unlike < MANY * n or unlike < n * usual + 4 * math.sqrt(n * usual * (1 - usual)):
        return ""
    return (
        f"{samples.source}: of {n:,} samples whose candidates are all known, {unlike:,} are unlike anything learnt "
        f"before, where {100 * usual:.0f} % are usual. Look at their units and columns: an update cannot be undone."
    )


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
        reporter.stage("saving the model")
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
