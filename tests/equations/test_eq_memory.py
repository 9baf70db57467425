"""Eqs. 7 to 9: which samples are kept, and how many of each class."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from ipll.component import Context
from ipll.families.memory import by_class, quotas
from ipll.families.memory.by_class import (
    RandomMemory,
    RepresentativeDiverse,
    RepresentativeDiverseSettings,
    diverse_samples,
    nearest_neighbours,
)
from live import Live, array, as_sets, bare_context, known_prototypes

DIM = 6
UNTIMED = settings(deadline=None)


def features(n: int, seed: int = 0) -> Tensor:
    """A few clumps of different density; no two distances are equal."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=3, size=(3, DIM))
    clump = rng.integers(3, size=n)
    return torch.from_numpy(centres[clump] + rng.normal(size=(n, DIM)) * (0.3 + clump[:, None])).float()


@UNTIMED
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 120))
def test_quotas_against_a_naive_dealer(available: list[int], size: int) -> None:
    seen = len(available)
    share = quotas(torch.tensor(available), size, seen).tolist()
    assert share == reference.quotas(available, size, seen)
    assert sum(share) == min(size, sum(available))  # never more than m, and no room wasted
    for c, count in enumerate(available):
        assert min(count, size // seen) <= share[c] <= count


@pytest.mark.parametrize(("n", "k"), [(30, 1), (30, 4), (30, 29), (2, 1)])
def test_eq8_neighbours(n: int, k: int) -> None:
    x = features(n)
    sums, nearest = nearest_neighbours(x, k)
    for i in range(n):
        expected = reference.neighbours(array(x), i, k)
        assert nearest[i].tolist() == expected
        assert float(sums[i]) == pytest.approx(
            sum(reference.distance(array(x[i]), array(x[j])) for j in expected), rel=1e-4
        )


@pytest.mark.parametrize("block", [1, 7, 32, 99, 100])
def test_blocks_do_not_change_the_neighbours(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = features(100)
    sums, nearest = nearest_neighbours(x, 5)
    monkeypatch.setattr(by_class, "BLOCK", block)
    in_blocks, same = nearest_neighbours(x, 5)
    assert torch.equal(same, nearest)
    torch.testing.assert_close(in_blocks, sums)


@pytest.mark.parametrize("k", [1, 3, 10, 50])
@pytest.mark.parametrize(("n", "most"), [(40, 40), (40, 5), (40, 0), (40, 1), (11, 6), (4, 3), (2, 2), (1, 1), (1, 0)])
def test_eq9_diverse_samples(n: int, most: int, k: int) -> None:
    x = features(n, seed=n + k)
    picked = diverse_samples(x, most, k).tolist()
    assert picked == reference.diverse(array(x), most, k)
    assert len(picked) <= most
    assert len(set(picked)) == len(picked)


def test_diverse_samples_run_out_when_every_region_is_taken() -> None:
    assert len(diverse_samples(features(40), 40, 10)) < 40
    assert len(diverse_samples(features(40), 40, 39)) == 1


def keep(x: Tensor, predicted: list[int], part: RepresentativeDiverse | RandomMemory, seen: int) -> list[list[int]]:
    """-> the rows kept, by predicted class, from a pool with these features and predictions."""
    ctx: Context = bare_context(classes=seen + 2, dim=DIM, old=0, seen=seen)
    ctx.task = 0
    rng = np.random.default_rng(9)
    ctx.prototypes.mu[:seen] = torch.from_numpy(rng.normal(scale=2, size=(seen, DIM)))
    ctx.prototypes.known[:seen] = True
    ctx.pool_features = lambda: x  # type: ignore[method-assign]
    ctx.pool_predictions = lambda: torch.tensor(predicted)  # type: ignore[method-assign]
    part.build(ctx)
    rows = part.select().tolist()
    assert len(set(rows)) == len(rows)
    return [[row for row in rows if predicted[row] == c] for c in range(seen)]


COUNTS = [
    pytest.param([30, 30, 30], id="balanced"),
    pytest.param([40, 3, 20], id="fewer than K + 1"),
    pytest.param([1, 50, 9], id="one member"),
    pytest.param([0, 25, 0, 40], id="none"),
    pytest.param([2, 2, 2], id="fewer than the room"),
]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.67, 1.0])
@pytest.mark.parametrize(("size", "k"), [(30, 1), (30, 4), (47, 10), (4, 4)])
def test_the_memory_against_the_naive_selection(counts: list[int], share: float, size: int, k: int) -> None:
    seen = len(counts)
    rng = np.random.default_rng(sum(counts))
    predicted = rng.permutation(np.repeat(np.arange(seen), counts)).tolist()
    x = features(len(predicted), seed=size)
    part = RepresentativeDiverse(RepresentativeDiverseSettings(size=size, neighbours=k, diverse_share=share))
    kept = keep(x, predicted, part, seen)
    mu = known_prototypes(part.ctx.prototypes)
    expected = reference.memory(array(x), predicted, mu, size=size, seen=seen, k=k, share=share)
    assert kept == expected
    assert sum(map(len, kept)) == min(size, sum(counts))


def test_shares_of_diverse_samples() -> None:
    """N_d = 0.67 m / |Y_t|, here 13 of 20; all of it representative at 0."""
    x, predicted = features(300), [0] * 100 + [1] * 200
    results = []
    for share in (0.0, 0.67):
        part = RepresentativeDiverse(RepresentativeDiverseSettings(size=40, neighbours=2, diverse_share=share))
        results.append(keep(x, predicted, part, 2))
    representatives, mixed = results
    mu = part.ctx.prototypes.mu
    for c, members in enumerate((range(100), range(100, 300))):
        nearest = sorted(members, key=lambda i: reference.distance(array(x[i]), array(mu[c])))
        assert representatives[c] == nearest[:20]
        assert mixed[c][13:] == [i for i in nearest if i not in mixed[c][:13]][:7]
        assert mixed[c][:13] != nearest[:13]


@pytest.mark.parametrize(
    ("n", "compared", "most", "draws"), [(90, 30, 4, 1), (90, 30, 12, 2), (90, 30, 60, 3), (31, 30, 9, 2)]
)
def test_a_large_class_is_compared_in_draws(n: int, compared: int, most: int, draws: int) -> None:
    """Each of which follows the rule for its part of the diverse samples; the same ones, where it is done again."""
    x = features(n, seed=n)
    part = RepresentativeDiverse(
        RepresentativeDiverseSettings(size=most, neighbours=3, diverse_share=1.0, compared=compared)
    )
    (kept,) = keep(x, [0] * n, part, 1)
    order = torch.randperm(n, generator=part.ctx.generator("diverse", 0, 0)).tolist()
    drawn, expected = order[: min(n, draws * compared)], []
    for k, rows in enumerate(np.array_split(np.array(drawn), draws)):
        assert len(rows) <= compared
        share = len(range(k, most, draws))
        expected += [int(rows[i]) for i in reference.diverse(array(x[rows]), share, 3)]
    assert kept[: len(expected)] == expected
    assert len(kept) == most
    assert keep(x, [0] * n, part, 1) == [kept]


def test_an_epoch_goes_through_a_draw_of_a_large_memory() -> None:
    part = RandomMemory(RandomMemory.Settings(size=100, replayed=20))
    part.ctx = bare_context(classes=3, dim=DIM, old=0, seen=2)
    rows, seen = torch.arange(130), []
    for own, drawn in ((30, 30), (10, 20)):  # as many as the task's own, where these are more than 20
        part.ctx.pool = SimpleNamespace(incoming=own)  # type: ignore[assignment]
        for epoch in range(2):
            order = part.order(rows[: own + 100], 10, part.ctx.generator("order", 0, "main", epoch)).flatten()
            assert order.sort().values[:own].tolist() == list(range(own))
            assert len(order.unique()) == len(order) == own + drawn
            seen.append(set(order.tolist()))
        assert seen[-1] != seen[-2]
        small = part.order(rows[: own + 15], 5, part.ctx.generator("order", 0, "main", 0))
        assert len(small.unique()) == own + 15


def test_the_random_memory_fills_the_same_quotas() -> None:
    predicted = [0] * 3 + [1] * 30 + [2] * 30
    kept = keep(features(63), predicted, RandomMemory(RandomMemory.Settings(size=30)), 3)
    assert [len(rows) for rows in kept] == reference.quotas([3, 30, 30], 30, 3)


@pytest.mark.parametrize("share", [0.67, 0.0])
def test_live_memory(live: Live, share: float) -> None:
    """After task 2, from D_t u M, grouped by argmax over S_i of the trained head, with the new prototypes."""
    learner = live.learner(learnt=1, memory__diverse_share=share)
    earlier = set(learner.memory.ids.tolist())
    for _ in learner.fit(live.task(learner, 1)):
        pass
    ctx, pool = learner.ctx, learner.ctx.pool
    with torch.no_grad():
        out = learner.network.eval()(ctx.views.plain(pool.samples[:]))
    logits, x = array(out.logits), array(out.features)
    predicted = [reference.argmax_within(logits[i], s) for i, s in enumerate(as_sets(pool.candidates))]
    mu = known_prototypes(ctx.prototypes)
    expected = reference.memory(x, predicted, mu, size=60, seen=ctx.seen, k=4, share=share)
    rows = [row for kept in expected for row in kept]
    assert len(rows) == 60

    # What was kept was chosen in float32, where near ties may go the other way; in float64 the choice is the same.
    ids = learner.memory.ids.tolist()
    assert len(set(ids) & set(pool.ids[rows].tolist())) >= 50
    assert earlier & set(ids)
    assert set(ids) - earlier
    at = {sample: row for row, sample in enumerate(pool.ids.tolist())}
    assert torch.equal(learner.memory.p, pool.p[[at[sample] for sample in ids]])
    assert [predicted[at[sample]] for sample in ids] == [predicted[row] for row in rows]
    ctx.pool_features = lambda: out.features.double()  # type: ignore[method-assign]
    ctx.pool_predictions = lambda: torch.tensor(predicted)  # type: ignore[method-assign]
    assert learner.memory.select().tolist() == rows
