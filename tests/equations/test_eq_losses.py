"""Eq. 1 (cross-entropy), the appendix's L_cr, Eq. 10 (distillation) and Eq. 11 (the total)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import reference
from ipll.component import Batch, soft_cross_entropy
from ipll.engine.state import part_of
from ipll.errors import ConfigError
from ipll.families.auxiliary.consistency import Consistency
from ipll.families.disambiguation import Disambiguation
from ipll.families.retention.distillation import Distillation, DistillationSettings
from ipll.networks.network import MASKED, Output
from live import Live, array, random_sets

N, CLASSES, SEEN = 23, 10, 7
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-7}  # float32 against float64


def random_problem(seed: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """-> logits and soft targets [N, CLASSES]; classes from SEEN on are not born."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(scale=scale, size=(N, CLASSES))).float()
    logits[:, SEEN:] = MASKED
    weights = torch.zeros(N, CLASSES)
    weights[:, :SEEN] = torch.from_numpy(rng.random((N, SEEN))) * random_sets(rng, N, SEEN)
    return logits, weights / weights.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("scale", [0.5, 5.0, 40.0])
def test_eq1_cross_entropy(scale: float) -> None:
    for seed in range(3):
        logits, p = random_problem(seed, scale)
        expected = reference.cross_entropy(array(p), array(logits), SEEN)
        np.testing.assert_allclose(float(soft_cross_entropy(logits, p)), expected, **CLOSE)


def test_ce_is_on_the_weak_view_and_cr_on_the_strong_one_with_the_same_targets() -> None:
    weak, p = random_problem(0, 3.0)
    strong, _ = random_problem(1, 3.0)
    out = {"weak": Output(weak, weak, weak, weak[:, :0]), "strong": Output(strong, strong, strong, strong[:, :0])}
    batch = Batch(torch.arange(N), p > 0, torch.zeros_like(p), torch.zeros(N).bool(), {})
    ce = Disambiguation(None).losses(out, p, batch)
    cr = Consistency(Consistency.Settings()).losses(out, p, batch)
    assert set(ce) == {"ce"}
    assert set(cr) == {"cr"}
    np.testing.assert_allclose(float(ce["ce"]), reference.cross_entropy(array(p), array(weak), SEEN), **CLOSE)
    np.testing.assert_allclose(float(cr["cr"]), reference.cross_entropy(array(p), array(strong), SEEN), **CLOSE)


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_eq10_distillation(live: Live, literal: bool, temperature: float) -> None:
    learner = live.begun(retention__literal=literal, retention__temperature=temperature)
    ctx = learner.ctx
    distillation = part_of(ctx.parts, Distillation)
    assert distillation is not None
    assert 0 < ctx.old < ctx.seen < ctx.capacity
    weak = ctx.views.plain(ctx.pool.samples[:N])
    batch = Batch(torch.arange(N), ctx.pool.candidates[:N], ctx.pool.p[:N], torch.zeros(N).bool(), {"weak": weak})
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(scale=3, size=(N, ctx.capacity))).float()
    logits[:, ctx.seen :] = MASKED
    logits.requires_grad_()
    distillation.before(batch)
    kd = distillation.losses({"weak": Output(logits, logits, logits, logits[:, :0])}, batch.p, batch)["kd"]
    teacher = array(learner.teacher(weak).logits)
    expected = reference.distillation(
        teacher, array(logits), ctx.old, ctx.seen, temperature=temperature, literal=literal
    )
    np.testing.assert_allclose(float(kd.detach()), expected, **CLOSE)
    kd.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool((logits.grad[:, : ctx.old] != 0).any())
    assert bool((logits.grad[:, ctx.old : ctx.seen] != 0).any()) is literal
    assert torch.equal(logits.grad[:, ctx.seen :], torch.zeros_like(logits.grad[:, ctx.seen :]))


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"retention__views": "all"}, ("weak", "strong")),
        ({"retention__views": "all", "augment__cutmix": 1.0}, ("weak", "strong", "cutmix")),
        ({"retention__views": "all", "retention__literal": True, "train__joint_views": False}, ("weak", "strong")),
        ({"augment__cutmix": 1.0}, ("weak",)),
    ],
)
def test_eq10_of_every_view_that_is_trained_on(live: Live, settings: dict[str, Any], asked: tuple[str, ...]) -> None:
    """The mean over all of them; each is compared with what the teacher says of the same view."""
    learner = live.learner(learnt=1, train__epochs=1, **settings)
    ctx, summed = learner.ctx, 0.0
    for step in live.steps(learner, 1):
        teacher = np.concatenate([array(learner.teacher(step.batch.views[name]).logits) for name in asked])
        logits = np.concatenate([step.logits(name) for name in asked])
        literal = bool(settings.get("retention__literal"))
        summed += reference.distillation(teacher, logits, ctx.old, ctx.seen, literal=literal)
        np.testing.assert_allclose(float(learner.stepper.sums["kd"]), summed, **CLOSE)


@pytest.mark.parametrize(("growth", "weights"), [(0.0, (2.0, 2.0)), (1.0, (2 * 4 / 3, 2 * 7 / 3)), (0.5, None)])
def test_the_weight_of_distillation_grows_with_the_classes(
    live: Live, growth: float, weights: tuple[float, float] | None
) -> None:
    """retention.weight times (old / new classes)^growth; in tasks of 4, 3 and 3 classes."""
    expected = weights or tuple(2 * (old / 3) ** growth for old in (4, 7))
    for learnt in (1, 2):
        learner = live.begun(learnt=learnt, retention__weight=2.0, retention__growth=growth)
        distillation = part_of(learner.ctx.parts, Distillation)
        assert distillation is not None
        assert distillation.weights() == {"kd": pytest.approx(expected[learnt - 1])}


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"views": "strong"}, r"retention\.views.*weak, all"), ({"growth": -1.0}, r"retention\.growth must not be neg")],
)
def test_wrong_settings_of_distillation_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        DistillationSettings(**settings)


def test_the_teacher_is_the_network_as_the_last_task_left_it(live: Live) -> None:
    learner = live.learner(learnt=1)
    left = copy.deepcopy(learner.network).eval()
    for step in live.steps(learner, 1):
        expected = left(step.batch.views["weak"]).logits[:, : learner.ctx.old].softmax(dim=1)
        torch.testing.assert_close(step.batch.extra["teacher"][:, : learner.ctx.old], expected)
        assert float(step.batch.extra["teacher"][:, learner.ctx.old :].abs().max()) == 0.0


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("kd_weight", "cr_weight"), [(1.0, 1.0), (2.0, 0.25)])
def test_eq11_total(live: Live, joint: bool, kd_weight: float, cr_weight: float) -> None:
    settings: dict[str, Any] = {"train__joint_views": joint, "train__steps_per_epoch": 3}
    if kd_weight != 1:
        settings |= {"retention__weight": kd_weight, "auxiliary__consistency__weight": cr_weight}
    learner = live.learner(learnt=1, **settings)
    ctx = learner.ctx
    sums = dict.fromkeys(("ce", "kd", "cr", "total"), 0.0)
    epoch = 0
    for step in live.steps(learner, 1):
        if step.epoch != epoch:  # sums are of one epoch
            epoch, sums = step.epoch, dict.fromkeys(sums, 0.0)
        assert step.batch.targets is not None
        p, weak = array(step.batch.targets), step.batch.views["weak"]
        teacher = array(learner.teacher(weak).logits)
        terms = {
            "ce": reference.cross_entropy(p, step.logits("weak"), ctx.seen),
            "kd": kd_weight * reference.distillation(teacher, step.logits("weak"), ctx.old, ctx.seen),
            "cr": cr_weight * reference.cross_entropy(p, step.logits("strong"), ctx.seen),
        }
        total = terms["ce"] + terms["kd"] + terms["cr"]
        np.testing.assert_allclose(float(step.total), total, **CLOSE)
        for name, value in (terms | {"total": total}).items():
            sums[name] += value
            np.testing.assert_allclose(float(learner.stepper.sums[name]), sums[name], **CLOSE)
        assert set(learner.stepper.sums) == set(sums)
    assert epoch == learner.config.train.epochs - 1


@pytest.mark.parametrize("joint", [True, False])
def test_views_go_through_the_network_together_or_each_on_its_own(live: Live, joint: bool) -> None:
    step = next(live.steps(live.learner(train__joint_views=joint), 0))
    views, network = step.batch.views, step.network.train()
    both = network(torch.cat([views["weak"], views["strong"]])).logits.chunk(2)
    apart = network(views["weak"]).logits, network(views["strong"]).logits
    for name, together, alone in zip(("weak", "strong"), both, apart, strict=True):
        torch.testing.assert_close(step.out[name].logits, together if joint else alone)
        assert not torch.allclose(together, alone, atol=1e-4)


def test_an_epoch_visits_all_of_the_task_and_the_memory(live: Live) -> None:
    learner = live.learner(learnt=1, train__steps_per_epoch=0, train__epochs=1)
    kept = set(learner.memory.ids.tolist())
    steps = list(live.steps(learner, 1))
    pool = learner.ctx.pool
    rows = torch.cat([step.batch.rows for step in steps])
    assert set(rows.tolist()) == set(range(len(pool)))
    assert set(pool.ids.tolist()) == set(live.task(learner, 1).ids.tolist()) | kept
    assert len(kept) == len(pool) - pool.incoming == 60
    for step in steps:
        assert torch.equal(step.batch.from_memory, step.batch.rows >= pool.incoming)
        assert len(set(step.batch.rows.tolist())) == len(step.batch.rows) == learner.batch_size
    assert len(rows) - len(pool) < learner.batch_size


def test_the_first_task_has_nothing_to_distil(live: Live) -> None:
    learner = live.learner()
    next(live.steps(learner, 0))
    assert set(learner.stepper.sums) == {"ce", "cr", "total"}


@pytest.mark.parametrize(("method", "terms"), [("pgdr/no-cr", {"ce", "kd"}), ("pgdr/no-kd", {"ce", "cr"})])
def test_a_term_that_is_left_out_is_not_in_the_total(live: Live, method: str, terms: set[str]) -> None:
    learner = live.learner(method, learnt=1)
    step = next(live.steps(learner, 1))
    assert set(learner.stepper.sums) == terms | {"total"}
    torch.testing.assert_close(step.total, sum(learner.stepper.sums[name] for name in terms))
