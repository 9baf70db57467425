"""How likely whole candidate sets are, and whether looks tell them, against loops."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ipll.own.naming import BEFOREHAND, LEAST, ROUNDS, naming_losses, told_by_looks

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def rates(posterior: Floats, sets: Bools) -> Floats:
    n, classes = sets.shape
    found = np.zeros((classes, classes))
    for c in range(classes):
        named = sum(sets[i, c] * (1 - posterior[i, c]) for i in range(n))
        besides = named / max(sum(1 - posterior[i, c] for i in range(n)), LEAST)
        for y in range(classes):
            both = sum(posterior[i, y] * sets[i, c] for i in range(n))
            found[y, c] = (both + BEFOREHAND * besides) / (sum(posterior[:, y]) + BEFOREHAND)
    return found.clip(LEAST, 1 - LEAST)


def joint(chances: Floats, sets: Bools, q: Floats) -> Floats:
    """-> P(y, S) [n, classes]."""
    found = np.zeros(sets.shape)
    for i, s in enumerate(sets):
        for y in np.flatnonzero(s):
            named = [q[y, c] if s[c] else 1 - q[y, c] for c in range(len(s)) if c != y]
            found[i, y] = chances[i, y] * math.prod(named)
    return found


def test_losses_of_whole_sets() -> None:
    rng = np.random.default_rng(0)
    n, classes = 30, 4
    logits, fold = rng.normal(size=(n, classes)), rng.integers(0, 3, n)
    sets = rng.random((n, classes)) < 0.4
    sets[np.arange(n), rng.integers(0, classes, n)] = True
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = np.zeros(n)
    for k in range(3):
        others = fold != k
        posterior = chances[others] * sets[others]
        for _ in range(ROUNDS):
            q = rates(posterior / posterior.sum(1, keepdims=True), sets[others])
            posterior = joint(chances[others], sets[others], q)
        expected[~others] = -np.log(joint(chances, sets, q).sum(1))[~others]
    found = naming_losses(torch.from_numpy(logits), torch.from_numpy(sets), torch.from_numpy(fold))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_labels_that_explain_who_is_named_are_likelier() -> None:
    """Sheep and grass that are told apart, beside all called grass: every label is in its set both times."""
    sheep = torch.arange(400) % 4 == 0
    beside = torch.arange(400) % 2 == 0  # grass in a picture with sheep
    sets = torch.stack([torch.ones(400, dtype=torch.bool), sheep | beside], dim=1)
    apart = torch.where(sheep[:, None], torch.tensor([-4.0, 4.0]), torch.tensor([4.0, -4.0]))
    grass = torch.tensor([4.0, -4.0]).expand(400, 2)
    fold = torch.arange(400) // 4 % 4
    assert naming_losses(apart, sets, fold).mean() < naming_losses(grass, sets, fold).mean() - 0.05


def test_how_far_looks_tell_the_set() -> None:
    rng = np.random.default_rng(0)
    n, classes = 60, 4
    looks, labels = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    labels[7] = 3  # the only one of its label
    sets = rng.random((n, classes)) < 0.3
    sets[np.arange(n), labels] = True
    sets[7] = True
    differ = random = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i and labels[j] == labels[i] and sets[j].sum() > 1]
        if sets[i].sum() == 1 or not others:
            continue
        nearest = min(others, key=lambda j: float(np.linalg.norm(looks[i] - looks[j])))
        differ += (sets[nearest] != sets[i]).sum()
        random += np.mean([(sets[j] != sets[i]).sum() for j in others])
    found = told_by_looks(torch.from_numpy(looks), torch.from_numpy(labels), torch.from_numpy(sets))
    assert found == pytest.approx(1 - differ / random)
    alone = torch.eye(4, dtype=torch.bool)
    assert told_by_looks(torch.zeros(4, 2), torch.arange(4), alone) == 0
    group = torch.arange(40) % 4
    by_looks = torch.eye(4, dtype=torch.bool)[group] | torch.tensor([True, False, False, False])
    assert told_by_looks(group[:, None].double(), torch.zeros(40, dtype=torch.int64), by_looks) == 1
