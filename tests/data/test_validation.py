"""Validation samples: a share of every class's training samples, the same for every run; no test sample is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipll.benchmark.run import load_data
from ipll.config import DataConfig, resolve
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from ipll.engine.placement import Selection
from ipll.errors import ConfigError, DataError

COUNTS = (20, 7, 2, 33)  # training samples of each class


def source(counts: tuple[int, ...] = COUNTS) -> Source:
    """Training sample i has the value i everywhere, test samples have 200 and more."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    train = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    test = np.arange(200, 208, dtype=np.uint8)[:, None, None, None]
    names = tuple("abcdefgh"[: len(counts)])
    return Source("few", train, labels, test, np.arange(8) % len(counts), names, (0.5,), (0.25,))


def ids(samples: Any) -> list[int]:
    """-> the training samples that these are, by their value."""
    return [int(value) for value in samples[:].ravel()]


@pytest.mark.parametrize(("share", "taken"), [(0.1, [2, 1, 1, 3]), (0.25, [5, 2, 1, 8]), (0.01, [1, 1, 1, 1])])
def test_every_class_gives_its_share(share: float, taken: list[int]) -> None:
    whole, held = source(), source().validating(share)
    assert np.bincount(held.test_labels).tolist() == taken
    assert np.bincount(held.train_labels).tolist() == [n - k for n, k in zip(COUNTS, taken, strict=True)]
    learnt, scored = ids(held.train_samples), ids(held.test_samples)
    assert learnt == sorted(learnt)  # in their order
    assert not set(learnt) & set(scored)
    assert set(learnt) | set(scored) == set(range(sum(COUNTS)))  # no test sample is among them
    for samples, labels in ((learnt, held.train_labels), (scored, held.test_labels)):
        assert np.array_equal(whole.train_labels[samples], labels)
    assert (held.class_names, held.mean, held.std) == (whole.class_names, whole.mean, whole.std)


def test_the_draw_is_random_and_always_the_same() -> None:
    scored = ids(source().validating(0.3).test_samples)
    assert scored == ids(source().validating(0.3).test_samples)
    first = [np.flatnonzero(source().train_labels == c)[: round(0.3 * n)] for c, n in enumerate(COUNTS)]
    assert set(scored) != set(np.concatenate(first).tolist())
    assert set(ids(source().validating(0.1).test_samples)) < set(scored)


def test_the_seed_of_a_run_does_not_matter() -> None:
    """Nor its method: both decide the stream of what is left."""
    held = [
        load_data(resolve("digits", method, seed=seed, overrides={"data.validation": 0.2}).data, None)
        for method, seed in (("pgdr", 0), ("proden", 7))
    ]
    assert np.array_equal(held[0].test_samples, held[1].test_samples)
    assert np.array_equal(held[0].train_samples, held[1].train_samples)
    digits = load_source("digits")
    assert len(held[0].train_labels) + len(held[0].test_labels) == len(digits.train_labels)
    assert Stream.build(held[0], resolve("digits").stream, 0).task.shape == held[0].train_labels.shape


def test_0_is_the_test_set() -> None:
    whole = source()
    assert whole.validating(0) is whole
    assert (DataConfig().validation, DataConfig().scored_on) == (0.0, "test")
    assert DataConfig(validation=0.1).scored_on == "validation"


def test_a_quick_run_scores_some_of_the_same_samples() -> None:
    """data.per_class limits what is left and what was taken out alike."""
    whole, few = (load_data(DataConfig("digits", validation=0.2, per_class=count), None) for count in (0, 5))
    assert np.bincount(few.train_labels).tolist() == np.bincount(few.test_labels).tolist() == [5] * 10
    for part, of in ((few.test_samples, whole.test_samples), (few.train_samples, whole.train_samples)):
        assert {row.tobytes() for row in part[:]} <= {row.tobytes() for row in of[:]}


def test_mapped_samples_are_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", source().train_samples)
    mapped = np.load(tmp_path / "samples.npy", mmap_mode="r")
    held, expected = replace(source(), train_samples=mapped).validating(0.25), source().validating(0.25)
    limited = held.limited(3)
    for kept in (held.train_samples, held.test_samples, limited.train_samples, limited.test_samples):
        assert isinstance(kept, Selection)
        assert isinstance(kept.array, np.memmap)
        assert np.shares_memory(kept.array, mapped)
    assert held.train_samples.shape == expected.train_samples.shape
    assert ids(held.train_samples) == ids(expected.train_samples)
    assert ids(held.test_samples) == ids(expected.test_samples)
    assert ids(limited.train_samples) == ids(expected.limited(3).train_samples)
    stream = Stream.build(held, resolve("digits", overrides={"stream.tasks": 2}).stream, 0)
    task = stream.make_task(1, held.train_samples)
    assert isinstance(task.samples, Selection)
    assert task.samples.array is mapped
    assert ids(task.samples) == [ids(held.train_samples)[i] for i in task.ids]


@pytest.mark.parametrize(
    ("counts", "share", "words"),
    [
        ((5, 1), 0.1, "takes 1 of the 1 training samples of class 'b' of 'few'"),
        ((4, 100), 0.99, "takes 4 of the 4 training samples of class 'a' of 'few'"),
    ],
)
def test_something_must_be_left_to_learn_from(counts: tuple[int, ...], share: float, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.validation={share} {words}.*choose a smaller share"):
        source(counts).validating(share)


def test_one_sample_is_enough_to_learn_from() -> None:
    assert np.bincount(source((5, 9)).validating(0.8).train_labels).tolist() == [1, 2]


def test_a_class_without_samples_is_refused_by_the_stream() -> None:
    held = source((5, 0, 5)).validating(0.2)
    with pytest.raises(DataError, match="class 'b' of 'few' has no training samples"):
        Stream.build(held, resolve("digits", overrides={"stream.tasks": 2}).stream, 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_shares_out_of_range(share: float) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation must be in \[0, 1\), got"):
        resolve("digits", overrides={"data.validation": share})
    with pytest.raises(ConfigError, match=r"data\.validation must be in \[0, 1\), got"):
        source().validating(share)
