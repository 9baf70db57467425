"""WA: gamma, whose rows it scales, and the weights of its two terms."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from ipll.families.retention.wa import Wa, alignment
from ipll.learner import Learner
from live import Live, array, part, snapshot, unchanged

METHOD = "proden+wa"


def naive_gamma(weight: np.ndarray, old: int, seen: int) -> float:
    """Mean norm of the rows 0, ..., old - 1 over the mean norm of the rows old, ..., seen - 1."""
    norms = [math.sqrt(sum(w * w for w in row)) for row in weight]
    return (sum(norms[:old]) / old) / (sum(norms[old:seen]) / (seen - old))


@pytest.mark.parametrize(("old", "seen"), [(4, 7), (1, 2), (6, 10), (2, 9)])
def test_gamma(old: int, seen: int) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 5))) * torch.arange(1, 11)[:, None]
    classes = torch.arange(10)
    gamma = alignment(weight, classes < old, (classes >= old) & (classes < seen))
    assert float(gamma) == pytest.approx(naive_gamma(weight.numpy(), old, seen), rel=1e-12)


def align(live: Live, learner: Learner, t: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Learns task `t`. -> weight and bias of the head, and the backbone, as training left them."""
    for _ in learner.fit(live.task(learner, t)):
        head = learner.network.head
        weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
        backbone = snapshot(learner.network.backbone)
    return weight, bias, backbone


@pytest.mark.parametrize("align_bias", [False, True])
def test_after_a_task_the_rows_born_in_it_are_scaled_and_nothing_else(live: Live, align_bias: bool) -> None:
    learner = live.learner(METHOD, learnt=1, retention__align_bias=align_bias)
    for t in (1, 2):
        weight, bias, backbone = align(live, learner, t)
        old, seen = learner.ctx.old, learner.ctx.seen
        head = learner.network.head
        gamma = naive_gamma(array(weight), old, seen)
        assert abs(gamma - 1) > 1e-3
        torch.testing.assert_close(head.weight[old:seen], gamma * weight[old:seen])
        assert torch.equal(head.weight[:old], weight[:old])
        assert not head.weight[seen:].any()
        assert naive_gamma(array(head.weight), old, seen) == pytest.approx(1, rel=1e-5)
        torch.testing.assert_close(head.bias[old:seen], (gamma if align_bias else 1.0) * bias[old:seen])
        assert torch.equal(head.bias[:old], bias[:old])
        assert unchanged(backbone, learner.network.backbone)
        assert unchanged(snapshot(learner.network), learner.teacher)


def test_nothing_is_scaled_in_the_first_task(live: Live) -> None:
    learner = live.learner(METHOD)
    weight, bias, _ = align(live, learner, 0)
    assert torch.equal(learner.network.head.weight, weight)
    assert torch.equal(learner.network.head.bias, bias)


def test_new_is_who_was_born_in_the_task_not_who_is_present(live: Live) -> None:
    """A class that is born without a sample is scaled; old classes of which samples come back are not."""
    learner = live.learner(METHOD, learnt=1)
    task = live.task(learner, 1)
    absent = task.seen - 1
    here = ~task.candidates[:, absent]
    old_ones = task.candidates[:, : task.old].any(axis=1) & ~task.candidates[:, task.old :].any(axis=1)
    assert (here & old_ones).any()  # samples that can only be old
    without = dataclasses.replace(
        task, ids=task.ids[here], samples=task.samples[here], candidates=task.candidates[here]
    )
    for _ in learner.fit(without):
        weight = learner.network.head.weight.detach().clone()
    gamma = naive_gamma(array(weight), task.old, task.seen)
    torch.testing.assert_close(learner.network.head.weight[absent], gamma * weight[absent])
    assert torch.equal(learner.network.head.weight[: task.old], weight[: task.old])


@pytest.mark.parametrize("settings", [{}, {"retention__weight": 3.0}, {"retention__temperature": 1.0}])
def test_the_terms_weigh_one_minus_lambda_and_lambda(live: Live, settings: dict[str, Any]) -> None:
    """lambda = old / seen; softmaxes at T = 2, no T^2; the teacher is the network as it was aligned."""
    learner = live.learner(METHOD, learnt=1, **settings)
    for t, share in ((1, 4 / 7), (2, 7 / 10)):
        aligned = learner.network.state_dict()
        teacher = {name: tensor.clone() for name, tensor in aligned.items()}
        for step in live.steps(learner, t):
            network = step.network
            ctx = learner.ctx
            network.load_state_dict(teacher | {"head.born": network.head.born})
            with torch.no_grad():
                old = array(network.eval()(step.batch.views["weak"]).logits)
            ce = reference.cross_entropy(array(step.p), step.logits("weak"), ctx.seen)
            kd = reference.distillation(
                old, step.logits("weak"), ctx.old, ctx.seen, temperature=settings.get("retention__temperature", 2.0)
            )
            expected = (1 - share) * ce + share * settings.get("retention__weight", 1.0) * kd
            np.testing.assert_allclose(float(step.total), expected, rtol=2e-5)


def test_c_flat_has_both_terms_weigh_one(live: Live) -> None:
    """As in its code, whatever the share of old classes."""
    for method, weights in (("proden+c-flat", {"kd": 1.0}), (METHOD, {"ce": 3 / 7, "cr": 3 / 7, "kd": 4 / 7})):
        told = part(live.begun(method), Wa).weights()
        assert {name: told[name] for name in weights} == pytest.approx(weights)
        assert ("ce" in told) == ("ce" in weights)


def test_the_first_task_is_plain_cross_entropy(live: Live) -> None:
    learner = live.learner(METHOD)
    for step in live.steps(learner, 0):
        expected = reference.cross_entropy(array(step.p), step.logits("weak"), learner.ctx.seen)
        np.testing.assert_allclose(float(step.total), expected, rtol=2e-5)
    assert part(learner, Wa).settings.temperature == 2.0
