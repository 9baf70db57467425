"""The robust variant's rule against a naive reference: evidence, posterior, and which sets grow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from ipll.families.disambiguation.robust import KEPT, Misses, posterior
from ipll.pool import Pool
from live import array, as_sets, bare_context, random_sets

N, CLASSES, SEEN = 60, 9, 7


def naive_posterior(e: np.ndarray, s: set[int], seen: int, m: float) -> np.ndarray:
    """Bayes' rule in words: what each class was likely to be beforehand, times what the network says of it."""
    weight = np.zeros(len(e))
    for j in range(seen):
        prior = (1 - m) / len(s) if j in s else m / (seen - len(s))
        weight[j] = prior * max(e[j] - m / seen, 0)
    return weight / weight.sum()


def random_evidence(rng: np.random.Generator, n: int = N) -> Tensor:
    """[n, CLASSES] over the seen classes, from vague to nearly certain."""
    logits = rng.normal(size=(n, SEEN)) * rng.uniform(0, 6, size=(n, 1))
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return torch.from_numpy(np.pad(weights, ((0, 0), (0, CLASSES - SEEN)))).float()


def seen_sets(rng: np.random.Generator, n: int = N) -> Tensor:
    return torch.nn.functional.pad(random_sets(rng, n, SEEN), (0, CLASSES - SEEN))


def watching(sets: Tensor, rate: float, *, epoch: int = 9, epochs: int = 10) -> Misses:
    """-> at the last epoch, unless told otherwise, of samples with these sets and uniform targets."""
    ctx = bare_context(classes=CLASSES, dim=2, old=0, seen=SEEN)
    ctx.epoch, ctx.epochs = epoch, epochs
    p, certain = sets.float() / sets.sum(dim=1, keepdim=True), torch.zeros(len(sets), dtype=torch.bool)
    ctx.pool = cast(Pool, SimpleNamespace(candidates=sets.clone(), p=p, certain=certain))
    misses = Misses(ctx, rate)
    misses.begin_task()
    return misses


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.4])
def test_posterior(rate: float) -> None:
    rng = np.random.default_rng(0)
    evidence, sets = random_evidence(rng), seen_sets(rng)
    sets[0, :SEEN] = True  # nothing seen lies outside
    for row, e, s in zip(posterior(evidence, sets, SEEN, rate), evidence, as_sets(sets), strict=True):
        np.testing.assert_allclose(row.numpy(), naive_posterior(array(e), s, SEEN, rate), atol=1e-6)


def test_evidence_is_a_running_mean_that_starts_uniform() -> None:
    rng = np.random.default_rng(1)
    misses = watching(seen_sets(rng), 0.1)
    rows, expected = torch.tensor([3, 11, 4]), np.full((N, CLASSES), 1 / SEEN)
    for _ in range(3):
        logits = torch.from_numpy(rng.normal(size=(3, CLASSES))).float()
        misses.look(rows, logits)
        softmax = np.exp(array(logits)) / np.exp(array(logits)).sum(axis=1, keepdims=True)
        expected[rows] = KEPT * expected[rows] + (1 - KEPT) * softmax
    np.testing.assert_allclose(misses.evidence.numpy(), expected, atol=1e-6)


def test_a_set_grows_where_one_label_outside_has_more_than_half() -> None:
    rng = np.random.default_rng(2)
    evidence, sets, m = random_evidence(rng, 400), seen_sets(rng, 400), 0.2
    misses = watching(sets, m)
    misses.evidence.copy_(evidence)
    before = misses.ctx.pool.p.clone()
    misses.end_epoch()
    grown = 0
    for i, s in enumerate(as_sets(sets)):
        weight = naive_posterior(array(evidence[i]), s, SEEN, m)
        outside = {j for j in range(SEEN) if j not in s and weight[j] > 0.5}
        assert as_sets(misses.ctx.pool.candidates[i : i + 1])[0] == s | outside
        kept = np.array([w if j in s | outside else 0.0 for j, w in enumerate(weight)])
        expected = kept / kept.sum() if outside else before[i].numpy()
        np.testing.assert_allclose(misses.ctx.pool.p[i].numpy(), expected, atol=1e-6)
        grown += len(outside)
    assert 20 < grown < 300


def test_a_set_that_is_certain_never_grows() -> None:
    rng = np.random.default_rng(2)
    evidence, sets = random_evidence(rng, 400), seen_sets(rng, 400)
    doubted, misses = watching(sets, 0.2), watching(sets, 0.2)
    misses.ctx.pool.certain[::2] = True
    before = misses.ctx.pool.p.clone()
    for one in (doubted, misses):
        one.evidence.copy_(evidence)
        one.end_epoch()
    grown = (doubted.ctx.pool.candidates != sets).any(dim=1)
    assert grown[::2].sum() > 10
    assert torch.equal(misses.ctx.pool.candidates[::2], sets[::2])
    assert torch.equal(misses.ctx.pool.p[::2], before[::2])
    assert torch.equal(misses.ctx.pool.p[1::2], doubted.ctx.pool.p[1::2])


def test_what_was_found_stays_and_is_found_again_by_a_resumed_run() -> None:
    rng = np.random.default_rng(3)
    sets = seen_sets(rng)
    misses = watching(sets, 0.2)
    misses.evidence.copy_(random_evidence(rng))
    misses.end_epoch()
    grown = misses.ctx.pool.candidates.clone()
    assert not torch.equal(grown, sets)
    misses.evidence.copy_(torch.where(sets, 1.0, 0.0) / sets.sum(dim=1, keepdim=True))  # all speaks for the sets now
    misses.end_epoch()
    assert torch.equal(misses.ctx.pool.candidates, grown)
    misses.ctx.pool.candidates.copy_(sets)  # as the pool is built anew from task and memory
    misses.widen()
    assert torch.equal(misses.ctx.pool.candidates, grown)
    misses.end_task()
    assert len(misses.evidence) == len(misses.found) == 0


@pytest.mark.parametrize(("epoch", "epochs", "moves"), [(0, 10, False), (1, 10, False), (2, 10, True), (0, 1, True)])
def test_nothing_moves_within_the_warm_up(epoch: int, epochs: int, moves: bool) -> None:
    rng = np.random.default_rng(4)
    sets = seen_sets(rng)
    misses = watching(sets, 0.2, epoch=epoch, epochs=epochs)
    misses.evidence.copy_(random_evidence(rng))
    misses.end_epoch()
    assert torch.equal(misses.ctx.pool.candidates, sets) != moves


@pytest.mark.parametrize("rate", [0.01, 0.25, 0.49])
def test_without_evidence_nothing_moves(rate: float) -> None:
    """A sample that is never trained on keeps its uniform evidence, however many misses are expected."""
    sets = seen_sets(np.random.default_rng(5))
    misses = watching(sets, rate)
    before = misses.ctx.pool.p.clone()
    misses.end_epoch()
    assert torch.equal(misses.ctx.pool.candidates, sets)
    assert torch.equal(misses.ctx.pool.p, before)


def test_the_same_evidence_moves_more_where_more_misses_are_expected() -> None:
    rng = np.random.default_rng(6)
    evidence, sets = random_evidence(rng), seen_sets(rng)
    counts: list[Any] = []
    for rate in (0.01, 0.05, 0.1, 0.2):
        misses = watching(sets, rate)
        misses.evidence.copy_(evidence)
        misses.end_epoch()
        counts.append(int(misses.found.sum()))
    assert counts == sorted(set(counts))
