"""Samples as arrays of the shape that a model learnt from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipll.errors import DataError
from ipll.own.reading.samples import Samples, of_words

Array = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
BLOCK = 4096  # samples that are looked at, or decoded to be predicted, at a time
ROWS = 2**16  # of a table that are held as 64-bit floats at a time


def kind_of(samples: Samples) -> str:
    """-> what is learnt from."""
    return "images" if samples.features is None else "features"


def array_of(samples: Samples) -> Array:
    """-> features [n, d], or images that were decoded [n, channels, size, size]."""
    if samples.features is not None:
        return np.ascontiguousarray(samples.features)
    assert samples.images is not None
    assert isinstance(samples.images.items, np.ndarray)
    return np.ascontiguousarray(samples.images.items)


def columns_in(given: tuple[str, ...], names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """-> where each of the given classes is among the names; -1 for one that is not."""
    position = {name: column for column, name in enumerate(names)}
    return np.array([position.get(name, -1) for name in given], np.int64)


def spread(values: npt.NDArray[Any], given: tuple[str, ...], names: tuple[str, ...]) -> npt.NDArray[Any]:
    """-> values [n, given] in the columns of `names` [n, names], zero elsewhere."""
    columns = columns_in(given, names)
    wide = np.zeros((len(values), len(names)), values.dtype)
    wide[:, columns[columns >= 0]] = values[:, columns >= 0]
    return wide


def matched(
    samples: Samples, kind: str, shape: Sequence[int], feature_names: tuple[str, ...], mean: Sequence[float]
) -> Samples:
    """-> the samples in the shape of a model: the same features in its order, their mean where a number is missing.
    Images keep their size until decoded."""
    if kind_of(samples) != kind:
        raise DataError(f"{samples.source} holds {kind_of(samples)}, but the model learnt {kind}. Use another model.")
    if kind == "images":
        return samples
    return filled(_in_order(with_words(samples, feature_names), shape, feature_names), mean)


def filled(samples: Samples, mean: Sequence[float]) -> Samples:
    """-> the samples with the mean of a feature where its number is missing."""
    if samples.features is None or not (gaps := np.isnan(samples.features)).any():
        return samples
    return replace(samples, features=np.where(gaps, np.array(mean, np.float32), samples.features))


def with_used_words(samples: Samples) -> Samples:
    """-> the samples without words that none of them has: those of rows that are not learnt from."""
    if samples.features is None or not samples.words:
        return samples
    used = ~of_words(samples.feature_names, samples.words) | samples.features.any(0)
    names = tuple(name for name, kept in zip(samples.feature_names, used, strict=True) if kept)
    return replace(samples, features=samples.features[:, used], feature_names=names)


def without_gaps(samples: Samples) -> tuple[Samples, tuple[float, ...], tuple[float, ...]]:
    """-> the first samples that a model learns from, with the mean where a number is missing, and mean and deviation of
    all. A feature without any number is a DataError."""
    mean, std = statistics(array_of(samples))
    if (empty := np.flatnonzero(np.isnan(mean))).size:
        name = samples.feature_names[empty[0]]
        raise DataError(
            f"{samples.source}: no sample that is learnt from has a number for '{name}'. Remove the column."
        )
    return filled(samples, mean), mean, std


def with_words(samples: Samples, feature_names: tuple[str, ...]) -> Samples:
    """-> the samples with the words that a model knows, of columns that hold words, or nothing here: those that do not
    occur are zero. Words that the model does not know are left out, and told."""
    assert samples.features is not None
    if set(samples.feature_names) == set(feature_names):
        return samples
    columns = dict(zip(samples.feature_names, samples.features.T, strict=True))
    here = {word: {name for name in columns if name.startswith(f"{word}=")} for word in samples.words}
    here |= {name: {name} for name, values in columns.items() if np.isnan(values).all()}  # words, for all one can see
    unknown: list[str] = []
    for word, given in here.items():
        if known := [name for name in feature_names if name.startswith(f"{word}=")]:
            unknown += sorted(given.difference(known, {word}))
            none = np.zeros(len(samples), np.float32)
            found = {name: columns.get(name, none) for name in known}
            columns = {name: values for name, values in columns.items() if name not in given} | found
    if unknown:
        told = ", ".join(f"'{name}'" for name in unknown[:5]) + (" ..." if len(unknown) > 5 else "")
        warnings.warn(f"{samples.source}: words that the model does not know are ignored: {told}.", stacklevel=2)
    return replace(samples, features=np.stack([*columns.values()], axis=1), feature_names=tuple(columns))


def _in_order(samples: Samples, shape: Sequence[int], feature_names: tuple[str, ...]) -> Samples:
    given = samples.feature_names
    assert samples.features is not None
    unnamed = tuple(map(str, range(len(given))))
    if given == feature_names or (len(given) == shape[0] and unnamed in (given, feature_names)):
        return samples
    place = {name: column for column, name in enumerate(given)}
    if place.keys() == set(feature_names):
        order = [place[name] for name in feature_names]
        return replace(samples, features=samples.features[:, order], feature_names=feature_names)
    wanted = set(feature_names)
    missing = [name for name in feature_names if name not in place]
    foreign = [name for name in given if name not in wanted]
    faults = [f"{what} '{names[0]}'" for what, names in (("lacks", missing), ("adds", foreign)) if names]
    raise DataError(
        f"{samples.source} has {len(given)} features and the model {shape[0]}: it {' and '.join(faults)}. "
        "Give the features that the model learnt from."
    )


def blocks(samples: Samples, shape: Sequence[int]) -> Iterator[Array]:
    """The samples a block at a time, images decoded: all at once they may be too many."""
    for start in range(0, len(samples), BLOCK):
        block = samples.take(np.arange(start, min(start + BLOCK, len(samples))))
        yield array_of(block.decoded(shape[-1], shape[0]) if kind_of(block) == "images" else block)


def statistics(array: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """-> mean and standard deviation of each feature, or of each channel of images scaled to [0, 1].

    What is constant has 1 for its deviation. Images are counted by grey level, and are never held as floats. Numbers
    that are missing (NaN) do not count; of a feature of which all are, the mean is missing.
    """
    if array.ndim == 2:
        parts = [slice(start, start + ROWS) for start in range(0, len(array), ROWS)]
        n = len(array) - sum(np.isnan(array[part]).sum(0) for part in parts)
        with np.errstate(invalid="ignore"):  # of none
            mean = sum(np.nan_to_num(array[part].astype(np.float64), nan=0.0).sum(0) for part in parts) / n
            std = np.sqrt(sum(np.nan_to_num((array[part] - mean) ** 2, nan=0.0).sum(0) for part in parts) / n)
        smallest = 1e-7 * np.fmax(np.fmax.reduce(array), -np.fmin.reduce(array))  # what rounding leaves of a constant
    else:
        levels = np.arange(256) / 255
        counts = np.zeros((array.shape[1], 256))
        for start in range(0, len(array), BLOCK):
            for channel in range(array.shape[1]):
                counts[channel] += np.bincount(array[start : start + BLOCK, channel].reshape(-1), minlength=256)
        shares = counts / counts.sum(1, keepdims=True)
        mean = shares @ levels
        std = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
        smallest = np.full(len(mean), 1e-7)
    return tuple(mean.tolist()), tuple(np.where(std > smallest, std, 1.0).tolist())
