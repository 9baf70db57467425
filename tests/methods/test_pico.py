"""PiCO: prototypes of embeddings, the targets that they give, the contrastive loss, its encoder and its queue."""

from __future__ import annotations

import copy
import math
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import reference
from ipll.component import Batch, Phase, predict_within
from ipll.families.auxiliary.contrastive import Contrastive, ContrastiveSettings, own_key_loss, same_label_loss
from ipll.families.disambiguation.pico import Pico, PicoSettings
from ipll.families.embedding import follow, ramp
from ipll.learner import Position
from ipll.networks.network import Output
from live import Live, array, as_sets, bare_context, batch_of, part, random_sets, snapshot, unchanged

WIDTH = 6
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def on_sphere(rng: np.random.Generator, n: int, width: int = WIDTH) -> Tensor:
    return F.normalize(torch.from_numpy(rng.normal(size=(n, width))).float(), dim=1)


@pytest.mark.parametrize("momentum", [0.99, 0.5, 0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prototypes_follow_sample_by_sample(seed: int, momentum: float) -> None:
    rng = np.random.default_rng(seed)
    mu = torch.cat([on_sphere(rng, 4), torch.zeros(4, WIDTH)])  # the last four classes have none yet
    embeddings = on_sphere(rng, 50)
    classes = rng.choice([0, 1, 2, 4, 5], size=50, p=[0.5, 0.3, 0.02, 0.1, 0.08])
    moved = follow(mu, embeddings, torch.from_numpy(classes), momentum)
    expected = reference.followed(array(mu), [(array(embeddings), classes.tolist())], momentum)
    np.testing.assert_allclose(moved.numpy(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved[3], mu[3])
    assert not moved[6:].any()


def test_the_order_of_the_samples_counts() -> None:
    rng = np.random.default_rng(3)
    embeddings, classes = on_sphere(rng, 10), torch.zeros(10, dtype=torch.int64)
    forwards = follow(torch.zeros(2, WIDTH), embeddings, classes, 0.7)
    assert not torch.allclose(forwards, follow(torch.zeros(2, WIDTH), embeddings.flip(0), classes, 0.7), atol=1e-2)


@pytest.mark.parametrize("epochs", [1, 2, 10, 200])
def test_the_schedule_of_phi(epochs: int) -> None:
    """0.99 in epoch 0; after each epoch e it is set to 0.95 + e / epochs (0.8 - 0.95)."""
    phi = 0.99
    for epoch in range(epochs):
        assert ramp(epoch, epochs, 0.99, 0.95, 0.8) == pytest.approx(phi)
        phi = 0.95 + epoch / epochs * (0.8 - 0.95)


def pico(old: int, epoch: int, epochs: int, **values: float) -> Pico:
    """-> the part, with prototypes for old classes and some of the new ones."""
    ctx = bare_context(classes=10, dim=3, old=old, seen=7)
    ctx.network.width = WIDTH
    made = Pico(PicoSettings(**values))  # type: ignore[arg-type]
    made.build(ctx)
    made.mu[:5] = on_sphere(np.random.default_rng(7), 5)
    ctx.epoch, ctx.epochs = epoch, epochs
    made.begin_epoch()
    return made


@pytest.mark.parametrize(("epoch", "start", "phi"), [(0, 0, 0.99), (1, 1, 0.95), (5, 1, 0.89), (9, 3, 0.83)])
def test_targets_move_towards_the_candidate_with_the_nearest_prototype(epoch: int, start: int, phi: float) -> None:
    made = pico(4, epoch, 10, start=start)
    rng = np.random.default_rng(8)
    sets = torch.zeros(60, 10, dtype=torch.bool)
    sets[:, :7] = random_sets(rng, 60, 7)
    q, p = on_sphere(rng, 60), torch.from_numpy(rng.random((60, 10))).float() * sets
    p /= p.sum(dim=1, keepdim=True)
    linear = torch.from_numpy(rng.normal(size=(60, 10))).float()  # the head has no say
    batch = Batch(torch.arange(60), sets, p, torch.zeros(60).bool(), {})
    use, store = made.targets(p, {"weak": Output(q, linear, linear, q)}, batch)
    assert torch.equal(use, store)
    without = 0
    for i, s in enumerate(as_sets(sets)):
        scores = [sum(a * b for a, b in zip(array(q[i]), mu, strict=True)) for mu in array(made.mu)]
        expected = reference.momentum_target(array(p[i]), scores, s, phi)
        np.testing.assert_allclose(store[i].numpy(), expected, **CLOSE)
        without += scores.index(max(scores)) not in s
    assert without > 0  # the nearest of all prototypes is not always a candidate's


@pytest.mark.parametrize(("epoch", "start"), [(0, 1), (4, 5), (99, 100)])
def test_before_the_start_epoch_targets_stay(epoch: int, start: int) -> None:
    made = pico(4, epoch, 200, start=start)
    rng = np.random.default_rng(9)
    p, q = torch.from_numpy(rng.random((5, 10))).float(), on_sphere(rng, 5)
    batch = Batch(torch.arange(5), torch.ones(5, 10).bool(), p, torch.zeros(5).bool(), {})
    use, store = made.targets(p, {"weak": Output(q, p, p, q)}, batch)
    assert torch.equal(use, p)
    assert torch.equal(store, p)


def naive_own_key(query: np.ndarray, key: np.ndarray, queue: np.ndarray, tau: float) -> float:
    """MoCo: a query's own key is the positive, the queue holds the negatives."""
    total = 0.0
    for q, k in zip(query, key, strict=True):
        positive = math.exp(float(q @ k) / tau)
        total -= math.log(positive / (positive + sum(math.exp(float(q @ n) / tau) for n in queue)))
    return total / len(query)


def naive_same_label(
    query: np.ndarray, key: np.ndarray, label: list[int], queue: np.ndarray, queue_labels: list[int], tau: float
) -> float:
    """Positives of a query: all of [queries; keys; queue] with its label but itself. Contrasts: all but itself."""
    pool = [*query, *key, *queue]
    labels = [*label, *label, *queue_labels]
    total = 0.0
    for i, q in enumerate(query):
        weights = {j: math.exp(float(q @ other) / tau) for j, other in enumerate(pool) if j != i}
        positives = [j for j in weights if labels[j] == label[i]]
        assert i + len(query) in positives
        total -= sum(math.log(weights[j] / sum(weights.values())) for j in positives) / len(positives)
    return total / len(query)


@pytest.mark.parametrize("tau", [0.07, 0.5])
@pytest.mark.parametrize("filled", [0, 5, 20])
def test_both_forms_of_the_contrastive_loss(filled: int, tau: float) -> None:
    rng = np.random.default_rng(filled)
    query, key, queue = on_sphere(rng, 12), on_sphere(rng, 12), on_sphere(rng, 20)
    label = torch.from_numpy(rng.integers(4, size=12))
    queue_labels = torch.from_numpy(np.where(np.arange(20) < filled, rng.integers(5, size=20), -1))
    arrays = array(query), array(key), array(queue)
    np.testing.assert_allclose(float(own_key_loss(query, key, queue, tau)), naive_own_key(*arrays, tau), rtol=1e-5)
    found = same_label_loss(query, label, torch.cat([query, key, queue]), torch.cat([label, label, queue_labels]), tau)
    expected = naive_same_label(*arrays[:2], label.tolist(), arrays[2], queue_labels.tolist(), tau)
    np.testing.assert_allclose(float(found), expected, rtol=1e-5)


def contrastive(size: int) -> Contrastive:
    """-> the part with a queue of this size, of keys that are numbers; no encoder."""
    made = Contrastive(ContrastiveSettings(queue=size))
    made.register_buffer("keys", torch.zeros(size, 1))
    made.register_buffer("labels", torch.full((size,), -1))
    made.register_buffer("place", torch.zeros((), dtype=torch.int64))
    return made


def queued(made: Contrastive) -> list[tuple[int, int]]:
    return sorted((int(k), int(c)) for k, c in zip(made.keys[:, 0], made.labels, strict=True) if c >= 0)


@settings(deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_the_queue_holds_the_last_keys(size: int, batches: list[int]) -> None:
    """Batches that wrap around its end, that are larger than what is left of it, and larger than all of it."""
    made, expected = contrastive(size), deque[tuple[int, int]](maxlen=size)
    number = 0
    for count in batches:
        numbers = range(number, number + count)
        number += count
        key, label = torch.tensor([[float(i)] for i in numbers]), torch.tensor([i % 7 for i in numbers])
        batch = Batch(label, label, label, label, {}, {"key": key, "label": label})
        made.after({}, batch)
        expected.extend((i, i % 7) for i in numbers)
        assert queued(made) == sorted(expected)
        assert 0 <= int(made.place) < size


def test_the_queue_is_emptied_when_a_task_begins(live: Live) -> None:
    learner = live.learner("pico", learnt=1, auxiliary__contrastive__queue=50)
    made = part(learner, Contrastive)
    full = made.keys.clone()
    assert (made.labels >= 0).all()
    learner._begin_task(live.task(learner, 1))
    first = made.keys.clone()
    assert made.labels.tolist() == [-1] * 50
    assert int(made.place) == 0
    assert not torch.isclose(first, full).any(dim=1).all()
    torch.testing.assert_close(first.norm(dim=1), torch.ones(50))
    made.begin_task()
    assert torch.equal(made.keys, first)  # drawn from the seed and the task
    learner.ctx.task = 2
    made.begin_task()
    assert not torch.equal(made.keys, first)


@pytest.mark.parametrize("momentum", [0.999, 0.5, 0.0])
def test_the_key_encoder_moves_first_and_then_makes_the_keys(live: Live, momentum: float) -> None:
    learner = live.begun("pico", auxiliary__contrastive__key_momentum=momentum)
    made = part(learner, Contrastive)
    learner.ctx.phase = learner._phases()[-1]
    batch = batch_of(learner, torch.arange(20))
    naive = copy.deepcopy(made.encoder)
    with torch.no_grad():
        for weight, current in zip(naive.parameters(), learner.network.parameters(), strict=True):
            weight.copy_(momentum * weight + (1 - momentum) * current)
        key = naive.train()(batch.views["strong"]).embedding
    current = snapshot(learner.network)
    with torch.no_grad():
        made.before(batch)
    torch.testing.assert_close(batch.extra["key"], key)
    torch.testing.assert_close(dict(made.encoder.state_dict()), dict(naive.state_dict()))  # statistics of its own too
    assert unchanged(current, learner.network)
    assert not any(weight.requires_grad for weight in made.encoder.parameters())


def test_prototypes_and_encoder_go_on_from_task_to_task_and_new_classes_start_at_zero(live: Live) -> None:
    learner = live.learner("pico", learnt=1)
    made, encoder = part(learner, Pico), part(learner, Contrastive).encoder
    mu, weights = made.mu.clone(), snapshot(encoder)
    learner._begin_task(live.task(learner, 1))
    assert torch.equal(made.mu, mu)
    assert unchanged(weights, encoder)
    assert mu[: learner.ctx.old].any(dim=1).all()
    assert not mu[learner.ctx.old :].any()


@pytest.mark.parametrize("learnt", [0, 1])
def test_live_steps(live: Live, learnt: int) -> None:
    """Targets by the prototypes from before the batch, the loss with the queue from before it, then both move."""
    learner = live.begun("pico", learnt=learnt, train__epochs=3, auxiliary__contrastive__queue=80)
    made, contrasts = part(learner, Pico), part(learner, Contrastive)
    mu, queue, labels = made.mu.clone(), contrasts.keys.clone(), contrasts.labels.tolist()
    steps = 0
    for step in live.steps(learner, learnt, Position(learnt)):
        steps += 1
        batch, epoch = step.batch, step.epoch
        sets, logits, q = as_sets(batch.candidates), step.logits("weak"), array(step.out["weak"].embedding)
        p = array(step.p)
        if epoch >= 1:
            phi = 0.95 + (epoch - 1) / 3 * (0.8 - 0.95)
            scores = q @ array(mu).T
            p = np.array([reference.momentum_target(*row, phi) for row in zip(p, scores, sets, strict=True)])
        np.testing.assert_allclose(array(learner.ctx.pool.p[batch.rows]), p, **CLOSE)
        label = [reference.argmax_within(o, s) for o, s in zip(logits, sets, strict=True)]
        key = array(batch.extra["key"])
        if epoch < 1:
            contrast = naive_own_key(q, key, array(queue), 0.07)
        else:
            contrast = naive_same_label(q, key, label, array(queue), labels, 0.07)
        expected = reference.cross_entropy(p, logits, learner.ctx.seen) + 0.5 * contrast
        np.testing.assert_allclose(float(step.total), expected, rtol=5e-5)

        np.testing.assert_allclose(
            array(made.mu), reference.followed(array(mu), [(q, label)], 0.99), rtol=1e-4, atol=1e-5
        )
        at = {tuple(row) for row in contrasts.keys.tolist()}
        assert all(tuple(row) in at for row in batch.extra["key"].tolist())
        mu, queue, labels = made.mu.clone(), contrasts.keys.clone(), contrasts.labels.tolist()
    assert steps == 6


def test_labels_are_those_of_the_first_pass_however_often_the_loss_is_asked_for(live: Live) -> None:
    """C-Flat asks four times, at other weights each time. Positives, queue and prototypes go by the first answer."""
    learner = live.begun("pico+c-flat", auxiliary__contrastive__queue=64, update__rho=3.0)
    made, contrasts = part(learner, Pico), part(learner, Contrastive)
    passes: list[tuple[Batch, Output, list[int]]] = []
    total_of = learner.stepper.total

    def recording(phase: Phase, batch: Batch, out: dict[str, Output]) -> tuple[Tensor, dict[str, Tensor]]:
        passes.append((batch, out["weak"], batch.extra["label"].tolist()))
        return total_of(phase, batch, out)

    learner.stepper.total = recording  # type: ignore[method-assign]
    mu = made.mu.clone()
    next(learner.fit(live.task(learner, 1), Position(1)))
    batch, first, _ = passes[0]
    answers = [predict_within(out.logits, batch.candidates).tolist() for _, out, _ in passes]
    assert answers[1] != answers[0]  # they would differ
    assert [labels for *_, labels in passes] == [answers[0]] * 4
    assert contrasts.labels[contrasts.labels >= 0].tolist() == answers[0]
    expected = reference.followed(array(mu), [(array(first.embedding), answers[0])], 0.99)
    np.testing.assert_allclose(array(made.mu), expected, rtol=1e-4, atol=1e-5)
