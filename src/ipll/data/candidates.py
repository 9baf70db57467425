"""Candidate sets: the true label of a sample, unless it was missed, and the negative labels that were flipped in.

Classes are counted in their order of arrival throughout: the classes seen by some task are then the first columns, and
the banded matrix means what it does in the paper, confusion with the classes that came just before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ipll.errors import ConfigError
from ipll.registry import Registry

Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Matrix = npt.NDArray[np.float64]

BAND = (1.0, 0.5, 0.4, 0.3, 0.2, 0.1)  # the diagonal and the five sub-diagonals of the paper's flipping matrix
CHUNK = 8192  # rows drawn at once: 100,000 samples of 200 classes never need more than a few dozen MB

#: (classes, q) -> [classes, classes], row = true class: the probability of each label to be a candidate.
FLIPS: Registry[Callable[[int, float], Matrix]] = Registry("way to draw candidates")


@FLIPS.register("uniform")
def uniform(classes: int, q: float) -> Matrix:
    """Every negative label is flipped in with probability q = P(y' in S | y' != y) (Experimental Settings)."""
    return np.where(np.eye(classes, dtype=bool), 1.0, q)


@FLIPS.register("banded")
def banded(classes: int, q: float) -> Matrix:
    """The paper's non-uniform matrix: the five classes before the true one, .5 for the nearest to .1; q has no part."""
    matrix = np.zeros((classes, classes))
    for lag, probability in enumerate(BAND):
        matrix += probability * np.eye(classes, k=-lag)
    return matrix


def flip_probabilities(kind: str, classes: int, q: float, superclasses: Labels | None = None) -> Matrix:
    """-> [classes, classes], the matrix of `kind`; given the superclass of each class, nothing crosses superclasses."""
    matrix = _checked(kind, np.asarray(FLIPS[kind](classes, q)), classes)
    return matrix if superclasses is None else matrix * (superclasses[:, None] == superclasses)


def _checked(kind: str, matrix: Matrix, classes: int) -> Matrix:
    """Refuses what are no probabilities of each class: sets would be drawn of something else than was meant."""
    shape, wanted = matrix.shape, (classes, classes)
    if shape != wanted:
        raise ConfigError(f"stream.candidates={kind} makes an array {list(shape)}: it must be {list(wanted)}.")
    if (outside := np.argwhere(~((matrix >= 0) & (matrix <= 1)))).size:
        row, column = outside[0]
        raise ConfigError(
            f"stream.candidates={kind}: the probability of class {column} for a sample of class {row} is "
            f"{matrix[row, column]:g}; it must be in [0, 1]."
        )
    if (lacking := np.flatnonzero(np.diagonal(matrix) != 1)).size:
        raise ConfigError(
            f"stream.candidates={kind}: the probability of class {lacking[0]} for its own samples is "
            f"{matrix[lacking[0], lacking[0]]:g}; it must be 1. For sets without the true label: --set stream.miss=0.1"
        )
    return matrix


def draw_candidates(
    labels: Labels,
    seen: Labels,
    probabilities: Matrix,
    rng: np.random.Generator,
    min_candidates: int = 1,
    missed: Mask | None = None,
) -> Mask:
    """-> candidate sets [n, classes]; every label among the first `seen` [n] classes is drawn independently.

    The true label is always in, but for rows that are `missed` [n]: there it is taken out. A set of fewer than
    `min_candidates` labels gets more, at random among those that can be flipped in, else among all seen; where no
    other class is seen it stays as it is.
    """
    candidates = np.empty((len(labels), len(probabilities)), dtype=bool)
    missed = np.zeros(len(labels), dtype=bool) if missed is None else missed
    for start in range(0, len(labels), CHUNK):
        rows = slice(start, start + CHUNK)
        candidates[rows] = _draw(labels[rows], seen[rows], probabilities, rng, min_candidates, missed[rows])
    return candidates


def _draw(
    labels: Labels, seen: Labels, probabilities: Matrix, rng: np.random.Generator, min_candidates: int, missed: Mask
) -> Mask:
    columns = np.arange(len(probabilities))
    own: Mask = columns == labels[:, None]
    other = (columns < seen[:, None]) & ~own
    p = np.where(other, probabilities[labels], 0.0)
    # One number for every label, seen or not: the same numbers for every q, so a smaller q gives subsets.
    u = rng.random(p.shape)
    drawn: Mask = own | (u < p)
    lacking = min_candidates + missed - drawn.sum(1)  # the true label counts here, and is taken out below
    few = np.flatnonzero(lacking > 0)
    p, u, free = p[few], u[few], other[few] & ~drawn[few]
    # (u - p) / (1 - p) is uniform on [0, 1) for a label that was not drawn, so the smallest is a fair pick. It
    # costs no further random number, and under one q it is the label that a larger q would let in first.
    rank = np.where(free, (u - p) / (1.0 - p) + (p == 0.0), np.inf).argsort(1, kind="stable").argsort(1)
    drawn[few] |= free & (rank < lacking[few, None])
    drawn &= ~(own & missed[:, None])
    return drawn
