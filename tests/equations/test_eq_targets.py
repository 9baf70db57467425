"""Eqs. 5 and 6, and PRODEN's rule: soft targets, when they change, and which of them the loss sees."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from ipll.component import Batch, Phase, uniform_over
from ipll.families.disambiguation import Uniform
from ipll.families.disambiguation.pgdr import Pgdr, PgdrSettings
from ipll.families.disambiguation.proden import Proden
from ipll.learner import Learner
from ipll.networks.network import Output
from live import Live, Step, array, as_sets, bare_context, random_sets

N, CLASSES = 40, 8


def problem(seed: int) -> tuple[Batch, dict[str, Output]]:
    """-> a batch whose stored targets lie anywhere in S_i, half of it from memory, and the network's outputs."""
    rng = np.random.default_rng(seed)
    sets = random_sets(rng, N, CLASSES)
    p = torch.from_numpy(rng.random((N, CLASSES))).float() * sets * random_sets(rng, N, CLASSES, q=0.5)
    p = torch.where(p.sum(dim=1, keepdim=True) > 0, p, sets.float())
    batch = Batch(torch.arange(N), sets, p / p.sum(dim=1, keepdim=True), torch.arange(N) >= N // 2, {})
    weak, strong = (torch.from_numpy(rng.normal(scale=2, size=(N, CLASSES))).float() for _ in range(2))
    return batch, {
        "weak": Output(weak, weak, weak, weak[:, :0]),
        "strong": Output(strong, strong, strong, strong[:, :0]),
    }


def pgdr(epoch: int = 0, epochs: int = 1, **settings: Any) -> Pgdr:
    ctx = bare_context(classes=CLASSES, dim=2, old=0, seen=CLASSES)
    part = Pgdr(PgdrSettings(**settings))
    part.build(ctx)
    ctx.epoch, ctx.epochs = epoch, epochs
    part.begin_epoch()
    return part


def test_eq5_uniform() -> None:
    sets = random_sets(np.random.default_rng(0), N, CLASSES)
    for row, s in zip(uniform_over(sets), as_sets(sets), strict=True):
        np.testing.assert_allclose(row.numpy(), reference.uniform(s, CLASSES), rtol=1e-6)


@pytest.mark.parametrize(("epoch", "epochs"), [(0, 5), (2, 5), (4, 5), (0, 1)])
def test_eq6_momentum(epoch: int, epochs: int) -> None:
    """The argmax is over S_i on the weak view; the result is both used and stored; p itself is left alone."""
    part = pgdr(epoch, epochs)
    beta = reference.beta_at(epoch, epochs, 0.8, 0.6)
    batch, out = problem(epoch)
    before = batch.p.clone()
    use, store = part.targets(batch.p, out, batch)
    assert torch.equal(batch.p, before)
    assert torch.equal(use, store)
    returned = 0
    for i, s in enumerate(as_sets(batch.candidates)):
        scores = array(out["weak"].logits[i])
        expected = reference.momentum_target(array(before[i]), scores, s, beta)
        np.testing.assert_allclose(use[i].numpy(), expected, atol=1e-6)
        returned += int(before[i, reference.argmax_within(scores, s)] == 0)
    assert returned > 0  # the original set: classes without any weight so far come back


@pytest.mark.parametrize("sharpness", [1.0, 2.0, 0.5])
@pytest.mark.parametrize(("epoch", "epochs"), [(0, 5), (4, 5)])
def test_eq6_with_the_prediction_within_the_set_instead_of_its_largest_entry(
    epoch: int, epochs: int, sharpness: float
) -> None:
    """To some power: that of a softmax is the softmax of so many times the logits."""
    part = pgdr(epoch, epochs, soft=True, sharpness=sharpness)
    beta = reference.beta_at(epoch, epochs, 0.8, 0.6)
    batch, out = problem(epoch)
    use, store = part.targets(batch.p, out, batch)
    assert torch.equal(use, store)
    assert not use[~batch.candidates].any()
    for i, s in enumerate(as_sets(batch.candidates)):
        expected = reference.soft_momentum_target(array(batch.p[i]), array(out["weak"].logits[i]), s, beta, sharpness)
        np.testing.assert_allclose(use[i].numpy(), expected, atol=1e-6)
    assert not torch.allclose(use, pgdr(epoch, epochs).targets(batch.p, out, batch)[0], atol=0.01)


def test_ever_sharper_it_is_the_largest_entry_alone() -> None:
    batch, out = problem(0)
    sharp = pgdr(soft=True, sharpness=1e4).targets(batch.p, out, batch)[0]
    torch.testing.assert_close(sharp, pgdr().targets(batch.p, out, batch)[0])


def test_the_prediction_within_the_set_is_that_of_adjusted_logits() -> None:
    part = pgdr(soft=True, adjust=1.0)
    part.log_prior.copy_(torch.linspace(-3, 0, CLASSES))
    batch, out = problem(0)
    use, _ = part.targets(batch.p, out, batch)
    for i, s in enumerate(as_sets(batch.candidates)):
        scores = array(out["weak"].logits[i] + part.log_prior)
        np.testing.assert_allclose(
            use[i].numpy(), reference.soft_momentum_target(array(batch.p[i]), scores, s, 0.8), atol=1e-6
        )


@pytest.mark.parametrize(
    ("start", "end", "epochs", "ramp"),
    [
        (0.8, 0.6, 5, [0.8, 0.75, 0.7, 0.65, 0.6]),
        (0.8, 0.6, 2, [0.8, 0.6]),
        (0.8, 0.6, 1, [0.8]),
        (0.4, 0.4, 3, [0.4, 0.4, 0.4]),
        (0.0, 1.0, 3, [0.0, 0.5, 1.0]),
    ],
)
def test_beta_falls_in_a_line_over_a_tasks_epochs(start: float, end: float, epochs: int, ramp: list[float]) -> None:
    part = pgdr(epochs=epochs, beta_start=start, beta_end=end)
    betas = []
    for part.ctx.epoch in range(epochs):
        part.begin_epoch()
        betas.append(float(part.beta))
    np.testing.assert_allclose(betas, ramp, atol=1e-6)
    np.testing.assert_allclose(betas, [reference.beta_at(e, epochs, start, end) for e in range(epochs)], atol=1e-6)


@pytest.mark.parametrize(("warm_up", "warm"), [(0.0, 0), (0.3, 3), (0.35, 4), (0.9, 9)])
def test_warm_up_leaves_the_targets_as_they_started(warm_up: float, warm: int) -> None:
    """For that share of a task's epochs; then beta is where its line is by then."""
    part = pgdr(epochs=10, warm_up=warm_up)
    batch, out = problem(1)
    for part.ctx.epoch in range(10):
        part.begin_epoch()
        use, _ = part.targets(batch.p, out, batch)
        assert torch.equal(use, batch.p) == (part.ctx.epoch < warm)
        if part.ctx.epoch >= warm:
            assert float(part.beta) == pytest.approx(reference.beta_at(part.ctx.epoch, 10, 0.8, 0.6))


@pytest.mark.parametrize("soft", [False, True])
def test_a_prior_lifts_classes_that_have_fewer_samples_than_their_candidates_say(live: Live, soft: bool) -> None:
    """By the log of expected over present share. z sees it; what is learnt with the targets does not."""
    kappa, settings = 0.5, {"disambiguation__prior": 0.5, "disambiguation__soft": soft}
    learner = live.begun("pgdr", **settings)
    part, pool = learner.ctx.parts[0], learner.ctx.pool
    assert isinstance(part, Pgdr)
    learner.ctx.phase = Phase("main", learner.network, learner.ctx.parts, pool.p)
    part.end_epoch()
    p, sets = array(pool.p).astype(float), as_sets(pool.candidates)
    chance = np.sum([reference.uniform(s, p.shape[1]) for s in sets], axis=0)
    present = p.sum(axis=0)
    lift = [
        np.log((n + kappa * by_chance) / (1 + kappa) / max(n, 1e-3)) if by_chance > 0 else 0.0
        for n, by_chance in zip(present, chance, strict=True)
    ]
    np.testing.assert_allclose(array(part.lift), lift, atol=1e-4)
    assert np.abs(lift).max() > 0.05
    logits = torch.randn(len(sets), p.shape[1], generator=torch.Generator().manual_seed(0))
    out = {"weak": Output(logits, logits, logits, logits[:, :0])}
    batch = Batch(torch.arange(len(sets)), pool.candidates, pool.p, torch.zeros(len(sets), dtype=torch.bool), {})
    use, _ = part.targets(pool.p, out, batch)
    rule = reference.soft_momentum_target if soft else reference.momentum_target
    for i, s in enumerate(sets):
        expected = rule(p[i], array(logits[i]) + lift, s, float(part.beta))
        np.testing.assert_allclose(use[i].numpy(), expected, atol=1e-4)
    shaped, learnt = part.reshape(out, use, batch)
    assert shaped is out
    assert learnt is use


def test_frozen_memory_targets() -> None:
    part = pgdr(memory_targets="freeze")
    batch, out = problem(0)
    frozen, store = part.targets(batch.p, out, batch)
    updated, _ = pgdr().targets(batch.p, out, batch)
    assert torch.equal(frozen, store)
    assert torch.equal(frozen[: N // 2], updated[: N // 2])
    assert torch.equal(frozen[N // 2 :], batch.p[N // 2 :])


def test_proden_uses_the_stored_targets_and_stores_the_prediction_within_the_set() -> None:
    batch, out = problem(1)
    before = batch.p.clone()
    use, store = Proden(None).targets(batch.p, out, batch)
    assert torch.equal(use, before)
    for i, s in enumerate(as_sets(batch.candidates)):
        np.testing.assert_allclose(
            store[i].numpy(), reference.proden_target(array(out["weak"].logits[i]), s), atol=1e-6
        )
    assert float(store.masked_fill(batch.candidates, 0).abs().max()) == 0
    assert bool((store[batch.candidates & (before == 0)] > 0).all())  # a weight of zero can return
    assert bool((before[batch.candidates] == 0).any())


def test_uniform_targets_never_change() -> None:
    batch, out = problem(2)
    use, store = Uniform(None).targets(batch.p, out, batch)
    assert torch.equal(use, batch.p)
    assert torch.equal(store, batch.p)


def expected_pgdr(step: Step, sets: list[set[int]], beta: float, freeze: bool) -> Tensor:
    rows = []
    for i, s in enumerate(sets):
        p, scores = array(step.p[i]).tolist(), step.logits("weak")[i]
        keep = freeze and bool(step.batch.from_memory[i])
        rows.append(p if keep else reference.momentum_target(p, scores, s, beta))
    return torch.tensor(rows)


def original_sets(live: Live, learner: Learner, tasks: int) -> dict[int, set[int]]:
    """-> S_i of every sample of the first tasks, as the stream gave it."""
    return {
        int(sample): set(np.flatnonzero(row).tolist())
        for t in range(tasks)
        for sample, row in zip(live.task(learner, t).ids, live.task(learner, t).candidates, strict=True)
    }


@pytest.mark.parametrize("memory_targets", ["update", "freeze"])
def test_pgdr_learns_from_the_targets_of_this_step(live: Live, memory_targets: str) -> None:
    """p follows Eq. 6 step by step over a whole task, memory included; the memory kept in the end holds the outcome."""
    settings: dict[str, Any] = {
        "disambiguation__memory_targets": memory_targets,
        "train__steps_per_epoch": 4,
        "train__epochs": 3,
    }
    learner = live.learner(learnt=1, **settings)
    kept = dict(zip(learner.memory.ids.tolist(), learner.memory.p.clone(), strict=True))
    sets = original_sets(live, learner, tasks=2)
    p: dict[int, Tensor] = {}
    moved = 0
    for step in live.steps(learner, 1):
        pool, rows = learner.ctx.pool, step.batch.rows
        ids = pool.ids[rows].tolist()
        beta = reference.beta_at(step.epoch, 3, 0.8, 0.6)
        expected = expected_pgdr(step, [sets[sample] for sample in ids], beta, memory_targets == "freeze")
        for i, sample in enumerate(ids):  # what a step starts from is what the last one with this sample stored
            earlier = p.get(sample, kept.get(sample, step.p[i]))
            torch.testing.assert_close(step.p[i], earlier)
            p[sample] = pool.p[rows[i]].clone()
        assert step.batch.targets is not None
        torch.testing.assert_close(step.batch.targets, expected.float())  # the loss sees the new ones
        torch.testing.assert_close(pool.p[rows], expected.float())
        moved += int((step.batch.targets != step.p).any(dim=1)[step.batch.from_memory].sum())
    assert (moved > 0) is (memory_targets == "update")
    for sample, target in zip(learner.memory.ids.tolist(), learner.memory.p, strict=True):
        if sample in p:
            assert torch.equal(target, p[sample])


@pytest.mark.parametrize("soft", [False, True])
def test_votes_are_evidence_for_good(live: Live, soft: bool) -> None:
    """z of a sample that came with votes sees the log of each candidate's share over a random one's; the memory's
    samples, whose votes are not kept, go by the network alone."""
    learner = live.learner("pgdr", learnt=1, disambiguation__soft=soft)
    task = live.task(learner, 1)
    counts = np.random.default_rng(0).integers(1, 9, task.candidates.shape) * task.candidates
    learner._begin_task(dataclasses.replace(task, votes=counts.astype(np.float32)))
    part, pool = learner.ctx.parts[0], learner.ctx.pool
    assert isinstance(part, Pgdr)
    rows = torch.cat([torch.arange(40), torch.arange(len(pool) - 20, len(pool))])
    logits = torch.randn(60, learner.ctx.capacity, generator=torch.Generator().manual_seed(0))
    batch = Batch(rows, pool.candidates[rows], pool.p[rows], rows >= pool.incoming, {})
    z = array(part.guess({"weak": Output(logits, logits, logits, logits[:, :0])}, batch))
    moved = 0
    for i, s in enumerate(as_sets(batch.candidates)):
        row, score = int(rows[i]), {c: float(logits[i, c]) for c in s}
        plain = max(score, key=score.__getitem__)
        if row < pool.incoming:
            total = counts[row].sum()
            score = {c: x + np.log(counts[row, c] / total * len(s)) for c, x in score.items()}
        best = max(score, key=score.__getitem__)
        moved += best != plain
        weights = {c: np.exp(x) if soft else float(c == best) for c, x in score.items()}
        expected = [weights.get(c, 0.0) / sum(weights.values()) for c in range(learner.ctx.capacity)]
        np.testing.assert_allclose(z[i], expected, atol=1e-5)
    assert moved > 3


def test_the_memory_keeps_original_candidate_sets(live: Live) -> None:
    learner = live.learner()
    sets = original_sets(live, learner, tasks=3)
    for t in range(3):
        for _ in learner.fit(live.task(learner, t)):
            pass
        ids = learner.memory.ids.tolist()
        assert as_sets(learner.memory.candidates) == [sets[sample] for sample in ids]
        assert len(ids) == len(set(ids)) == 60
        samples = torch.from_numpy(live.source.train_samples)
        assert torch.equal(learner.memory.samples, samples[learner.memory.ids])


def test_proden_learns_from_the_targets_of_the_step_before(live: Live) -> None:
    learner = live.learner("proden", train__steps_per_epoch=6)
    p: dict[int, Tensor] = {}
    for step in live.steps(learner, 0):
        pool, rows = learner.ctx.pool, step.batch.rows
        sets = as_sets(pool.candidates[rows])
        assert torch.equal(step.batch.candidates, pool.candidates[rows])
        assert step.batch.targets is not None
        for i, row in enumerate(rows.tolist()):
            start = torch.tensor(reference.uniform(sets[i], learner.ctx.capacity))
            torch.testing.assert_close(step.batch.targets[i], p.get(row, start).float())
            stored = reference.proden_target(step.logits("weak")[i][: learner.ctx.seen], sets[i])
            np.testing.assert_allclose(pool.p[row, : learner.ctx.seen].numpy(), stored, atol=1e-6)
            p[row] = pool.p[row].clone()
        expected = reference.cross_entropy(array(step.batch.targets), step.logits("weak"), learner.ctx.seen)
        np.testing.assert_allclose(float(step.total), expected, rtol=2e-5)
    assert len(p) > learner.batch_size


def test_targets_have_no_gradient(live: Live) -> None:
    for method in ("pgdr", "proden"):
        step = next(live.steps(live.learner(method), 0))
        assert step.batch.targets is not None
        assert step.batch.store is not None
        assert not step.batch.targets.requires_grad
        assert not step.batch.store.requires_grad
