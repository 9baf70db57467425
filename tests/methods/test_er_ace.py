"""ER-ACE: who competes with whom in the cross-entropy, batches in pairs, and the cosine head."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import reference
from ipll.component import Batch, Phase
from ipll.families.auxiliary.prototype_kl import PrototypeKL
from ipll.families.disambiguation.pico import Pico
from ipll.families.memory import MemorySettings
from ipll.families.memory.by_class import RandomMemory
from ipll.families.retention.er_ace import ErAce, asymmetric
from ipll.learner import Learner
from ipll.networks.network import MASKED, CosineHead, Output
from live import Live, array, as_sets, bare_context, batch_of, part, random_sets

METHOD = "proden+er-ace"
OLD, SEEN, CLASSES = 4, 7, 10


def naive_current(logits: np.ndarray, sets: list[set[int]], incoming: list[bool], old: int, seen: int) -> set[int]:
    """The classes born in the task, and those predicted, within the sets, for incoming samples of the batch."""
    current = set(range(old, seen))
    for i in range(len(logits)):
        if incoming[i]:
            current.add(reference.argmax_within(logits[i], sets[i]))
    return current


def naive_sample(
    target: np.ndarray, logits: np.ndarray, s: set[int], current: set[int], incoming: bool, seen: int
) -> tuple[set[int], list[float]]:
    """-> the classes that a sample sees, and its target."""
    if not incoming:
        return set(range(seen)), list(target)
    mass = sum(target[j] for j in current)
    if mass > 0:
        return current, [target[j] / mass if j in current else 0.0 for j in range(len(target))]
    predicted = reference.argmax_within(logits, s)
    return current | {predicted}, [1.0 if j == predicted else 0.0 for j in range(len(target))]


def naive_terms(
    targets: np.ndarray, logits: np.ndarray, sets: list[set[int]], incoming: list[bool], *, old: int, seen: int, warm: bool  # noqa: E501
) -> list[float]:  # fmt: skip
    """-> each sample's cross-entropy, over the classes that it sees."""
    current = set(range(old, seen)) if warm else naive_current(logits, sets, incoming, old, seen)
    terms = []
    for i in range(len(logits)):
        sees, target = naive_sample(targets[i], logits[i], sets[i], current, incoming[i], seen)
        columns = sorted(sees)
        f = reference.softmax([logits[i][j] for j in columns])
        terms.append(-sum(target[j] * math.log(f[place]) for place, j in enumerate(columns) if target[j] > 0))
        assert sum(target) == pytest.approx(1)
    return terms


def problem(seed: int, n: int = 24) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> logits, candidate sets, soft targets and who is incoming. Some targets have no weight on a current class."""
    rng = np.random.default_rng(seed)
    sets = torch.zeros(n, CLASSES, dtype=torch.bool)
    sets[:, :SEEN] = random_sets(rng, n, SEEN)
    sets[:6, OLD:] = False  # a few that can only be old
    sets[:6, 0] = True
    logits = torch.from_numpy(rng.normal(scale=2, size=(n, CLASSES))).float()
    logits[:, SEEN:] = MASKED
    targets = torch.from_numpy(rng.random((n, CLASSES))).float() * sets
    targets /= targets.sum(dim=1, keepdim=True)
    incoming = torch.from_numpy(rng.random(n) < 0.6)
    incoming[:4] = True
    return logits, sets, targets, incoming


@pytest.mark.parametrize("current", [{4, 5, 6}, {1, 4, 5, 6}, {0, 3, 4, 5, 6}])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_a_sample_sees_and_learns(seed: int, current: set[int]) -> None:
    logits, sets, targets, incoming = problem(seed)
    names = as_sets(sets)
    predicted = torch.zeros_like(sets)
    for i, s in enumerate(names):
        predicted[i, reference.argmax_within(array(logits[i]), s)] = True
    mask = torch.tensor([j in current for j in range(CLASSES)])
    allowed, renormalised = asymmetric(targets, predicted, mask, incoming[:, None])
    outside = 0
    for i, s in enumerate(names):
        sees, target = naive_sample(array(targets[i]), array(logits[i]), s, current, bool(incoming[i]), SEEN)
        assert {j for j in range(SEEN) if allowed[i, j]} == sees
        np.testing.assert_allclose(renormalised[i].numpy(), target, rtol=1e-5)
        outside += bool(incoming[i]) and not (s & current)
    assert (outside > 0) == (current == {4, 5, 6} or 0 not in current)


@pytest.mark.parametrize(("epoch", "warm_up", "warm"), [(0, 0.3, True), (2, 0.3, True), (3, 0.3, False), (0, 0.0, False), (9, 1.0, True)])  # fmt: skip  # noqa: E501
def test_the_mask_is_by_birth_and_prediction(live: Live, epoch: int, warm_up: float, warm: bool) -> None:
    learner = live.begun(METHOD, retention__warm_up=warm_up)
    ctx = learner.ctx
    assert (ctx.old, ctx.seen, ctx.capacity) == (OLD, SEEN, CLASSES)
    ctx.epoch, ctx.epochs = epoch, 10
    for seed in range(4):
        logits, sets, targets, incoming = problem(seed)
        incoming[:4] = seed % 2 == 0
        batch = Batch(torch.arange(24), sets, targets, ~incoming, {})
        out = {"weak": Output(logits[:, :0], logits, logits, logits[:, :0])}
        shaped, reshaped = part(learner, ErAce).reshape(out, targets, batch)
        names, who = as_sets(sets), incoming.tolist()
        current = set(range(OLD, SEEN)) if warm else naive_current(array(logits), names, who, OLD, SEEN)
        assert warm or current > set(range(OLD, SEEN))
        for i, s in enumerate(names):
            sees, target = naive_sample(array(targets[i]), array(logits[i]), s, current, who[i], SEEN)
            seen = shaped["weak"].shaped[i]
            assert [float(seen[j]) for j in range(SEEN)] == [float(logits[i, j]) if j in sees else MASKED for j in range(SEEN)]  # fmt: skip  # noqa: E501
            np.testing.assert_allclose(reshaped[i].numpy(), target, rtol=1e-5)
        assert torch.equal(shaped["weak"].logits, logits)  # predictions and stored targets see the logits as they are


@pytest.mark.parametrize("size", [60, 10])
@pytest.mark.parametrize("warm_up", [0.0, 0.5])
def test_the_loss_is_the_sum_of_both_halves_means(live: Live, warm_up: float, size: int) -> None:
    learner = live.learner(METHOD, learnt=1, retention__warm_up=warm_up, memory__size=size)
    masked = 0
    for step in live.steps(learner, 1):
        ctx, batch = learner.ctx, step.batch
        incoming = (~batch.from_memory).tolist()
        warm = step.epoch < 2 * warm_up
        sets, logits = as_sets(batch.candidates), step.logits("weak")
        terms = naive_terms(array(step.p), logits, sets, incoming, old=ctx.old, seen=ctx.seen, warm=warm)
        own = [term for term, new in zip(terms, incoming, strict=True) if new]
        replayed = [term for term, new in zip(terms, incoming, strict=True) if not new]
        assert (len(own), len(replayed)) == (32, min(32, size))
        np.testing.assert_allclose(float(step.total), np.mean(own) + np.mean(replayed), rtol=2e-5)
        unmasked = reference.cross_entropy(array(step.p), logits, ctx.seen)
        masked += abs(float(step.total) - 2 * unmasked) > 1e-3
    assert masked > 0


def test_the_first_task_is_plain_cross_entropy(live: Live) -> None:
    learner = live.learner(METHOD)
    for step in live.steps(learner, 0):
        expected = reference.cross_entropy(array(step.p), step.logits("weak"), learner.ctx.seen)
        np.testing.assert_allclose(float(step.total), expected, rtol=2e-5)


@pytest.mark.parametrize(("epoch", "warm"), [(0, True), (4, True), (5, False), (9, False)])
def test_while_it_warms_up_deciders_of_targets_see_only_new_candidates(live: Live, epoch: int, warm: bool) -> None:
    """Of incoming samples that have any; a sample that can only be old, and the memory's, are judged as ever."""
    learner = live.begun(METHOD, retention__warm_up=0.5)
    learner.ctx.epoch, learner.ctx.epochs = epoch, 10
    _, sets, targets, incoming = problem(5)
    batch = Batch(torch.arange(24), sets, targets, ~incoming, {})
    limited = as_sets(part(learner, ErAce).limit(sets, batch))
    hidden = 0
    for i, s in enumerate(as_sets(sets)):
        hides = warm and bool(incoming[i]) and any(j >= OLD for j in s)
        assert limited[i] == ({j for j in s if j >= OLD} if hides else s)
        hidden += hides
    assert (0 < hidden < 24) if warm else hidden == 0


@pytest.mark.parametrize("warm_up", [0.0, 1.0])
def test_live_pseudo_labels_while_it_warms_up(live: Live, warm_up: float) -> None:
    learner = live.learner(METHOD, learnt=1, retention__warm_up=warm_up)
    moved = 0
    for step in live.steps(learner, 1):
        stored = learner.ctx.pool.p[step.batch.rows]
        for i, s in enumerate(as_sets(learner.ctx.pool.candidates[step.batch.rows])):
            new = {j for j in s if j >= OLD}
            among = new if warm_up and new and not step.batch.from_memory[i] else s
            expected = reference.proden_target(step.logits("weak")[i], among)
            np.testing.assert_allclose(array(stored[i]), expected, atol=1e-6)
            moved += among != s
    assert (moved > 0) == (warm_up > 0)


@pytest.mark.parametrize("method", ["proden+er-ace", "pico+er-ace", "papi+er-ace"])
def test_no_target_moves_to_an_old_class_while_it_warms_up(live: Live, method: str) -> None:
    learner = live.learner(method, learnt=1, train__epochs=3, retention__warm_up=1.0)
    for step in live.steps(learner, 1):
        fresh = (step.batch.candidates[:, OLD:].any(dim=1)) & ~step.batch.from_memory
        before, after = step.p[fresh, :OLD].sum(dim=1), learner.ctx.pool.p[step.batch.rows][fresh, :OLD].sum(dim=1)
        assert (after <= before + 1e-6).all()


@pytest.mark.parametrize(("method", "kind"), [("pico+er-ace", Pico), ("papi+er-ace", PrototypeKL)])
def test_no_prototype_of_an_old_class_follows_an_incoming_sample_while_it_warms_up(
    live: Live, method: str, kind: type[Pico] | type[PrototypeKL]
) -> None:
    """Where that sample could be new: prototypes go by the sets that count in the step, as targets do."""
    learner = live.begun(method, retention__warm_up=1.0)
    ctx, moves = learner.ctx, part(learner, kind)
    ctx.epoch, ctx.epochs = 0, 10
    phase = ctx.phase = Phase("main", learner.network.train(), ctx.parts, ctx.pool.p)
    for each in ctx.parts:
        each.begin_epoch()
    both = ctx.pool.candidates[: ctx.pool.incoming]
    rows = (both[:, :OLD].any(dim=1) & both[:, OLD:].any(dim=1)).nonzero()[:, 0]
    batch = batch_of(learner, rows)
    with torch.no_grad():
        learner.network.head.weight[:OLD] *= 50  # an old class would be predicted, where it can be
        for each in ctx.parts:
            each.inputs(batch, torch.Generator().manual_seed(0))
            each.before(batch)
        out = learner.stepper.forward(phase, batch)
        learner.stepper.decide_targets(phase, batch, out)
        before = moves.mu.clone()
        learner.stepper.after(phase, batch, out)
    assert len(rows) > 20
    torch.testing.assert_close(moves.mu[:OLD], before[:OLD])
    assert not torch.allclose(moves.mu[OLD:SEEN], before[OLD:SEEN])


def test_the_mask_is_for_the_classifier_only(live: Live) -> None:
    """PaPi's divergence learns from the targets as they were decided."""
    learner = live.begun("papi+er-ace", retention__warm_up=1.0)
    ctx, kl = learner.ctx, part(learner, PrototypeKL)
    ctx.epoch, ctx.epochs = 10, 20
    kl.begin_epoch()
    phase = Phase("main", learner.network.train(), ctx.parts, ctx.pool.p)
    batch = batch_of(learner, torch.arange(64))
    kl.inputs(batch, torch.Generator().manual_seed(0))
    out = learner.stepper.forward(phase, batch)
    learner.stepper.decide_targets(phase, batch, out)
    assert batch.targets is not None
    expected = float(kl.losses(out, batch.targets, batch)["kl"].detach())
    _, reshaped = part(learner, ErAce).reshape(dict(out), batch.targets, batch)
    assert not torch.allclose(reshaped, batch.targets, atol=1e-2)
    assert float(learner.stepper.total(phase, batch, out)[1]["kl"].detach()) == pytest.approx(expected, rel=1e-6)
    with torch.no_grad():
        similarities = {n: out[f"mixed {n}"].embedding @ kl.mu[:SEEN].T / 0.3 for n in ("weak", "strong")}
        share, partner = batch.extra["share"], batch.extra["partner"]
        s, naive = batch.targets[:, :SEEN], 0.0
        for similarity in similarities.values():
            log_f = similarity.log_softmax(dim=1)
            for weight, target in ((share, s), (1 - share, s[partner])):
                naive += float(weight * F.kl_div(log_f, target, reduction="batchmean"))
    assert expected == pytest.approx(naive, rel=1e-4)


def head_gradient(learner: Learner, batch: Batch) -> Tensor:
    phase = Phase("main", learner.network.train(), learner.ctx.parts, learner.ctx.pool.p)
    out = learner.stepper.forward(phase, batch)
    learner.stepper.decide_targets(phase, batch, out)
    learner.network.zero_grad()
    learner.stepper.total(phase, batch, out)[0].backward()  # type: ignore[no-untyped-call]
    assert learner.network.head.weight.grad is not None
    return learner.network.head.weight.grad


def test_incoming_samples_do_not_touch_the_weights_of_classes_that_they_cannot_be(live: Live) -> None:
    """Plain replay pushes every old class down with every new sample."""
    learner = live.begun(METHOD)
    ctx, pool = learner.ctx, learner.ctx.pool
    ctx.epoch, ctx.epochs = 0, 20
    new = (pool.candidates[: pool.incoming] & ctx.new_mask).any(dim=1).nonzero()[:, 0][:32]
    gradient = head_gradient(learner, batch_of(learner, new))
    assert not gradient[:OLD].any()
    assert gradient[OLD:SEEN].any(dim=1).all()

    ctx.epoch = 19  # no warm-up: the old classes that the network predicts for incoming samples join
    batch = batch_of(learner, new)
    gradient = head_gradient(learner, batch)
    with torch.no_grad():
        logits = array(learner.network(batch.views["weak"]).logits)
    current = naive_current(logits, as_sets(batch.candidates), [True] * len(new), OLD, SEEN)
    assert {c for c in range(CLASSES) if gradient[c].any()} == current

    kept = torch.arange(pool.incoming, pool.incoming + 32)
    assert head_gradient(learner, batch_of(learner, kept))[:SEEN].any(dim=1).all()  # memory samples see all


def paired(own: int, kept: int, batch_size: int, seed: int = 0) -> Tensor:
    """-> one epoch's rows [steps, batch] of a pool of so many own and kept samples."""
    memory = RandomMemory(MemorySettings(batches="paired"))
    memory.build(bare_context(classes=10, dim=3, old=4, seen=7))
    memory.ctx.pool = type("Pool", (), {"incoming": own})()
    return memory.order(torch.arange(own + kept), batch_size, torch.Generator().manual_seed(seed))


SIZES = [(100, 60, 32), (100, 200, 32), (33, 60, 32), (32, 32, 32), (500, 40, 16), (20, 60, 32)]


@pytest.mark.parametrize(("own", "kept", "batch_size"), SIZES)
def test_every_step_has_as_many_memory_samples_as_incoming_ones(own: int, kept: int, batch_size: int) -> None:
    order = paired(own, kept, batch_size)
    size = min(batch_size, own)
    assert order.shape == (-(-own // batch_size), size + min(size, kept))
    assert (order[:, :size] < own).all()
    assert (order[:, size:] >= own).all()
    assert set(order[:, :size].flatten().tolist()) == set(range(own))
    times = order[:, size:].flatten().bincount(minlength=own + kept)[own:]
    assert int(times.max() - times.min()) <= 1
    assert not torch.equal(order, paired(own, kept, batch_size, seed=1))


@pytest.mark.parametrize(("own", "kept"), [(100, 5), (100, 31), (20, 7)])
def test_a_memory_smaller_than_a_batch_is_whole_in_every_step(own: int, kept: int) -> None:
    order = paired(own, kept, 32)
    for rows in order:
        assert sorted(rows[rows >= own].tolist()) == list(range(own, own + kept))


@pytest.mark.parametrize(("own", "kept", "batch_size"), SIZES)
def test_no_sample_is_twice_in_a_step(own: int, kept: int, batch_size: int) -> None:
    """Its soft target is stored once a step; of two, which is kept would be left to chance."""
    for seed in range(5):
        for rows in paired(own, kept, batch_size, seed).tolist():
            assert len(set(rows)) == len(rows)


def test_live_batches_are_paired_and_visit_every_own_sample(live: Live) -> None:
    learner = live.learner(METHOD, learnt=1, train__steps_per_epoch=0, train__epochs=1)
    visited: set[int] = set()
    for step in live.steps(learner, 1):
        assert int(step.batch.from_memory.sum()) == 32 == len(step.batch.rows) / 2
        assert torch.equal(step.batch.from_memory, step.batch.rows >= learner.ctx.pool.incoming)
        visited |= set(step.batch.rows.tolist())
    assert visited == set(range(len(learner.ctx.pool)))


def test_the_cosine_head(live: Live) -> None:
    head = CosineHead(5, 8)
    head.birth(0, 6, seed=3)
    with torch.no_grad():
        head.bias += 7.0  # is not used
    x = torch.from_numpy(np.random.default_rng(0).normal(scale=4, size=(11, 5))).float()
    logits = head(x).detach()
    w = array(head.weight)
    for i in range(11):
        for c in range(6):
            lengths = math.sqrt(sum(v * v for v in array(x[i]))) * math.sqrt(sum(v * v for v in w[c]))
            cosine = sum(a * b for a, b in zip(array(x[i]), w[c], strict=True)) / lengths
            assert float(logits[i, c]) == pytest.approx(10 * cosine, abs=1e-4)
    assert (logits[:, 6:] == MASKED).all()
    torch.testing.assert_close(head(3 * x).detach(), logits)
    assert isinstance(live.learner(METHOD).network.head, CosineHead)
