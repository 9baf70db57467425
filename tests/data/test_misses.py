"""Streams whose annotators now and then miss: the true label is not among the candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipll.data.candidates import draw_candidates, flip_probabilities
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream, StreamConfig

DIGITS = load_source("digits")
CONFIG = StreamConfig(tasks=5, blurry=10.0, q=0.2)
ROWS = np.arange(len(DIGITS.train_labels))


def missed(stream: Stream, source: Source = DIGITS) -> np.ndarray:
    """-> [n], whose true label is not a candidate."""
    lacks: np.ndarray = ~stream.candidates[np.arange(len(stream.task)), source.train_labels]
    return lacks


@settings(deadline=None, max_examples=30)
@given(
    st.floats(0, 0.99), st.floats(0, 0.9), st.integers(1, 10), st.sampled_from(["uniform", "banded"]),
    st.sampled_from([1, 2]), st.integers(0, 99),
)  # fmt: skip
def test_share_is_exact_and_no_set_is_empty(
    miss: float, q: float, tasks: int, kind: str, least: int, seed: int
) -> None:
    config = StreamConfig(tasks=tasks, q=q, miss=miss, candidates=kind, min_candidates=least)
    stream = Stream.build(DIGITS, config, seed)
    seen = np.array([stream.seen(t) for t in stream.task])
    mistakable = seen > 1  # a task of one class has nothing else to be taken for
    assert missed(stream).sum() == round(miss * mistakable.sum())
    assert not missed(stream)[~mistakable].any()
    places = stream.candidates[:, stream.class_order]
    assert not (places & (np.arange(10) >= seen[:, None])).any()
    assert (stream.candidates.sum(1) >= np.minimum(least, seen - missed(stream))).all()
    assert stream.candidates.any(1).all()


def test_other_samples_and_other_labels_stay_as_they_are() -> None:
    full, lacking = (Stream.build(DIGITS, replace(CONFIG, miss=miss), seed=3) for miss in (0.0, 0.2))
    gone = missed(lacking)
    np.testing.assert_array_equal(lacking.task, full.task)
    np.testing.assert_array_equal(lacking.candidates[~gone], full.candidates[~gone])
    false = full.candidates.copy()
    false[ROWS, DIGITS.train_labels] = False
    ambiguous = gone & false.any(1)
    np.testing.assert_array_equal(lacking.candidates[ambiguous], false[ambiguous])
    assert (lacking.candidates[gone & ~ambiguous].sum(1) == 1).all()
    assert ambiguous.sum() > 50
    assert (gone & ~ambiguous).sum() > 50


def test_a_smaller_share_misses_a_subset_and_another_seed_misses_others() -> None:
    few, many = (missed(Stream.build(DIGITS, replace(CONFIG, miss=miss), seed=0)) for miss in (0.05, 0.1))
    assert (few <= many).all()
    other = missed(Stream.build(DIGITS, replace(CONFIG, miss=0.1), seed=1))
    assert (many & other).sum() < 0.3 * many.sum()


def test_misses_are_spread_over_tasks_and_classes() -> None:
    stream = Stream.build(DIGITS, replace(CONFIG, miss=0.5), seed=0)
    for groups in (stream.task, DIGITS.train_labels):
        for group in np.unique(groups):
            share = missed(stream)[groups == group].mean()
            assert share == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / (groups == group).sum()))


@pytest.mark.parametrize("kind", ["uniform", "banded"])
def test_what_fills_an_empty_set_is_a_label_that_can_be_flipped_in(kind: str) -> None:
    """A fair pick among them; where none can, among all seen."""
    n, classes = 30_000, 6
    for label in (0, 4):
        matrix = flip_probabilities(kind, classes + 2, 0.1)
        sets = draw_candidates(
            np.full(n, label), np.full(n, classes), matrix, np.random.default_rng(0), missed=np.ones(n, dtype=bool)
        )
        alone = sets.sum(1) == 1
        possible = (matrix[label] > 0) & (np.arange(classes + 2) < classes)
        possible[label] = False
        if not possible.any():
            possible = (np.arange(classes + 2) < classes) & (np.arange(classes + 2) != label)
        assert not sets[:, ~possible].any()
        assert sets[alone][:, possible].mean(0).min() > 0.05


def test_a_flip_stays_in_its_superclass() -> None:
    groups = np.arange(10) // 5
    source = replace(DIGITS, superclasses=groups)
    config = StreamConfig(tasks=2, order="superclass", flip_scope="superclass", q=0.1, miss=0.3)
    stream = Stream.build(source, config, seed=0)
    rows, labels = np.nonzero(stream.candidates)
    assert (groups[labels] == groups[source.train_labels[rows]]).all()


def test_golden_stream_with_misses() -> None:
    """Published numbers rest on these arrays."""
    stream = Stream.build(DIGITS, replace(CONFIG, miss=0.1), seed=0)
    assert stream.sha256() == "e951c9adcb48d41a4b53539d50f8068ccf3329f24ee56533b400b06ed6647f05"
