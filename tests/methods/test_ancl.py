"""ANCL: the auxiliary network's phase, what it may touch, and what the main network takes from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from ipll.component import Phase
from ipll.engine.state import part_of
from ipll.families.auxiliary.contrastive import Contrastive
from ipll.families.retention.ancl import Ancl
from ipll.families.update import Descent
from ipll.learner import Learner, Position
from live import Live, array, as_sets, batch_of, part, snapshot, unchanged

METHODS = ["proden+ancl", "pico+ancl", "papi+ancl"]


def positions(live: Live, learner: Learner, t: int) -> list[Position]:
    return list(learner.fit(live.task(learner, t)))


@pytest.mark.parametrize("method", METHODS)
def test_from_the_second_task_on_an_auxiliary_phase_comes_first(live: Live, method: str) -> None:
    learner = live.learner(method)
    for t in range(3):
        walked = [position.phase for position in positions(live, learner, t)]
        assert walked == ([0] * 6 if t == 0 else [0] * 6 + [1] * 6)  # two epochs of two steps and a mark each
        assert [phase.name for phase in learner._phases()] == (["main"] if t == 0 else ["auxiliary", "main"])
        assert learner.phases == (1 if t == 0 else 2)


@pytest.mark.parametrize("method", METHODS)
def test_the_auxiliary_network_starts_where_the_network_stands(live: Live, method: str) -> None:
    for learnt in (1, 2):
        learner = live.begun(method, learnt=learnt)
        auxiliary, main = learner._phases()
        assert unchanged(snapshot(learner.network), auxiliary.network)  # new rows of the head included
        assert unchanged(snapshot(*learner.ctx.parts[: len(auxiliary.parts)]), *auxiliary.parts)
        assert torch.equal(auxiliary.p, main.p)
        mine, theirs = ({t.data_ptr() for t in phase.network.state_dict().values()} for phase in (auxiliary, main))
        assert not mine & theirs
        assert auxiliary.p.data_ptr() != main.p.data_ptr()
        assert not set(auxiliary.parts) & set(main.parts)
        assert part(learner, Ancl) not in auxiliary.parts


@pytest.mark.parametrize("method", METHODS)
def test_the_auxiliary_phase_touches_nothing_but_its_own(live: Live, method: str) -> None:
    learner = live.begun(method)
    ancl = part(learner, Ancl)
    others = [p for p in learner.ctx.parts if p is not ancl]  # memory, and what the companions are copies of
    fit = learner.fit(live.task(learner, 1), Position(1))
    main = [learner.network, learner.teacher, *others]
    before, p = snapshot(*main), learner.ctx.pool.p.clone()
    own, targets = snapshot(ancl.network, *ancl.companions), ancl.targets_of_auxiliary.clone()
    for position in fit:
        if position.phase == 1:
            break
        assert unchanged(before, *main)
        assert torch.equal(learner.ctx.pool.p, p)
    assert position.phase == 1
    assert not unchanged(before, learner.network, learner.teacher, *others)
    assert not unchanged(own, ancl.network, *ancl.companions)
    assert not torch.equal(ancl.targets_of_auxiliary, targets)


@pytest.mark.parametrize("update", ["sgd", "c-flat"])
def test_the_main_phase_leaves_the_auxiliary_network_alone(live: Live, update: str) -> None:
    learner = live.learner("pico+ancl", learnt=1, update__kind=update)
    ancl = part(learner, Ancl)
    for position in learner.fit(live.task(learner, 1)):
        if position == Position(1, 0, 2):  # its last epoch is over
            before, targets = snapshot(ancl.network, *ancl.companions), ancl.targets_of_auxiliary.clone()
            main = snapshot(learner.network)
    assert unchanged(before, ancl.network, *ancl.companions)
    assert torch.equal(ancl.targets_of_auxiliary, targets)
    assert not unchanged(main, learner.network)


def test_the_auxiliary_network_learns_freely(live: Live) -> None:
    """By the disambiguation's loss alone, with targets of its own; neither distilled nor weighed down."""
    learner = live.learner("proden+ancl", learnt=1)
    ancl = part(learner, Ancl)
    seen = 0
    for step in live.steps(learner, 1):
        if learner.ctx.phase.name == "auxiliary":
            seen += 1
            expected = reference.cross_entropy(array(step.p), step.logits("weak"), learner.ctx.seen)
            np.testing.assert_allclose(float(step.total), expected, rtol=2e-5)
            assert set(learner.stepper.sums) == {"ce", "total"}
            sets = as_sets(step.batch.candidates)
            stored = [reference.proden_target(o, s) for o, s in zip(step.logits("weak"), sets, strict=True)]
            np.testing.assert_allclose(array(ancl.targets_of_auxiliary[step.batch.rows]), stored, atol=1e-6)
    assert seen == 4


def test_each_phase_has_a_key_encoder_that_follows_its_own_network(live: Live) -> None:
    learner = live.learner("pico+ancl", learnt=1, auxiliary__contrastive__key_momentum=0.0)
    companion = part_of(part(learner, Ancl).companions, Contrastive)
    assert companion is not None
    encoders = {"auxiliary": companion.encoder, "main": part(learner, Contrastive).encoder}
    for step in live.steps(learner, 1):
        encoder = encoders[learner.ctx.phase.name]
        for weight, followed in zip(encoder.parameters(), step.network.parameters(), strict=True):
            assert torch.equal(weight, followed)


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.0])
def test_the_main_network_is_distilled_towards_both(live: Live, weight: float) -> None:
    """(1 - lambda) ce + lambda kd over old classes + lambda_a kd over those born in the task, at T = 2."""
    learner = live.learner("proden+ancl", learnt=2, retention__auxiliary_weight=weight)
    ancl = part(learner, Ancl)
    seen = 0
    for step in live.steps(learner, 2):
        if learner.ctx.phase.name != "main":
            continue
        seen += 1
        ctx, weak, logits = learner.ctx, step.batch.views["weak"], step.logits("weak")
        with torch.no_grad():
            teacher = array(ctx.correct(learner.teacher(weak).logits))
            auxiliary = array(ancl.network.eval()(weak).logits)
        share = ctx.old / ctx.seen
        ce = reference.cross_entropy(array(step.p), logits, ctx.seen)
        kd = reference.distillation(teacher, logits, ctx.old, ctx.seen, temperature=2.0)
        new = 0.0
        for mine, theirs in zip(logits, auxiliary, strict=True):
            f = reference.softmax([mine[c] / 2 for c in range(ctx.old, ctx.seen)])
            g = reference.softmax([theirs[c] / 2 for c in range(ctx.old, ctx.seen)])
            new -= sum(b * math.log(a) for a, b in zip(f, g, strict=True)) / len(logits)
        np.testing.assert_allclose(float(step.total), (1 - share) * ce + share * kd + weight * new, rtol=2e-5)
        assert set(learner.stepper.sums) == {"ce", "kd", "kd_auxiliary", "total"}
    assert seen == 4


def test_only_new_columns_are_distilled_from_the_auxiliary_network(live: Live) -> None:
    learner = live.begun("proden+ancl")
    ctx, ancl = learner.ctx, part(learner, Ancl)
    with torch.no_grad():  # where both networks say the same, there is nothing to learn
        ancl.network.head.weight += torch.randn(ancl.network.head.weight.shape, generator=ctx.generator("test"))
    batch = batch_of(learner, torch.arange(16))
    ancl.before(batch)
    out = learner.stepper.forward(Phase("main", learner.network, ctx.parts, ctx.pool.p), batch)
    (gradient,) = torch.autograd.grad(ancl.losses(out, batch.p, batch)["kd_auxiliary"], out["weak"].logits)
    assert {c for c in range(ctx.capacity) if gradient[:, c].any()} == set(range(ctx.old, ctx.seen))


@pytest.mark.parametrize("learnt", [1, 2])
def test_held_out_samples_are_in_no_step_of_either_phase(live: Live, learnt: int) -> None:
    learner = live.learner("proden+ancl", learnt=learnt, train__steps_per_epoch=0, train__batch_size=64)
    trained: dict[str, set[int]] = {"auxiliary": set(), "main": set()}
    for step in live.steps(learner, learnt):
        trained[learner.ctx.phase.name] |= set(step.batch.rows.tolist())
    pool = learner.ctx.pool
    assert pool.held_out.any()
    expected = set((~pool.held_out).nonzero()[:, 0].tolist())
    assert trained == {"auxiliary": expected, "main": expected}


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


STOPS = [Position(1, 0, 0, 1), Position(1, 0, 1), Position(1, 0, 1, 2), Position(1, 0, 2), Position(1, 1, 0, 1)]


@pytest.mark.parametrize(("method", "momenta"), [*((method, "fresh") for method in METHODS), ("pico+ancl", "carried")])
def test_training_goes_on_bit_for_bit_from_inside_the_auxiliary_phase(live: Live, method: str, momenta: str) -> None:
    learner = live.learner(method, learnt=1, train__momentum_buffers=momenta)
    task = live.task(learner, 1)
    kept = {position: copied(learner.tensors()) for position in learner.fit(task) if position in STOPS}
    assert list(kept) == STOPS
    end = copied(learner.tensors())
    for position, tensors in kept.items():
        resumed = live.learner(method, train__momentum_buffers=momenta)
        resumed.restore(tensors, task, within=True)
        for _ in resumed.fit(task, position):
            pass
        again = resumed.tensors()
        assert again.keys() == end.keys()
        assert [name for name in end if not torch.equal(again[name], end[name])] == [], position


def test_momenta_that_are_carried_over_reach_the_main_network(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """train.momentum_buffers=carried is about the main network; the auxiliary one comes in between."""
    learner = live.learner("proden+ancl", learnt=1, train__momentum_buffers="carried")
    carried = [momentum.clone() for momentum in learner.update.descent.momenta().values()]
    given: list[dict[int, Tensor]] = []
    monkeypatch.setattr(Descent, "set_momenta", lambda _, momenta: given.append(momenta))
    assert len(positions(live, learner, 1)) == 12
    assert len(given) == 2
    assert not given[0]  # a fresh network, a fresh optimiser
    assert len(given[1]) == len(carried) > 0
    assert all(torch.equal(a, b) for a, b in zip(given[1].values(), carried, strict=True))
