"""A stream of the user's own, in place of one that is drawn: from a file, or made in Python."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ipll.config import Config
from ipll.data.source import Source
from ipll.data.stream import DROPPED, Stream, check_classes, inconsistency
from ipll.errors import ConfigError, DataError


def as_given(given: Stream | str | Path, config: Config, source: Source) -> tuple[Config, Stream]:
    """-> configuration and stream of a run that learns from this one. Its settings become the run's, with its SHA-256
    in `stream.given`, unless they and the seed make the very same stream. The seed decides all else that is random."""
    check_classes(source)
    stream, name = (given, "the stream") if isinstance(given, Stream) else (Stream.load(Path(given)), str(given))
    if problem := inconsistency(stream) or _unfit(stream, source):
        raise DataError(f"{name}: {problem}.")
    settings = replace(stream.config, given="")
    if stream.seed != config.seed or not _is_drawn(stream, replace(stream, config=settings), source):
        settings = replace(settings, given=stream.sha256())
    config = replace(config, stream=settings)
    return config, replace(stream, config=settings, seed=config.seed)


def sets_without_truth(stream: Stream, source: Source) -> str:
    """-> in words, in how many sets that arrive the true label is missing; '' in none."""
    arriving = np.flatnonzero(stream.task != DROPPED)
    without = int((~stream.sets()[arriving, source.train_labels[arriving]]).sum())
    return f"In {without:,} of {len(arriving):,} candidate sets the true label is missing." if without else ""


def _is_drawn(stream: Stream, plain: Stream, source: Source) -> bool:
    """Is it what its own settings draw?"""
    with suppress(ConfigError):
        return Stream.build(source, plain.config, plain.seed).sha256() == stream.sha256()
    return False


def _unfit(stream: Stream, source: Source) -> str:
    """-> why a run cannot learn it, in words; '' where it can."""
    n, classes = stream.candidates.shape
    if stream.source_name != source.name:
        return f"it is of '{stream.source_name}', and the run learns '{source.name}'. Name a preset of that data set"
    if (n, classes) != (len(source.train_labels), source.classes):
        return (
            f"it has {n:,} samples of {classes} classes, and '{source.name}' has {len(source.train_labels):,} of "
            f"{source.classes}. Settings of the data (data.validation, data.per_class) must be those it was made with"
        )
    if empty := sorted(set(range(len(stream))) - set(stream.task.tolist())):
        return f"no sample arrives in task {empty[0]} (counted from 0). Give each task one"
    arriving = np.flatnonzero(stream.task != DROPPED)
    without = arriving[~stream.sets()[arriving].any(axis=1)]
    if len(without):
        return (
            f"{len(without):,} samples have no candidate among the classes seen when they arrive, such as sample "
            f"{without[0]} in task {stream.task[without[0]]} (both counted from 0). Give each one"
        )
    return ""
