"""The head over Y_t: classes that are not born yet take no part, and are born from (seed, class) alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ipll.component import soft_cross_entropy
from ipll.networks.network import LinearHead
from live import Live

DIM, CLASSES = 16, 10


def head(born: int, seed: int = 0) -> LinearHead:
    result = LinearHead(DIM, CLASSES)
    result.birth(0, born, seed)
    return result


def test_unborn_classes_add_nothing_to_a_loss() -> None:
    """As if the head ended with Y_t: the same loss, whatever the room for more."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(9, DIM))).float()
    p = torch.from_numpy(rng.dirichlet(np.ones(4), size=9)).float()
    small = LinearHead(DIM, 4)
    small.birth(0, 4, 0)
    padded = torch.nn.functional.pad(p, (0, CLASSES - 4))
    torch.testing.assert_close(
        soft_cross_entropy(head(4)(features), padded), soft_cross_entropy(small(features), p), rtol=1e-6, atol=0
    )


def test_unborn_classes_get_no_gradient() -> None:
    h = head(4)
    rng = np.random.default_rng(1)
    features = torch.from_numpy(rng.normal(size=(9, DIM))).float().requires_grad_()
    p = torch.nn.functional.pad(torch.from_numpy(rng.dirichlet(np.ones(4), size=9)).float(), (0, CLASSES - 4))
    logits = h(features)
    logits.retain_grad()
    soft_cross_entropy(logits, p).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert h.weight.grad is not None
    assert h.bias.grad is not None
    for gradient in (logits.grad.T, h.weight.grad, h.bias.grad):
        assert torch.equal(gradient[4:], torch.zeros_like(gradient[4:]))
        assert bool((gradient[:4] != 0).any(dim=-1).all())


def test_unborn_rows_stay_zero_through_training_with_weight_decay(live: Live) -> None:
    learner = live.learner(train__weight_decay=0.5, train__steps_per_epoch=4)
    steps = live.steps(learner, 0)
    weight, bias = learner.network.head.weight, learner.network.head.bias
    next(steps)
    born = weight[:4].clone()
    for _ in steps:
        assert torch.equal(weight[4:], torch.zeros_like(weight[4:]))
        assert torch.equal(bias[4:], torch.zeros_like(bias[4:]))
    assert bool((weight[:4] != born).any(dim=1).all())
    assert learner.network.head.born.tolist() == [True] * 4 + [False] * 6


@pytest.mark.parametrize("momentum", ["fresh", "carried"])
def test_a_row_depends_on_seed_and_class_only(live: Live, momentum: str) -> None:
    """Not on method, tasks, training before, or the global generator."""
    expected = head(CLASSES, seed=3)
    torch.manual_seed(12345)
    assert torch.equal(head(CLASSES, seed=3).weight, expected.weight)
    bound = DIM**-0.5
    assert float(expected.weight.detach().abs().max()) <= bound
    assert float(expected.weight.detach().abs().max()) > 0.9 * bound
    assert len({tuple(row) for row in expected.weight.tolist()}) == CLASSES

    first = live.learner(learnt=1, train__momentum_buffers=momentum)
    first._begin_task(live.task(first, 1))  # classes 4 to 6 are born, after training
    other = live.learner("proden", stream__tasks=1)
    other._begin_task(live.task(other, 0))  # all ten are born at once, before any
    assert first.network.head.born.tolist() == [True] * 7 + [False] * 3
    assert torch.equal(first.network.head.weight[4:7], other.network.head.weight[4:7])
    assert torch.equal(first.network.head.bias[4:7], other.network.head.bias[4:7])
    assert not torch.equal(first.network.head.weight[:4], other.network.head.weight[:4])  # trained
    another = live.learner("proden", stream__tasks=1, seed=1)
    another._begin_task(live.task(another, 0))
    assert not bool((another.network.head.weight == other.network.head.weight).any())


def test_rows_may_start_at_zero(live: Live) -> None:
    learner = live.begun(model__new_rows="zero")
    weight = learner.network.head.weight
    assert torch.equal(weight[4:], torch.zeros_like(weight[4:]))
    assert bool((weight[:4] != 0).any())
    assert learner.network.head.born.tolist() == [True] * 7 + [False] * 3
