"""Candidate sets: who may be flipped in, how often, and that the truth is always there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipll.data import candidates as module
from ipll.data.candidates import FLIPS, draw_candidates, flip_probabilities
from ipll.errors import ConfigError

KINDS = list(FLIPS)
UNTIMED = settings(deadline=None)  # a busy machine is no failure


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    """-> labels [n] and seen [n] with labels < seen <= classes, the number of classes, a seed."""
    classes = draw(st.integers(1, 12))
    seen = draw(st.lists(st.integers(1, classes), min_size=1, max_size=40))
    labels = [draw(st.integers(0, s - 1)) for s in seen]
    return np.array(labels), np.array(seen), classes, draw(st.integers(0, 1000))


def test_uniform_matrix() -> None:
    expected = [[1.0, 0.2, 0.2], [0.2, 1.0, 0.2], [0.2, 0.2, 1.0]]
    np.testing.assert_array_equal(flip_probabilities("uniform", 3, 0.2), expected)


def test_banded_matrix_is_the_one_printed_in_the_paper() -> None:
    printed = [
        [1, 0, 0, 0, 0, 0, 0],
        [0.5, 1, 0, 0, 0, 0, 0],
        [0.4, 0.5, 1, 0, 0, 0, 0],
        [0.3, 0.4, 0.5, 1, 0, 0, 0],
        [0.2, 0.3, 0.4, 0.5, 1, 0, 0],
        [0.1, 0.2, 0.3, 0.4, 0.5, 1, 0],
        [0, 0.1, 0.2, 0.3, 0.4, 0.5, 1],
    ]
    np.testing.assert_array_equal(flip_probabilities("banded", 7, 0.1), printed)


@UNTIMED
@given(st.integers(1, 30), st.floats(0, 0.99))
def test_banded_matrix_against_a_naive_loop(classes: int, q: float) -> None:
    expected = np.zeros((classes, classes))
    for true in range(classes):
        expected[true, true] = 1
        for lag in range(1, 6):
            if true - lag >= 0:  # not cyclic: nothing wraps round to the last classes
                expected[true, true - lag] = {1: 0.5, 2: 0.4, 3: 0.3, 4: 0.2, 5: 0.1}[lag]
    np.testing.assert_array_equal(flip_probabilities("banded", classes, q), expected)


def test_superclasses_cut_the_matrix() -> None:
    matrix = flip_probabilities("uniform", 4, 0.3, superclasses=np.array([7, 2, 7, 2]))
    expected = [[1, 0, 0.3, 0], [0, 1, 0, 0.3], [0.3, 0, 1, 0], [0, 0.3, 0, 1]]
    np.testing.assert_array_equal(matrix, expected)


def test_unknown_kind_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'banded'"):
        flip_probabilities("bandet", 3, 0.1)


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.eye(2), r"^stream\.candidates=mine makes an array \[2, 2\]: it must be \[3, 3\]"),
        (np.eye(3) * [1, 1, 0.5], r"probability of class 2 for its own samples is 0\.5; it must be 1.*stream\.miss"),
        (np.eye(3) + np.eye(3, k=1) * 1.5, r"of class 1 for a sample of class 0 is 1\.5; it must be in \[0, 1\]"),
        (np.eye(3) - np.eye(3, k=-1) * 0.1, r"of class 0 for a sample of class 1 is -0\.1; it must be in \[0, 1\]"),
        (np.diag([1, np.nan, 1]), r"of class 1 for a sample of class 1 is nan; it must be in \[0, 1\]"),
    ],
)
def test_a_matrix_that_holds_no_probabilities(matrix: np.ndarray, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a plugin: beyond 1 and off the diagonal it was drawn as if it were right, a smaller one ended in numpy."""
    monkeypatch.setitem(FLIPS.members, "mine", lambda classes, q: matrix)
    with pytest.raises(ConfigError, match=says):
        flip_probabilities("mine", 3, 0.1)


@UNTIMED
@given(problems(), st.sampled_from(KINDS), st.floats(0, 0.99), st.sampled_from([1, 2]))
def test_truth_is_in_and_the_rest_is_seen(
    problem: tuple[np.ndarray, np.ndarray, int, int], kind: str, q: float, least: int
) -> None:
    labels, seen, classes, seed = problem
    drawn = draw_candidates(labels, seen, flip_probabilities(kind, classes, q), rng(seed), least)
    assert drawn.shape == (len(labels), classes)
    for row, label, count in zip(drawn, labels, seen, strict=True):
        assert row[label]
        assert not row[count:].any()
        assert row.sum() >= min(least, count)


@UNTIMED
@given(problems(), st.sampled_from([1, 2]), st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_smaller_q_gives_subsets(
    problem: tuple[np.ndarray, np.ndarray, int, int], least: int, q: float, other_q: float
) -> None:
    labels, seen, classes, seed = problem
    small, large = (
        draw_candidates(labels, seen, flip_probabilities("uniform", classes, p), rng(seed), least)
        for p in sorted((q, other_q))
    )
    assert (small <= large).all()


@pytest.mark.parametrize("kind", KINDS)
def test_flip_rates_match_the_matrix(kind: str) -> None:
    """Every entry of the matrix is met within five standard errors, and nothing outside the seen classes."""
    classes, seen, n, q = 9, 8, 2000, 0.2
    labels = np.repeat(np.arange(seen), n)
    drawn = draw_candidates(labels, np.full(len(labels), seen), flip_probabilities(kind, classes, q), rng())
    rates = drawn.reshape(seen, n, classes).mean(1)
    expected = flip_probabilities(kind, classes, q)[:seen]
    expected[:, seen:] = 0.0
    assert (np.abs(rates - expected) <= 5 * np.sqrt(expected * (1 - expected) / n)).all()


def test_flips_are_independent() -> None:
    """A binomial number of false positives: a draw that copies one coin over a row would have a larger variance."""
    n, classes, q = 20_000, 11, 0.3
    drawn = draw_candidates(np.zeros(n, int), np.full(n, classes), flip_probabilities("uniform", classes, q), rng())
    false_positives = drawn.sum(1) - 1
    assert false_positives.mean() == pytest.approx(10 * q, abs=5 * np.sqrt(10 * q * (1 - q) / n))
    assert false_positives.var() == pytest.approx(10 * q * (1 - q), rel=0.06)


def test_rows_drawn_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = rng(3)
    labels, seen = generator.integers(0, 5, 500), generator.integers(5, 9, 500)
    matrix = flip_probabilities("uniform", 9, 0.05)
    whole = draw_candidates(labels, seen, matrix, rng(1), 2)
    monkeypatch.setattr(module, "CHUNK", 7)
    np.testing.assert_array_equal(draw_candidates(labels, seen, matrix, rng(1), 2), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_second_candidate_leaves_larger_sets_alone_and_is_a_fair_pick(kind: str) -> None:
    n, classes, label = 30_000, 9, 8
    labels, seen = np.full(n, label), np.full(n, classes)
    matrix = flip_probabilities(kind, classes, 0.1)
    one, two = (draw_candidates(labels, seen, matrix, rng(), least) for least in (1, 2))
    alone = one.sum(1) == 1
    np.testing.assert_array_equal(two[~alone], one[~alone])
    assert (two[alone].sum(1) == 2).all()
    possible = np.flatnonzero(matrix[label] > 0)[:-1]  # without the label itself
    counts = two[alone].sum(0)[:label]
    assert counts[possible].sum() == alone.sum()
    share = 1 / len(possible)
    error = np.sqrt(share * (1 - share) / alone.sum())
    np.testing.assert_allclose(counts[possible] / alone.sum(), share, atol=5 * error)


def test_second_candidate_where_none_can_be_flipped_in_is_any_seen_class() -> None:
    """The first class of the banded matrix is never ambiguous by itself."""
    n = 4000
    drawn = draw_candidates(np.zeros(n, int), np.full(n, 4), flip_probabilities("banded", 6, 0.1), rng(), 2)
    assert (drawn.sum(1) == 2).all()
    np.testing.assert_allclose(drawn.mean(0), [1, 1 / 3, 1 / 3, 1 / 3, 0, 0], atol=0.04)


def test_a_lone_class_stays_a_singleton() -> None:
    drawn = draw_candidates(np.zeros(50, int), np.ones(50, int), flip_probabilities("uniform", 3, 0.9), rng(), 2)
    np.testing.assert_array_equal(drawn, np.tile([True, False, False], (50, 1)))
