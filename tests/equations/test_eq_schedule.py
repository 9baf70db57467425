"""The optimiser: cosine learning rate, anew in every task, and SGD with momentum."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from ipll.config import TrainConfig, parse_overrides, resolve
from ipll.errors import ConfigError
from ipll.learner import Learner
from live import Live, array


def rate(learner: Learner) -> float:
    return float(learner.update.descent.lr)


@pytest.mark.parametrize(("schedule", "epochs"), [("cosine", 4), ("cosine", 1), ("constant", 3)])
def test_the_learning_rate_falls_to_0_over_each_tasks_epochs(live: Live, schedule: str, epochs: int) -> None:
    learner = live.learner(train__schedule=schedule, train__epochs=epochs, train__lr=0.02, train__steps_per_epoch=2)
    for t in range(2):
        rates = [(step.epoch, rate(learner)) for step in live.steps(learner, t)]
        expected = [reference.cosine_lr(e, epochs, 0.02) if schedule == "cosine" else 0.02 for e in range(epochs)]
        assert [epoch for epoch, _ in rates] == [e for e in range(epochs) for _ in range(2)]
        np.testing.assert_allclose([lr for _, lr in rates], np.repeat(expected, 2), rtol=1e-12)
    assert reference.cosine_lr(epochs, epochs, 0.02) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_later_tasks_have_epochs_of_their_own_over_which_the_learning_rate_falls(live: Live, schedule: str) -> None:
    settings = {"train__schedule": schedule, "train__epochs": 4, "train__later_epochs": 3}
    learner = live.learner(train__lr=0.02, **settings)
    for t, (epochs, start) in enumerate([(4, 0.02), (3, 0.02), (3, 0.02)]):
        rates = [(step.epoch, rate(learner)) for step in live.steps(learner, t)]
        expected = [reference.cosine_lr(e, epochs, start) if schedule == "cosine" else start for e in range(epochs)]
        assert [epoch for epoch, _ in rates] == [e for e in range(epochs) for _ in range(2)]
        np.testing.assert_allclose([lr for _, lr in rates], np.repeat(expected, 2), rtol=1e-12)


def test_epochs_and_learning_rate_of_a_task() -> None:
    as_first = TrainConfig(epochs=8, lr=0.4)
    assert [as_first.epochs_of(t) for t in range(3)] == [8, 8, 8]
    assert [as_first.lr_at(t, 4) for t in (0, 1)] == pytest.approx([0.2, 0.2])
    own = TrainConfig(epochs=8, lr=0.4, later_epochs=2)
    assert [own.epochs_of(t) for t in range(3)] == [8, 2, 2]
    assert [own.lr_at(0, 4), own.lr_at(1, 0), own.lr_at(2, 1)] == pytest.approx([0.2, 0.4, 0.2])
    assert TrainConfig(schedule="constant", lr=0.4, later_epochs=2).lr_at(1, 1) == 0.4


def test_settings_of_later_tasks() -> None:
    """Taken from presets and the command line like others; 0 is 'as in the first task', less is refused."""
    train = resolve("cifar100-fast").train
    assert 0 < train.later_epochs < train.epochs
    train = resolve("cifar100-fast", overrides=parse_overrides(["train.later_epochs=5"])).train
    assert [train.epochs_of(t) for t in range(3)] == [train.epochs, 5, 5]
    with pytest.raises(ConfigError, match=r"train\.later_epochs must not be negative"):
        resolve("digits", overrides={"train.later_epochs": -1})


def test_each_step_has_a_gradient_of_its_own(live: Live) -> None:
    """Of the batch at hand, whatever the steps before; PRODEN alone, where Eq. 1 is the whole loss."""
    learner = live.learner("proden", train__steps_per_epoch=3)
    weight = learner.network.head.weight
    for step in live.steps(learner, 0):
        assert step.batch.targets is not None
        assert weight.grad is not None
        features, seen = array(step.out["weak"].features), learner.ctx.seen
        expected = reference.head_gradient(array(step.batch.targets), step.logits("weak"), features, seen)
        np.testing.assert_allclose(weight.grad[:seen].numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("buffers", ["fresh", "carried"])
def test_steps_of_sgd(live: Live, buffers: str) -> None:
    """Every parameter, over two tasks: velocities start anew in a task, or go on from the last."""
    learner = live.learner(train__momentum_buffers=buffers, train__weight_decay=0.01, train__epochs=2)
    weights = list(learner.network.parameters())
    velocities: list[np.ndarray | None] = [None] * len(weights)
    for t in range(2):
        if buffers == "fresh":
            velocities = [None] * len(weights)
        for step in live.steps(learner, t):
            lr = reference.cosine_lr(step.epoch, 2, learner.config.train.lr)
            for i, (before, weight) in enumerate(zip(step.network.parameters(), weights, strict=True)):
                assert weight.grad is not None
                expected, velocities[i] = reference.sgd(
                    array(before), array(weight.grad), velocities[i], lr=lr, momentum=0.9, decay=0.01
                )
                np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-4, atol=1e-6)
        assert len(learner.update.descent.momenta()) == len(weights)


@pytest.mark.parametrize("buffers", ["fresh", "carried"])
def test_velocities_between_tasks_survive_a_resume_only_if_they_are_carried(live: Live, buffers: str) -> None:
    finished = live.learner(learnt=1, train__momentum_buffers=buffers)
    resumed = live.learner(train__momentum_buffers=buffers)
    resumed.restore(finished.tensors(), live.task(finished, 1), within=False)
    step = next(live.steps(resumed, 1))
    carried = finished.update.descent.momenta()
    decay = finished.config.train.weight_decay
    velocities = resumed.update.descent.momenta()
    for i, (before, weight) in enumerate(zip(step.network.parameters(), resumed.network.parameters(), strict=True)):
        assert weight.grad is not None
        earlier = array(carried[i]) if buffers == "carried" else None
        _, expected = reference.sgd(array(before), array(weight.grad), earlier, lr=0, momentum=0.9, decay=decay)
        np.testing.assert_allclose(velocities[i].numpy(), expected, rtol=1e-4, atol=1e-6)
