"""Boost and compress: what the pair is, what each phase trains and leaves alone, and the losses of both."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import reference
from ipll.config import resolve
from ipll.errors import ConfigError
from ipll.families.auxiliary.contrastive import Contrastive
from ipll.families.disambiguation.pgdr import Pgdr
from ipll.families.retention.boost import Boost
from ipll.learner import Learner, Position
from ipll.networks.network import MASKED
from ipll.testing import check_method
from live import Live, Step, array, part, snapshot, unchanged

METHOD = "pgdr/adjusted"  # its classification losses see other logits than tests do
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-7}  # float32 against float64


def boosted(live: Live, *, learnt: int = 0, **settings: Any) -> Learner:
    """-> a learner that boosts and has learnt so many tasks."""
    return live.learner(METHOD, learnt=learnt, retention__kind="boost", **settings)


def begun(live: Live, *, learnt: int = 1) -> Learner:
    """-> the same at the start of its next task."""
    return live.begun(METHOD, learnt=learnt, retention__kind="boost")


def plain_views(learner: Learner, n: int = 40) -> torch.Tensor:
    return learner.ctx.views.plain(learner.ctx.pool.samples[:n])


# The phases


def test_from_the_second_task_on_boosting_comes_before_the_main_phase(live: Live) -> None:
    learner = boosted(live)
    for t in range(3):
        walked = [position.phase for position in learner.fit(live.task(learner, t))]
        assert walked == ([0] * 6 if t == 0 else [0] * 6 + [1] * 6)  # two epochs of two steps and a mark each
        assert [phase.name for phase in learner._phases()] == (["main"] if t == 0 else ["boost", "main"])
        assert learner.phases == (1 if t == 0 else 2)


def test_the_first_task_is_learnt_as_without_it(live: Live) -> None:
    """Bit for bit: there is nothing to be boosted yet."""
    learner, plain = boosted(live, learnt=1), live.learner(METHOD, learnt=1)
    assert unchanged(snapshot(plain.network), learner.network)
    assert set(learner.losses) == {"ce", "cr", "total"}


@pytest.mark.parametrize("learnt", [1, 2])
def test_the_pair_says_at_first_what_the_network_says(live: Live, learnt: int) -> None:
    """New rows of the head included; and it shares no tensor with the network."""
    learner = begun(live, learnt=learnt)
    ctx, boost = learner.ctx, part(learner, Boost)
    assert unchanged(snapshot(learner.network), boost.network)
    mine, theirs = ({t.data_ptr() for t in module.state_dict().values()} for module in (boost, learner.network))
    assert not mine & theirs
    views = plain_views(learner)
    with torch.no_grad():
        expected = learner.network.eval()(views)
        new = boost.network.train()(views).features
        said = boost.boosting.logits(learner.teacher(views).features, new)
    torch.testing.assert_close(said, expected.logits)  # the new half counts for nothing yet
    assert bool((said[:, ctx.seen :] == MASKED).all())


def test_the_boosting_phase_touches_nothing_but_the_pair_and_the_pseudo_labels(live: Live) -> None:
    learner = begun(live)
    ctx, boost = learner.ctx, part(learner, Boost)
    others = [learner.network, learner.teacher, learner.memory, learner.classifier, ctx.prototypes]
    before, p = snapshot(*others), ctx.pool.p.clone()
    new, head = snapshot(boost.network), snapshot(boost.boosting.head)
    for position in learner.fit(live.task(learner, 1), Position(1)):
        if position.phase == 1:
            break
        assert unchanged(before, *others)
    assert not unchanged(new, boost.network)
    assert not unchanged(head, boost.boosting.head)
    assert not torch.equal(ctx.pool.p, p)


@pytest.mark.parametrize("update", ["sgd", "c-flat"])
def test_the_main_phase_trains_the_network_alone_and_pseudo_labels_rest(live: Live, update: str) -> None:
    learner = boosted(live, learnt=1, update__kind=update)
    boost = part(learner, Boost)
    for position in learner.fit(live.task(learner, 1)):
        if position == Position(1, 0, 2):  # its last epoch is over
            rest, p = snapshot(boost, learner.teacher), learner.ctx.pool.p.clone()
            before = snapshot(learner.network)
        elif position == Position(1, 1, 1):
            assert unchanged(rest, boost, learner.teacher)
            assert torch.equal(learner.ctx.pool.p, p)
            assert not unchanged(before, learner.network)
    assert unchanged(rest[: len(snapshot(boost))], boost)
    assert torch.equal(learner.ctx.pool.p, p)


def test_one_network_is_left(live: Live) -> None:
    """It is the next task's teacher; the pair starts from it anew."""
    learner = boosted(live, learnt=2)
    assert unchanged(snapshot(learner.network), learner.teacher)
    boost = part(learner, Boost)
    assert not unchanged(snapshot(learner.network), boost.network)
    learner._begin_task(live.task(learner, 2))
    assert unchanged(snapshot(learner.network), boost.network)


def test_a_key_encoder_follows_the_network_of_its_phase(live: Live) -> None:
    """In the boosting phase, the new one."""
    learner = live.learner("pico+icarl", learnt=1, retention__kind="boost", auxiliary__contrastive__key_momentum=0.0)
    encoder = part(learner, Contrastive).encoder
    for step in live.steps(learner, 1):
        for weight, own in zip(encoder.parameters(), step.network.parameters(), strict=True):
            assert torch.equal(weight, own)


# The losses


def shaped(learner: Learner, logits: np.ndarray) -> np.ndarray:
    """-> logits as classification losses see them: tau log pi added (disambiguation.adjust)."""
    return logits + array(part(learner, Pgdr).log_prior)


def boosting_total(learner: Learner, step: Step, *, weight: float, auxiliary: float, asked: list[str]) -> float:
    """-> ce + cr + weight kd + auxiliary * the new network alone, each from the pair as it was before the step."""
    ctx, new = learner.ctx, step.network
    assert step.batch.targets is not None
    p, total = array(step.batch.targets), 0.0
    for name in ("weak", "strong"):
        alone = array(new.head(step.out[name].features))
        total += reference.cross_entropy(p, shaped(learner, step.logits(name)), ctx.seen)
        total += auxiliary * reference.cross_entropy(p, shaped(learner, alone), ctx.seen)
    views = torch.cat([step.batch.views[name] for name in asked])
    with torch.no_grad():
        teacher = array(learner.teacher(views).logits)
    logits = np.concatenate([step.logits(name) for name in asked])
    temperature = part(learner, Boost).settings.temperature
    return total + weight * reference.distillation(teacher, logits, ctx.old, ctx.seen, temperature=temperature)


CASES: list[tuple[dict[str, Any], float, float, list[str]]] = [
    ({}, 1.0, 1.0, ["weak"]),
    ({"retention__weight": 3.0, "retention__auxiliary_weight": 0.5, "retention__temperature": 2.0}, 3.0, 0.5, ["weak"]),
    ({"retention__views": "all"}, 1.0, 1.0, ["weak", "strong"]),
    ({"retention__views": "all", "train__joint_views": False}, 1.0, 1.0, ["weak", "strong"]),
    ({"retention__growth": 2.0}, (4 / 3) ** 2, 1.0, ["weak"]),
]


@pytest.mark.parametrize(("settings", "weight", "auxiliary", "asked"), CASES)
def test_the_pair_learns_by_every_loss_by_distillation_and_by_its_new_half_alone(
    live: Live, settings: dict[str, Any], weight: float, auxiliary: float, asked: list[str]
) -> None:
    learner = boosted(live, learnt=1, **settings)
    seen = 0
    for step in live.steps(learner, 1):
        if learner.ctx.phase.name == "boost":
            seen += 1
            expected = boosting_total(learner, step, weight=weight, auxiliary=auxiliary, asked=asked)
            np.testing.assert_allclose(float(step.total), expected, **CLOSE)
            assert set(learner.stepper.sums) == {"ce", "cr", "kd", "alone", "total"}
    assert seen == 4


def test_what_the_pair_says_is_by_the_features_of_both(live: Live) -> None:
    learner = boosted(live, learnt=1)
    seen, head = 4, None  # the head as it was before a step: after the one before it
    for step in live.steps(learner, 1):
        if learner.ctx.phase.name == "boost":
            with torch.no_grad():
                old = array(learner.teacher(step.batch.views["weak"]).features)
            features = np.concatenate([old, array(step.out["weak"].features)], axis=1)
            if head is not None:
                expected = features @ array(head.weight).T + array(head.bias)
                np.testing.assert_allclose(step.logits("weak")[:, :seen], expected[:, :seen], rtol=1e-4, atol=1e-5)
            head = copy.deepcopy(part(learner, Boost).boosting.head)
    assert head is not None
    assert learner.network.dim * 2 == head.weight.shape[1]
    assert head.weight[:, learner.network.dim :].any()


@pytest.mark.parametrize(
    ("settings", "temperature", "weight", "views"),
    [
        ({}, 2.0, 1.0, ["weak", "strong"]),
        ({"retention__compress_temperature": 3.0, "retention__compress_weight": 0.5}, 3.0, 0.5, ["weak", "strong"]),
        ({"augment__cutmix": 1.0, "train__joint_views": False}, 2.0, 1.0, ["weak", "strong", "cutmix"]),
    ],
)
def test_the_network_learns_what_the_pair_says_of_every_view(
    live: Live, settings: dict[str, Any], temperature: float, weight: float, views: list[str]
) -> None:
    """weight T^2 times the cross-entropy of both softmaxes at T over all seen classes, and no other term."""
    learner = boosted(live, learnt=1, **settings)
    boost, seen = part(learner, Boost), 0
    for step in live.steps(learner, 1):
        if learner.ctx.phase.name == "main":
            seen += 1
            with torch.no_grad():
                shown = torch.cat([step.batch.views[name] for name in views])
                old, new = (network.eval()(shown).features for network in (learner.teacher, boost.network))
                said = array(boost.boosting.logits(old, new))
            logits, classes = np.concatenate([step.logits(name) for name in views]), learner.ctx.seen
            expected = reference.distillation(said, logits, classes, classes, temperature=temperature)
            np.testing.assert_allclose(float(step.total), weight * temperature**2 * expected, **CLOSE)
            assert float(learner.stepper.sums["ce"]) == float(learner.stepper.sums["cr"]) == 0
            assert "kd" not in learner.stepper.sums
    assert seen == 4


# With any method


@pytest.mark.parametrize("name", ["proden+icarl", "pico+icarl", "papi+icarl", "terial+icarl", "pgdr/mp", "pgdr/pp"])
def test_any_disambiguation_keeps_its_contract_with_it(name: str) -> None:
    check_method(name, retention__kind="boost", stream__tasks=2, train__steps_per_epoch=6)


@pytest.mark.parametrize(
    ("key", "value"),
    [("auxiliary_weight", -1.0), ("compress_weight", -0.5), ("compress_temperature", 0.0), ("temperature", -1.0)],
)
def test_a_wrong_setting_is_named(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"retention\.{key} must"):
        resolve("digits", METHOD, overrides={"retention.kind": "boost", f"retention.{key}": value})
