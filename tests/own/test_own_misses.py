"""Sets that may lack the true label, of tables: by the size of a set, and by members that did not learn from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits

from ipll.families.classifier.stacked import set_losses
from ipll.families.disambiguation.robust import (
    BEFOREHAND,
    MOST,
    TOGETHER,
    confusion,
    miss_shares,
    said_by_votes,
    set_prior,
)
from ipll.own import Model, from_arrays

X, Y = load_digits(return_X_y=True)
ROWS, SEEN, RATE = 500, 6, 0.15


def with_misses(sets: np.ndarray, truth: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """-> sets without the true label for a share of them; one that would be empty has another label instead."""
    sets, missed = sets.copy(), np.flatnonzero(rng.random(len(sets)) < rate)
    sets[missed, truth[missed]] = False
    for row in missed[~sets[missed].any(1)]:
        sets[row, rng.choice(np.delete(np.arange(sets.shape[1]), truth[row]))] = True
    return sets


def test_how_many_sets_of_each_size_have_missed() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 8, 60_000)
    sets = rng.random((len(truth), 8)) < rng.choice([0.0, 0.2, 0.4], (len(truth), 1), p=[0.05, 0.6, 0.35])
    sets[np.arange(len(truth)), truth] = True
    drawn = with_misses(sets, truth, 0.2, rng)
    missed, size = ~drawn[np.arange(len(truth)), truth], drawn.sum(1)
    found = miss_shares(torch.from_numpy(drawn), 0.2)
    for k in range(1, 6):
        assert abs(float(found[k]) - missed[size == k].mean()) < 0.03, k
    assert found[1] > 0.25  # many of them are what is left of two
    pairs = torch.eye(4).repeat(3, 1).bool() | torch.eye(4).roll(1, 1).repeat(3, 1).bool()
    assert miss_shares(torch.cat([pairs, torch.eye(4)[:1].bool()]), 0.4)[1] == MOST  # one single among pairs


def test_what_a_set_alone_says() -> None:
    sets = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]], dtype=torch.bool)
    certain = torch.tensor([False, False, False, True])
    prior = set_prior(sets, torch.tensor([0.0, 0.4, 0.1, 0.3, 0.0]), 3, certain)
    third = [1 / 3, 1 / 3, 1 / 3, 0]  # all that are seen: no miss
    assert torch.allclose(prior, torch.tensor([[0.6, 0.2, 0.2, 0], [0.45, 0.45, 0.1, 0], third, [0, 1, 0, 0]]))


def test_what_votes_alone_say() -> None:
    """How often the samples of each class get such votes, counted one by one; of four classes three are seen."""
    rng = np.random.default_rng(0)
    p, votes = rng.dirichlet([1, 1, 1], 20), rng.integers(0, 3, (20, 3)).astype(float)
    votes[3] = 0  # a sample of the memory
    often = np.array([[BEFOREHAND * (2 * (c == k) + 1 / 3) for k in range(3)] for c in range(3)])
    for row in range(20):
        for c in range(3):
            for label in range(3):
                often[c, label] += p[row, c] * votes[row, label]
    often /= often.sum(1, keepdims=True)
    wide = [torch.from_numpy(np.pad(one, ((0, 0), (0, 1)))) for one in (p, votes)]
    told = confusion(*wide, seen=3)
    np.testing.assert_allclose(told[:3, :3].exp(), often)
    prior = said_by_votes(wide[1], told, 3)
    for row in range(20):
        products = [np.prod(often[c] ** (TOGETHER * votes[row])) for c in range(3)]
        np.testing.assert_allclose(prior[row], [*(np.array(products) / sum(products)), 0])


def test_people_who_take_one_class_for_another_are_seen_through() -> None:
    """Three vote, and each calls two 5s in five a 4, besides mistakes by chance. By the votes most 5s are no 5s, and of
    some nobody says it."""
    rng, rows = np.random.default_rng(3), np.flatnonzero(Y < SEEN)[:ROWS]
    truth, votes = Y[rows], np.zeros((ROWS, SEEN), np.float32)
    for _ in range(3):
        said = np.where(rng.random(ROWS) < 0.85, truth, rng.integers(0, SEEN, ROWS))
        said = np.where((truth == 5) & (rng.random(ROWS) < 0.4), 4, said)
        votes[np.arange(ROWS), said] += 1
    samples = from_arrays(X[rows], votes > 0, [str(c) for c in range(SEEN)])
    settings = {"train.epochs": 20, "model.width": 32, "train.threads": 1, "augment.drop": 0.0}
    model = Model.fit(replace(samples, votes=votes), device="cpu", settings=settings)
    label, named = np.array(model.records.labels(model.names)).astype(int), votes[:, 5] > 0
    assert (votes.argmax(1) == truth)[truth == 5].mean() < 0.5
    assert (label == truth)[truth == 5].mean() > 0.9
    assert (label == truth)[(truth == 5) & ~named].mean() > 0.5
    assert (label == truth)[truth == 4].mean() > 0.9
    assert (label != truth)[model.records.confidence >= 0.95].mean() <= 0.05


def ambiguous() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> rows of digits, their sets, and the sets with misses."""
    rng, rows = np.random.default_rng(1), np.flatnonzero(Y < SEEN)[:ROWS]
    sets = rng.random((ROWS, SEEN)) < 0.3
    sets[np.arange(ROWS), Y[rows]] = True
    return rows, sets, with_misses(sets, Y[rows], RATE, rng)


@cache
def fitted(rate: float) -> Model:
    rows, _, sets = ambiguous()
    settings = {"train.epochs": 20, "model.width": 32, "train.threads": 1, "augment.drop": 0.0}
    if rate:
        settings["disambiguation.miss_rate"] = rate
    return Model.fit(from_arrays(X[rows], sets, [str(c) for c in range(SEEN)]), device="cpu", settings=settings)


def test_missed_labels_are_found_and_what_is_unsure_is_said_to_be() -> None:
    rows, _, sets = ambiguous()
    truth, missed = Y[rows], ~sets[np.arange(ROWS), Y[rows]]
    model, plain = fitted(RATE), fitted(0.0)
    label, before = (np.array(m.records.labels(m.names)).astype(int) for m in (model, plain))
    outside = ~sets[np.arange(ROWS), label]
    assert (label == truth)[missed].mean() > 0.45
    assert (label == truth)[outside].mean() > 0.9
    assert (label == truth).mean() > (before == truth).mean() + 0.08
    for one, wrong in ((model, label != truth), (plain, before != truth)):  # nobody had to say that sets miss
        assert wrong[one.records.confidence >= 0.95].mean() <= 0.05
    assert RATE / 2 <= plain.missed <= 2 * RATE


def test_an_update_goes_on_with_what_was_found() -> None:
    model = fitted(RATE)
    rng, rows = np.random.default_rng(2), np.flatnonzero(Y < SEEN)[ROWS : ROWS + 150]
    sets = rng.random((150, SEEN)) < 0.3
    sets[np.arange(150), Y[rows]] = True
    later = model.update(from_arrays(X[rows], sets, list(model.names), [f"later {row}" for row in rows]), device="cpu")
    label = np.array(later.records.labels(later.names)).astype(int)
    assert (label[ROWS:] == Y[rows]).mean() > 0.95


def test_how_much_a_class_is_in_a_set() -> None:
    """Without votes and misses it is or is not, and what a temperature is fitted on are plain sets."""
    scores = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double()
    sets = torch.rand(50, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    sets[:, 0] |= ~sets.any(dim=1)
    by_part = set_losses(scores, torch.where(sets, 1.0, 0.0).double())
    inside = (scores.softmax(dim=1) * sets).sum(dim=1)
    torch.testing.assert_close(by_part, -inside.log())
    parts = torch.rand(50, 4, generator=torch.Generator().manual_seed(2)).double()
    torch.testing.assert_close(set_losses(scores, parts), -(scores.softmax(dim=1) * parts).sum(dim=1).log())
