"""Growth: a learner that gets room for more classes in mid-life is the same learner."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ipll.config import Config, resolve
from ipll.data.sources import load_source
from ipll.data.stream import Task
from ipll.grow import grow
from ipll.learner import Learner
from ipll.method import method_table
from live import Live

SMALL, LARGE = 10, 20


@pytest.fixture(scope="module")
def live() -> Live:
    return Live(load_source("digits"))


def build(live: Live, config: Config, classes: int) -> Learner:
    return Learner(config, channels=1, classes=classes, mean=live.source.mean, std=live.source.std)


def copied(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.tensors(within=False).items()}


def grown(live: Live, learner: Learner, task: Task, capacity: int = LARGE) -> Learner:
    """-> a learner of the larger capacity, with this one's state."""
    larger = build(live, learner.config, capacity)
    larger.restore(grow(copied(learner), learner.config, 1, SMALL, capacity), task, within=False)
    return larger


def fit(learner: Learner, task: Task) -> None:
    for _ in learner.fit(task):
        pass


@pytest.mark.parametrize("method", sorted(method_table()))
def test_every_method_grows(live: Live, method: str) -> None:
    """It predicts as before, and its state fills that of a learner which was built large."""
    learner = live.learner(method, learnt=1)
    larger = grown(live, learner, live.task(learner, 1))
    samples = torch.from_numpy(live.source.test_samples[:100])
    for one, other in zip(learner.predict(samples), larger.predict(samples), strict=True):
        assert torch.equal(one, other)
    for name, tensor in learner.network.state_dict().items():
        assert torch.equal(larger.network.state_dict()[name][tuple(map(slice, tensor.shape))], tensor), name


@pytest.mark.parametrize("method", ["pgdr", "pico+wa", "papi+bic", "terial+ancl", "proden+er-ace", "pico+icarl"])
@pytest.mark.parametrize("arriving", [False, True])
def test_training_goes_on_as_before(live: Live, method: str, arriving: bool) -> None:
    """Whether or not new classes come: the room that they leave changes nothing.

    Rows of another length may be summed in another order. It is the same one for whole vectors of the usual CPUs, hence
    these capacities; elsewhere it holds to rounding.
    """
    config = live.learner(method).config
    small, larger = (build(live, config, capacity) for capacity in (32, 64))
    first, task = live.task(small, 0), live.task(small, 1)
    if not arriving:
        task = replace(first, index=1, ids=first.ids + 10_000, old=first.seen)
    fit(small, first)
    larger.restore(grow(copied(small), config, 1, 32, 64), task, within=False)
    before = copied(small)
    fit(small, task)
    fit(larger, task)
    after, other = copied(small), copied(larger)
    for name in (name for name in after if name.startswith("module.network.") and after[name].is_floating_point()):
        own = tuple(map(slice, after[name].shape))
        moved = float((after[name] - before[name]).norm())
        assert float((after[name] - other[name][own]).norm()) <= 0.02 * moved, name
    samples = torch.from_numpy(live.source.test_samples)
    agreed = small.predict(samples).classes == larger.predict(samples).classes
    assert agreed.float().mean() > 0.99


def test_a_grown_learner_learns_classes_that_had_no_room(live: Live) -> None:
    """Tasks 1 and 2 have seven classes: a head of seven is full, and the third task needs ten."""
    config = live.learner().config
    full = build(live, config, 7)
    for t in (0, 1):
        fit(full, live.task(full, t))
    task = live.task(full, 2)
    larger = build(live, config, 14)
    larger.restore(grow(copied(full), config, 1, 7, 14), task, within=False)
    fit(larger, task)
    assert larger.network.head.born.tolist() == [True] * 10 + [False] * 4
    assert not larger.network.head.weight[10:].any()
    predicted = larger.predict(torch.from_numpy(live.source.test_samples)).classes
    assert (predicted >= 7).any()
    assert (predicted < 7).any()


def test_carried_momenta_grow(live: Live) -> None:
    learner = live.learner(learnt=1, train__momentum_buffers="carried")
    task = live.task(learner, 1)
    larger = grown(live, learner, task)
    assert {i: m.shape for i, m in larger._carried.items()} == {
        i: w.shape for i, w in enumerate(larger.network.parameters())
    }
    fit(larger, task)


def test_a_checkpoint_between_tasks_is_enough(live: Live) -> None:
    """`within=False` leaves out the pool, which can be far larger than the rest; the next task is the same."""
    learner = live.learner(learnt=1)
    assert not any(name.startswith(("pool.", "momentum.", "sum.")) for name in learner.tensors(within=False))
    task = live.task(learner, 1)
    fresh = build(live, learner.config, SMALL)
    fresh.restore(copied(learner), task, within=False)
    fit(learner, task)
    fit(fresh, task)
    for name, tensor in learner.tensors().items():
        assert torch.equal(tensor, fresh.tensors()[name]), name


def test_settings_of_a_gpu_do_not_matter() -> None:
    """States are grown on the CPU, whatever the model is trained on."""
    overrides = {"train.graphs": "on", "train.precision": "bf16", "train.compile": "on"}
    config = resolve("digits", overrides=overrides)
    plain = resolve("digits", overrides={"train.compile": "off"})
    source = load_source("digits")
    learner = Learner(plain, channels=1, classes=2, mean=source.mean, std=source.std)
    assert grow(copied(learner), config, 1, 2, 4)["module.network.head.weight"].shape[0] == 4
