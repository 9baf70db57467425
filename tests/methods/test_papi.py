"""PaPi: soft targets, mixed-up views, prototypes, and the KL divergence that aligns the two."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

import reference
from ipll.component import Batch
from ipll.families.auxiliary.prototype_kl import PrototypeKL, kl_divergence
from ipll.families.disambiguation.papi import Papi, PapiSettings
from ipll.learner import Position
from ipll.networks.network import MASKED, Output
from live import Live, array, as_sets, bare_context, batch_of, part, random_sets

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def naive_kl(targets: np.ndarray, predicted: list[list[float]]) -> float:
    """The mean over samples of sum_j s_j log(s_j / P_j); nothing where s_j is 0."""
    total = 0.0
    for s, f in zip(targets, predicted, strict=True):
        total += sum(s[j] * math.log(s[j] / f[j]) for j in range(len(f)) if s[j] > 0)
    return total / len(targets)


def soft_targets(rng: np.random.Generator, n: int, seen: int) -> Tensor:
    p = torch.zeros(n, 10)
    p[:, :seen] = torch.from_numpy(rng.random((n, seen))).float() * random_sets(rng, n, seen)
    return p / p.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_kl_divergence(scale: float) -> None:
    rng = np.random.default_rng(0)
    targets = soft_targets(rng, 20, 7)
    targets[0] = F.one_hot(torch.tensor(3), 10)
    logits = torch.from_numpy(rng.normal(scale=scale, size=(20, 10))).float()
    expected = naive_kl(array(targets), [reference.softmax(row) for row in array(logits)])
    assert float(kl_divergence(targets, logits.log_softmax(dim=1))) == pytest.approx(expected, rel=1e-5)
    assert float(kl_divergence(logits.softmax(dim=1), logits.log_softmax(dim=1))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("epoch", "w"), [(0, 0.99), (1, 0.95), (5, 0.89), (9, 0.83)])
def test_soft_targets(epoch: int, w: float) -> None:
    """s <- w s + (1 - w) times the linear classifier's softmax on the weak view, restricted to S and normalised."""
    papi = Papi(PapiSettings())
    papi.build(bare_context(classes=10, dim=3, old=4, seen=7))
    papi.ctx.epoch, papi.ctx.epochs = epoch, 10
    papi.begin_epoch()
    rng = np.random.default_rng(1)
    p = soft_targets(rng, 40, 7)
    sets = (p > 0) | (torch.arange(10) == 2)
    weak, strong = (torch.from_numpy(rng.normal(scale=3, size=(40, 10))).float() for _ in range(2))
    weak[:, 7:] = MASKED
    batch = Batch(torch.arange(40), sets, p, torch.zeros(40).bool(), {})
    out = {name: Output(o, o, o, o[:, :0]) for name, o in (("weak", weak), ("strong", strong))}
    use, store = papi.targets(p, out, batch)
    assert torch.equal(use, store)
    for i, s in enumerate(as_sets(sets)):
        f = reference.proden_target(array(weak[i]), s)
        expected = [w * array(p[i])[j] + (1 - w) * f[j] for j in range(10)]
        np.testing.assert_allclose(store[i].numpy(), expected, **CLOSE)


@pytest.mark.parametrize(("epochs", "ramp", "expected"), [
    (500, 0.02, {0: 0.0, 1: 0.1, 5: 0.5, 9: 0.9, 10: 1.0, 11: 1.0, 499: 1.0}),
    (20, 0.02, {0: 0.0, 1: 1.0, 19: 1.0}),
    (20, 0.5, {0: 0.0, 1: 0.1, 10: 1.0}),
    (20, 0.0, {0: 0.0, 1: 1.0}),
])  # fmt: skip
def test_the_strength_rises_from_zero(live: Live, epochs: int, ramp: float, expected: dict[int, float]) -> None:
    learner = live.learner("papi", **{"auxiliary__prototype-kl__ramp": ramp})
    kl, ctx = part(learner, PrototypeKL), learner.ctx
    ctx.epochs = epochs
    for epoch, strength in expected.items():
        ctx.epoch = epoch
        kl.begin_epoch()
        assert float(kl.strength) == pytest.approx(strength)


@pytest.mark.parametrize("epochs", [1, 4, 20])
def test_the_schedule_of_the_prototypes_momentum(live: Live, epochs: int) -> None:
    """0.99 in epoch 0; after each epoch e it is set to 0.9 + e / epochs (0.5 - 0.9)."""
    kl = part(live.learner("papi"), PrototypeKL)
    momentum = 0.99
    for epoch in range(epochs):
        kl.ctx.epoch, kl.ctx.epochs = epoch, epochs
        kl.begin_epoch()
        assert float(kl.momentum) == pytest.approx(momentum)
        momentum = 0.9 + epoch / epochs * (0.5 - 0.9)


@pytest.mark.parametrize("mixup", [8.0, 1.0])
def test_both_views_are_mixed_with_the_same_partners_in_one_share(live: Live, mixup: float) -> None:
    learner = live.begun("papi", **{"auxiliary__prototype-kl__mixup": mixup})
    kl = part(learner, PrototypeKL)
    generator = torch.Generator().manual_seed(0)
    shares, partners = [], set()
    plain = batch_of(learner, torch.arange(7)).views
    for _ in range(1500):
        batch = Batch(*[torch.arange(7)] * 4, dict(plain))  # type: ignore[arg-type]
        kl.inputs(batch, generator)
        shares.append(float(batch.extra["share"]))
        partners.add(tuple(batch.extra["partner"].tolist()))
        if len(shares) < 20:
            share = shares[-1]
            for name in ("weak", "strong"):
                for i, j in enumerate(batch.extra["partner"].tolist()):
                    expected = share * plain[name][i] + (1 - share) * plain[name][j]
                    torch.testing.assert_close(batch.views[f"mixed {name}"][i], expected)
                assert torch.equal(batch.views[name], plain[name])
    assert all(sorted(partner) == list(range(7)) for partner in partners)
    assert len(partners) > 1000
    # Beta(a, a) itself, not the larger of share and 1 - share.
    assert stats.kstest(shares, stats.beta(mixup, mixup).cdf).pvalue > 0.01


@pytest.mark.parametrize("momentum", [0.99, 0.9, 0.5])
def test_prototypes_follow_weak_views_then_strong_ones(live: Live, momentum: float) -> None:
    learner = live.begun("papi")
    kl, rng = part(learner, PrototypeKL), np.random.default_rng(2)
    kl.mu[:5] = F.normalize(torch.from_numpy(rng.normal(size=(5, kl.mu.shape[1]))).float(), dim=1)
    kl.momentum.fill_(momentum)
    before, sets = array(kl.mu), torch.zeros(30, 10, dtype=torch.bool)
    sets[:, :7] = random_sets(rng, 30, 7)
    out, views = {}, []
    for name in ("weak", "strong"):
        logits = torch.from_numpy(rng.normal(size=(30, 10))).float()
        q = F.normalize(torch.from_numpy(rng.normal(size=(30, kl.mu.shape[1]))).float(), dim=1)
        out[name] = Output(q, logits, logits, q)
        labels = [reference.argmax_within(o, s) for o, s in zip(array(logits), as_sets(sets), strict=True)]
        views.append((array(q), labels))
    assert views[0][1] != views[1][1]
    kl.after(out, Batch(torch.arange(30), sets, sets.float(), torch.zeros(30).bool(), {}))
    np.testing.assert_allclose(array(kl.mu), reference.followed(before, views, momentum), rtol=1e-4, atol=1e-5)
    assert not kl.mu[7:].any()


@pytest.mark.parametrize("learnt", [0, 1])
@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_live_steps(live: Live, learnt: int, tau: float) -> None:
    """ce on the weak view + strength times the KL of both mixed views, over born classes, by prototypes from before."""
    learner = live.begun("papi", learnt=learnt, train__epochs=3, **{"auxiliary__prototype-kl__temperature": tau})
    kl, ctx = part(learner, PrototypeKL), learner.ctx
    mu = array(kl.mu)
    differed = 0
    for step in live.steps(learner, learnt, Position(learnt)):
        batch, logits = step.batch, step.logits("weak")
        sets = as_sets(batch.candidates)
        w = 0.99 if step.epoch == 0 else 0.95 + (step.epoch - 1) / 3 * (0.8 - 0.95)
        f = np.array([reference.proden_target(o, s) for o, s in zip(logits, sets, strict=True)])
        targets = w * array(step.p) + (1 - w) * f
        np.testing.assert_allclose(array(ctx.pool.p[batch.rows]), targets, **CLOSE)
        share, partner = float(batch.extra["share"]), batch.extra["partner"].tolist()
        aligned = 0.0
        for name in ("mixed weak", "mixed strong"):
            similarities = array(step.out[name].embedding) @ mu.T / tau
            predicted = [reference.softmax(row[: ctx.seen]) for row in similarities]  # no class that is not born
            aligned += share * naive_kl(targets[:, : ctx.seen], predicted)
            aligned += (1 - share) * naive_kl(targets[partner][:, : ctx.seen], predicted)
        expected = reference.cross_entropy(targets, logits, ctx.seen) + min(step.epoch, 1) * aligned
        np.testing.assert_allclose(float(step.total), expected, rtol=5e-5)
        differed += step.epoch > 0 and aligned > 0.01
        mu = array(kl.mu)
    assert differed == 4


def test_prototypes_get_no_gradient_and_go_on_from_task_to_task(live: Live) -> None:
    learner = live.learner("papi", learnt=1)
    kl = part(learner, PrototypeKL)
    assert not list(kl.parameters())
    mu = kl.mu.clone()
    learner._begin_task(live.task(learner, 1))
    assert torch.equal(kl.mu, mu)
    assert mu[:4].any(dim=1).all()
    assert not mu[4:].any()
