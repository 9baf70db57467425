"""Live learners on the digits: small, really trained, and cheap enough to be had anew by every test."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ipll.component import Batch, Context, Phase
from ipll.config import resolve
from ipll.data.source import Source
from ipll.data.stream import Stream, Task
from ipll.engine.state import part_of
from ipll.learner import Learner, Position
from ipll.networks.network import Network, Output
from ipll.pool import Pool
from ipll.prototypes import Prototypes, PrototypeSettings

T = TypeVar("T")

# Three tasks of 4, 3 and 3 classes; blurry and ambiguous enough that every case occurs in a few hundred samples.
SMALL = {
    "stream.tasks": 3,
    "stream.blurry": 30,
    "stream.q": 0.3,
    "train.epochs": 2,
    "train.batch_size": 32,
    "train.steps_per_epoch": 2,
    "memory.size": 60,
    "memory.neighbours": 4,
}


@dataclass
class Step:
    """What one step of training went through."""

    batch: Batch
    out: dict[str, Output]
    epoch: int
    p: Tensor  # [b, capacity], the soft targets before the step
    total: Tensor
    network: Network  # with the weights from before the step

    def logits(self, view: str) -> np.ndarray:
        return array(self.out[view].logits)


class Live:
    """Makes learners. Tasks already learnt are kept, so that tests share the training they start from."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._kept: dict[tuple[object, ...], Learner] = {}

    def learner(self, method: str = "pgdr", *, learnt: int = 0, seed: int = 0, **settings: Any) -> Learner:
        """-> a learner that has learnt so many tasks. Settings are written as train__epochs=3."""
        key = (method, learnt, seed, *sorted(settings.items()))
        if key not in self._kept:
            if learnt:
                learner = self.learner(method, learnt=learnt - 1, seed=seed, **settings)
                for _ in learner.fit(self.task(learner, learnt - 1)):
                    pass
            else:
                overrides = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
                if not any(p.kind == "representative-diverse" for p in resolve("digits", method).parts):
                    del overrides["memory.neighbours"]
                config = resolve("digits", method, seed=seed, overrides=overrides)
                learner = Learner(config, channels=1, classes=10, mean=self.source.mean, std=self.source.std)
            self._kept[key] = learner
        return copy.deepcopy(self._kept[key])

    def task(self, learner: Learner, t: int) -> Task:
        stream = Stream.build(self.source, learner.config.stream, learner.config.seed)
        return stream.make_task(t, self.source.train_samples)

    def begun(self, method: str = "pgdr", *, learnt: int = 1, seed: int = 0, **settings: Any) -> Learner:
        """-> a learner at the start of its next task: separated and with first targets, but no step made."""
        learner = self.learner(method, learnt=learnt, seed=seed, **settings)
        learner._begin_task(self.task(learner, learnt))
        return learner

    def steps(self, learner: Learner, t: int, start: Position | None = None) -> Iterator[Step]:
        """Learns task `t`, and yields what each step went through, right after it; `start` if the task has begun."""
        record: list[Step] = []
        total_of = learner.stepper.total

        def recording(phase: Phase, batch: Batch, out: dict[str, Output]) -> tuple[Tensor, dict[str, Tensor]]:
            total, terms = total_of(phase, batch, out)
            network = copy.deepcopy(phase.network)
            record.append(Step(batch, dict(out), learner.ctx.epoch, batch.p.clone(), total.detach(), network))
            return total, terms

        learner.stepper.total = recording  # type: ignore[method-assign]
        for position in learner.fit(self.task(learner, t), start):
            if position.step:
                yield record[-1]


def bare_context(*, classes: int, dim: int, old: int, seen: int, gamma: float = 0.5) -> Context:
    """-> a context with empty prototypes and no network, for parts that are given features outright."""
    ctx = Context(0, classes, torch.device("cpu"))
    ctx.network = cast(Network, SimpleNamespace(dim=dim))
    ctx.pool = cast(Pool, SimpleNamespace(odds=None))
    ctx.old, ctx.seen = old, seen
    ctx.old_mask[:old] = True
    ctx.new_mask[old:seen] = True
    ctx.prototypes = Prototypes(PrototypeSettings(gamma=gamma))
    ctx.prototypes.build(ctx)
    return ctx


def known_prototypes(prototypes: Prototypes) -> dict[int, np.ndarray]:
    """-> class -> mu_c, as the references take them."""
    return {c: array(prototypes.mu[c]) for c in prototypes.known.nonzero()[:, 0].tolist()}


def array(tensor: Tensor) -> np.ndarray:
    """-> float64, as the references take it."""
    return tensor.detach().double().numpy()


def as_sets(mask: Tensor) -> list[set[int]]:
    """[n, classes] bool -> the classes of each row."""
    return [set(row.nonzero()[:, 0].tolist()) for row in mask]


def random_sets(rng: np.random.Generator, n: int, classes: int, q: float = 0.3) -> Tensor:
    """[n, classes] bool, no row empty."""
    mask = rng.random((n, classes)) < q
    mask[np.arange(n), rng.integers(classes, size=n)] = True
    return torch.from_numpy(mask)


def batch_of(learner: Learner, rows: Tensor) -> Batch:
    """-> a batch of these rows of the pool, with both views, as the loader would make it for the main phase."""
    pool, views = learner.ctx.pool, learner.ctx.views
    generator = torch.Generator().manual_seed(0)
    samples = pool.samples[rows]
    return Batch(
        rows=rows,
        candidates=pool.candidates[rows],
        p=pool.p[rows],
        from_memory=rows >= pool.incoming,
        views={"weak": views.weak(samples, generator), "strong": views.strong(samples, generator)},
    )


def part(learner: Learner, kind: type[T]) -> T:
    """-> the learner's one part of a kind."""
    found = part_of(learner.ctx.parts, kind)
    assert found is not None
    return found


def snapshot(*modules: nn.Module) -> list[Tensor]:
    """-> copies of all parameters and buffers."""
    return [tensor.clone() for module in modules for tensor in module.state_dict().values()]


def unchanged(before: list[Tensor], *modules: nn.Module) -> bool:
    """Are all parameters and buffers as in an earlier snapshot, bit for bit?"""
    return all(torch.equal(a, b) for a, b in zip(before, snapshot(*modules), strict=True))
