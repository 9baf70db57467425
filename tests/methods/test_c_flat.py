"""C-Flat: its gradient in closed form, and what four passes over a batch must not do more than once."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ipll.component import Batch, Context, Phase
from ipll.families.update import Descent
from ipll.families.update.c_flat import CFlat, CFlatSettings
from ipll.families.update.sgd import Sgd
from ipll.learner import Learner
from ipll.networks.network import Network, Output
from ipll.step import Stepper
from live import Live, array, snapshot, unchanged

RHO, STRENGTH, LR = 0.2, 0.2, 0.1
SHAPES = [(3, 2), (4,), (1,)]


class Quadratic:
    """L(w) = w' A w / 2 + b' w in eleven weights, which lie in three tensors."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(11, 11))
        self.a, self.b = root @ root.T / 11, rng.normal(size=11)
        self.start = rng.normal(size=11)
        self.calls = 0
        parts = np.split(self.start.copy(), [6, 10])
        self.weights = [
            nn.Parameter(torch.from_numpy(part).view(shape)) for part, shape in zip(parts, SHAPES, strict=True)
        ]

    def w(self) -> Tensor:
        return torch.cat([weight.flatten() for weight in self.weights])

    def loss(self) -> Tensor:
        self.calls += 1
        w = self.w()
        return w @ torch.from_numpy(self.a) @ w / 2 + torch.from_numpy(self.b) @ w

    def gradient(self, rho: float, strength: float) -> np.ndarray:
        """g1 + lambda (g3 - g2). The Hessian is A, so g3 - g2 = rho A g2 / |g2|, and v = g1 - g0 = rho A g0 / |g0|."""
        a, w = self.a, self.start
        g0 = a @ w + self.b
        v = rho * a @ g0 / np.linalg.norm(g0)
        g1 = g0 + v
        g2 = a @ (w + rho * v / np.linalg.norm(v)) + self.b
        return g1 + strength * rho * a @ g2 / np.linalg.norm(g2)


def update(kind: type[Sgd], problem: Quadratic, *, old: int, settings: Any, **optimiser: float) -> Tensor:
    """One step on the quadratic. -> the loss that was returned."""
    rule = kind(settings)
    rule.build(Context(0, 4, torch.device("cpu")))
    rule.ctx.old = old
    rule.ctx.phase = cast(Phase, SimpleNamespace(network=nn.Identity()))
    rule.begin_phase(problem.weights, **{"momentum": 0.0, "weight_decay": 0.0} | optimiser)
    rule.descent.set_lr(LR)
    return rule.step(problem.loss)


@pytest.mark.parametrize(("rho", "strength"), [(RHO, STRENGTH), (0.05, 1.0), (1.0, 0.5), (0.2, 0.0)])
def test_the_gradient_on_a_quadratic(rho: float, strength: float) -> None:
    for seed in range(3):
        problem = Quadratic(seed)
        first = problem.loss().item()
        value = update(CFlat, problem, old=2, settings=CFlatSettings(rho=rho, strength=strength))
        expected = problem.gradient(rho, strength)
        np.testing.assert_allclose(array(problem.w()), problem.start - LR * expected, rtol=1e-9)
        np.testing.assert_allclose(np.concatenate([array(w.grad).ravel() for w in problem.weights]), expected)
        assert float(value) == first
        assert problem.calls == 5  # one of them ours


def test_weight_decay_and_momentum_are_those_of_the_weights_themselves() -> None:
    problem = Quadratic(0)
    update(CFlat, problem, old=2, settings=CFlatSettings(), momentum=0.9, weight_decay=0.01)
    expected = problem.gradient(RHO, STRENGTH) + 0.01 * problem.start
    np.testing.assert_allclose(array(problem.w()), problem.start - LR * expected, rtol=1e-9)


def test_the_first_task_is_plain_sgd() -> None:
    flat, plain = Quadratic(0), Quadratic(0)
    update(CFlat, flat, old=0, settings=CFlatSettings())
    update(Sgd, plain, old=0, settings=None)
    assert torch.equal(flat.w(), plain.w())
    assert flat.calls == plain.calls == 1


def test_a_weight_that_the_loss_does_not_use_stays() -> None:
    problem = Quadratic(0)
    idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    problem.weights.append(idle)
    problem.w = lambda: torch.cat([w.flatten() for w in problem.weights[:3]])  # type: ignore[method-assign]
    update(CFlat, problem, old=2, settings=CFlatSettings())
    assert torch.equal(idle, torch.ones_like(idle))
    np.testing.assert_allclose(array(problem.w()), problem.start - LR * problem.gradient(RHO, STRENGTH), rtol=1e-9)


class Passes:
    """Watches a learner, and remembers what its last step did."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.calls: Counter[str] = Counter()
        self.weights: list[list[Tensor]] = []  # at each pass
        self.targets: list[Tensor] = []  # that each pass learnt from
        self.stepped: list[Tensor] = []  # the weights as the descent found them
        self.network: Network  # as it was before the step
        self.batch: Batch
        for name, watch in (("step", self.step), ("forward", self.forward), ("total", self.total)):
            setattr(learner.stepper, name, watch)
        for number, part in enumerate(learner.ctx.parts):
            for hook in ("before", "after", "targets"):
                setattr(part, hook, self.counted(f"{hook} of {number}", getattr(part, hook)))

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            self.calls[name] += 1
            return call(*arguments)

        return counting

    def step(self, phase: Phase, batch: Batch) -> None:
        self.calls.clear()
        self.weights, self.targets, self.batch = [], [], batch
        self.network = copy.deepcopy(phase.network)
        descent = self.learner.update.descent

        def taken() -> None:
            self.stepped = copies(phase.network)
            Descent.step(descent)

        descent.step = taken  # type: ignore[method-assign]
        Stepper.step(self.learner.stepper, phase, batch)

    def forward(self, phase: Phase, batch: Batch) -> dict[str, Output]:
        self.weights.append(copies(phase.network))
        return Stepper.forward(self.learner.stepper, phase, batch)

    def total(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> tuple[Tensor, dict[str, Tensor]]:
        assert batch.targets is not None
        self.targets.append(batch.targets.clone())
        return Stepper.total(self.learner.stepper, phase, batch, out)


def copies(network: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in network.parameters()]


def gap(a: list[Tensor], b: list[Tensor]) -> float:
    """The distance between two sets of weights, over all tensors together."""
    return float(sum((x - y).double().square().sum() for x, y in zip(a, b, strict=True)) ** 0.5)


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("proden+c-flat", {}),
    ("pico+c-flat", {}),
    ("papi+c-flat", {}),
    ("pgdr", {"update__kind": "c-flat"}),
]


@pytest.mark.parametrize(("method", "settings"), METHODS)
def test_four_passes_and_everything_else_once(live: Live, method: str, settings: dict[str, Any]) -> None:
    learner = live.learner(method, learnt=1, **settings)
    passes = Passes(learner)
    hooks = {f"{hook} of {n}" for n in range(len(learner.ctx.parts)) for hook in ("before", "after", "targets")}
    steps = 0
    for position in learner.fit(live.task(learner, 1)):
        if not position.step:
            continue
        steps += 1
        batch, start = passes.batch, copies(passes.network)
        # g1 and g2 are taken rho away from where the step began, g3 another rho away from g2.
        g0, g1, g2, g3 = passes.weights
        assert gap(g0, start) == 0
        assert gap(g1, start) == pytest.approx(RHO, rel=1e-3)
        assert gap(g2, start) == pytest.approx(RHO, rel=1e-3)
        assert gap(g3, g2) == pytest.approx(RHO, rel=1e-3)
        assert gap(passes.stepped, start) == 0  # put back to the bit
        assert gap(copies(learner.network), start) > 0

        assert len(passes.targets) == 4
        assert all(torch.equal(targets, passes.targets[0]) for targets in passes.targets)
        assert passes.calls == dict.fromkeys(hooks, 1)
        assert batch.store is not None
        assert torch.equal(learner.ctx.pool.p[batch.rows], batch.store)

        # Batch norm's statistics are those after one pass, with the weights as they were.
        start_statistics = {name: buffer.clone() for name, buffer in passes.network.named_buffers()}
        with torch.no_grad():
            Stepper.forward(learner.stepper, Phase("main", passes.network, learner.ctx.parts, batch.p), batch)
        statistics = dict(learner.network.named_buffers())
        for name, expected in passes.network.named_buffers():
            if "running" in name:
                assert torch.equal(statistics[name], expected), name
                assert not torch.equal(expected, start_statistics[name]), name
    assert steps == 4


def test_the_first_task_is_learnt_as_by_sgd(live: Live) -> None:
    flat, plain = live.learner("proden+c-flat"), live.learner("proden+wa")
    passes = Passes(flat)
    for _ in flat.fit(live.task(flat, 0)):
        assert len(passes.weights) == 1
    for _ in plain.fit(live.task(plain, 0)):
        pass
    assert unchanged(snapshot(plain.network), flat.network)
    for learner in (flat, plain):
        for _ in learner.fit(live.task(learner, 1)):
            pass
    assert not unchanged(snapshot(plain.network), flat.network)
