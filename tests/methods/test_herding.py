"""Herding against brute force, and what the memory keeps by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from ipll.families.memory import MemorySettings
from ipll.families.memory.herding import Herding, herd
from live import Live, array, as_sets, bare_context

DIM = 5


def features(n: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, DIM)) * rng.uniform(0.2, 3, size=(n, 1)) + 1)


def naive_herd(x: np.ndarray, count: int) -> list[int]:
    """Step k takes the sample with which the mean of those taken is nearest to the class's."""
    taken: list[int] = []
    while len(taken) < min(count, len(x)):
        distances = tried(x, taken)
        taken.append(min(distances, key=distances.__getitem__))
    return taken


def tried(x: np.ndarray, taken: list[int]) -> dict[int, float]:
    """-> for every sample not yet taken, how far from the class's mean the mean would be with it."""
    mean = sum(x) / len(x)
    left = [i for i in range(len(x)) if i not in taken]
    return {i: reference.distance(mean, sum(x[j] for j in [*taken, i]) / (len(taken) + 1)) for i in left}


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 25), st.integers(1, 30), st.integers(0, 10_000))
def test_herding_against_brute_force(n: int, count: int, seed: int) -> None:
    """Also where features are not of one length, so that their norms count."""
    x = features(n, seed)
    picked = herd(x, count).tolist()
    assert len(picked) == min(n, count)
    for k, i in enumerate(picked):  # of two that are equally good (of two samples, both are) either will do
        distances = tried(x.numpy(), picked[:k])
        assert distances[i] <= min(distances.values()) + 1e-9


def test_fewer_exemplars_are_a_prefix_of_more() -> None:
    x = features(40, 1)
    assert herd(x, 12).tolist() == herd(x, 30).tolist()[:12]
    assert sorted(herd(x, 100).tolist()) == list(range(40))


def kept_by_class(x: Tensor, predicted: list[int], size: int, seen: int) -> list[list[int]]:
    ctx = bare_context(classes=seen + 2, dim=DIM, old=0, seen=seen)
    ctx.pool_features = lambda: x  # type: ignore[method-assign]
    ctx.pool_predictions = lambda: torch.tensor(predicted)  # type: ignore[method-assign]
    memory = Herding(MemorySettings(size=size))
    memory.build(ctx)
    rows = memory.select().tolist()
    assert len(set(rows)) == len(rows)
    return [[row for row in rows if predicted[row] == c] for c in range(seen)]


def naive_memory(x: np.ndarray, predicted: list[int], size: int, seen: int) -> list[list[int]]:
    """The class's quota, herded among features of length one."""
    groups = [[i for i in range(len(x)) if predicted[i] == c] for c in range(seen)]
    unit = np.array([row / np.sqrt(np.sum(row * row)) for row in x])
    shares = reference.quotas([len(group) for group in groups], size, seen)
    return [
        [group[i] for i in naive_herd(unit[group], quota)] if quota else []
        for group, quota in zip(groups, shares, strict=True)
    ]


@pytest.mark.parametrize("counts", [[30, 30, 30], [40, 3, 20], [1, 50, 9], [0, 25, 0, 40], [3, 3, 3]])
@pytest.mark.parametrize("size", [30, 47, 4, 0])
def test_the_memory_against_the_naive_one(counts: list[int], size: int) -> None:
    seen = len(counts)
    predicted = np.random.default_rng(sum(counts)).permutation(np.repeat(np.arange(seen), counts)).tolist()
    x = features(len(predicted), size)
    kept = kept_by_class(x, predicted, size, seen)
    assert kept == naive_memory(x.numpy(), predicted, size, seen)
    assert sum(map(len, kept)) == min(size, sum(counts))


@pytest.mark.parametrize("method", ["proden+icarl", "proden+wa", "proden+bic"])
def test_live_every_class_is_herded_anew_from_the_task_and_the_memory(live: Live, method: str) -> None:
    """By argmax over S_i of the corrected network. An old class may get fresh samples and lose earlier ones."""
    learner = live.learner(method, learnt=1)
    earlier = dict(zip(learner.memory.ids.tolist(), learner.memory.classes.tolist(), strict=True))
    for _ in learner.fit(live.task(learner, 1)):
        pass
    ctx, pool, memory = learner.ctx, learner.ctx.pool, learner.memory
    x, logits = ctx.embed(pool.samples)
    predicted = [reference.argmax_within(o, s) for o, s in zip(array(logits), as_sets(pool.candidates), strict=True)]
    rows = {int(sample): row for row, sample in enumerate(pool.ids)}
    at = [rows[sample] for sample in memory.ids.tolist()]
    assert memory.classes.tolist() == [predicted[row] for row in at]
    shares = reference.quotas([predicted.count(c) for c in range(ctx.seen)], 60, ctx.seen)
    assert torch.bincount(memory.classes, minlength=ctx.seen).tolist() == shares
    assert len(at) == 60
    assert torch.equal(memory.p, pool.p[at])
    assert torch.equal(memory.candidates, pool.candidates[at])

    # In float64 the choice is the naive one; what was kept was chosen in float32, where near ties may go otherwise.
    ctx.pool_features = lambda: x.double()  # type: ignore[method-assign]
    ctx.pool_predictions = lambda: torch.tensor(predicted)  # type: ignore[method-assign]
    expected = [row for group in naive_memory(array(x), predicted, 60, ctx.seen) for row in group]
    assert memory.select().tolist() == expected
    assert len(set(at) & set(expected)) >= 50
    fresh = [c for sample, c in zip(memory.ids.tolist(), memory.classes.tolist(), strict=True) if sample not in earlier]
    assert min(fresh) < ctx.old
