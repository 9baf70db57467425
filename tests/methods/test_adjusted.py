"""PGDR with adjusted logits: what sees the prior, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ipll.component import Batch
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.data.stream import Stream, Task
from ipll.engine.state import part_of
from ipll.errors import ConfigError
from ipll.families.disambiguation.pgdr import RAREST, Pgdr
from ipll.families.retention.ancl import Ancl
from ipll.learner import Learner


def learner_and_second_task(method: str, settings: dict[str, Any]) -> tuple[Learner, Task]:
    config = resolve("digits", method, overrides={"train.epochs": 2, "memory.size": 50} | settings)
    source = load_source("digits")
    stream = Stream.build(source, config.stream, config.seed)
    learner = Learner(config, channels=1, classes=10, mean=source.mean, std=source.std)
    for _ in learner.fit(stream.make_task(0, source.train_samples)):
        pass
    return learner, stream.make_task(1, source.train_samples)


def learner_in_its_second_task(method: str) -> Learner:
    learner, task = learner_and_second_task(method, {})
    for position in learner.fit(task):
        if position.epoch == 1:
            break
    return learner


def begun(method: str, settings: dict[str, Any]) -> Learner:
    """-> a learner whose second task has begun, with no step made."""
    learner, task = learner_and_second_task(method, settings)
    learner._begin_task(task)
    return learner


def test_prior_is_the_share_of_the_targets_memory_included() -> None:
    learner = learner_in_its_second_task("pgdr/adjusted")
    part = learner.ctx.parts[0]
    assert isinstance(part, Pgdr)
    p = learner.ctx.pool.p.double().numpy()
    assert len(p) > learner.ctx.pool.incoming
    share = p.sum(axis=0) / p.sum()
    np.testing.assert_allclose(part.log_prior.numpy(), np.log(np.maximum(share, RAREST)), rtol=1e-4)
    assert share[:2].max() < share[2:4].min()  # two old classes from the memory, two new ones


def test_what_sees_the_prior() -> None:
    """Cross-entropy, consistency and the pseudo-label; not distillation, not the test."""
    learner = learner_in_its_second_task("pgdr/adjusted")
    ctx, phase = learner.ctx, learner.ctx.phase
    part = ctx.parts[0]
    assert isinstance(part, Pgdr)
    rows = torch.arange(0, len(ctx.pool), 7)
    views = {name: ctx.views.plain(ctx.pool.samples[rows]) for name in ("weak", "strong")}
    seen = {}
    for name, prior in (("none", torch.zeros(10)), ("steep", torch.linspace(-9, 0, 10))):
        part.log_prior.copy_(prior)
        learner.network.eval()
        batch = Batch(rows, ctx.pool.candidates[rows], ctx.pool.p[rows], rows >= ctx.pool.incoming, dict(views))
        with torch.no_grad():
            for each in phase.parts:
                each.before(batch)
            out = learner.stepper.forward(phase, batch)
            learner.stepper.decide_targets(phase, batch, out)
            terms = learner.stepper.total(phase, batch, out)[1]
        assert batch.targets is not None
        logits = out["weak"].logits + prior
        z = logits.masked_fill(~batch.candidates, -torch.inf).argmax(dim=1)
        expected = part.beta * batch.p + (1 - part.beta) * torch.nn.functional.one_hot(z, 10)
        torch.testing.assert_close(batch.targets, expected)
        ce = -(batch.targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
        torch.testing.assert_close(terms["ce"], ce)
        torch.testing.assert_close(terms["cr"], ce)  # both views are plain here
        seen[name] = terms["kd"], learner.predict(ctx.pool.samples[rows]).linear
    assert torch.equal(seen["none"][0], seen["steep"][0])
    assert torch.equal(seen["none"][1], seen["steep"][1])


def test_without_it_nothing_changes() -> None:
    plain, off = (resolve("digits", "pgdr", overrides=settings) for settings in ({}, {"disambiguation.adjust": 0.0}))
    assert plain == off
    assert learner_in_its_second_task("pgdr").ctx.parts[0].log_prior.count_nonzero() == 0  # type: ignore[operator]


def test_held_out_samples_are_in_no_prior_from_the_first_epoch_on() -> None:
    """Whichever part sets them apart."""
    learner = begun("pgdr/adjusted", {"retention.kind": "bic"})
    part, pool = learner.ctx.parts[0], learner.ctx.pool
    assert isinstance(part, Pgdr)
    assert pool.held_out.any()
    mass = pool.p[~pool.held_out].double().sum(dim=0)
    torch.testing.assert_close(part.log_prior, (mass / mass.sum()).clamp_min(RAREST).log().float(), rtol=1e-4, atol=0)


def test_an_auxiliary_network_has_a_prior_of_its_own_targets() -> None:
    learner = begun("pgdr/adjusted", {"retention.kind": "ancl"})
    ancl, pool = part_of(learner.ctx.parts, Ancl), learner.ctx.pool
    assert ancl is not None
    companion = ancl.companions[0]
    assert isinstance(companion, Pgdr)
    learner.ctx.phase = ancl.phases()[0]
    learner.ctx.phase.p.copy_(learner.ctx.phase.p.roll(1, dims=0))
    learner.ctx.phase.p[: len(pool) // 2] = 0
    companion.end_epoch()
    mass = learner.ctx.phase.p[~pool.held_out].double().sum(dim=0)
    expected = (mass / mass.sum()).clamp_min(RAREST).log().float()
    torch.testing.assert_close(companion.log_prior, expected, rtol=1e-4, atol=0)


def test_sharpness_is_for_soft_targets() -> None:
    with pytest.raises(
        ConfigError, match=r"disambiguation.sharpness must be 1 where disambiguation.soft is false, got 2"
    ):
        resolve("digits", "pgdr", overrides={"disambiguation.sharpness": 2.0})
