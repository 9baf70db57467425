"""The contract can fail: parts that break one promise each, and training loops that drop a hook, are caught."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ipll.learner
from ipll.classifier.members import ExemplarMeans, LinearClassifier, PrototypeClassifier
from ipll.component import FAMILIES, Batch, Component, Context
from ipll.data.sources import load_source
from ipll.disambiguation.base import Disambiguation
from ipll.disambiguation.proden import Proden
from ipll.memory.base import Memory, NoMemory
from ipll.memory.by_class import RandomMemory
from ipll.models.network import Output
from ipll.prototypes import Prototypes
from ipll.testing import check_method

SHORT = {"train.steps_per_epoch": 10}
Pair = tuple[Tensor, Tensor]


# Parts that break a promise


class OneTooMany(RandomMemory):
    def select(self) -> Tensor:
        rows = super().select()
        left = torch.ones(len(self.ctx.pool), dtype=torch.bool)
        left[rows] = False
        return torch.cat([rows, left.nonzero()[:1, 0]])


class Twice(RandomMemory):
    def select(self) -> Tensor:
        rows = super().select()
        return torch.cat([rows[:-1], rows[:1]])


class OtherIds(RandomMemory):
    def end_task(self) -> None:
        super().end_task()
        self.ids = self.ids.flip(0)


class WiderSets(RandomMemory):
    def end_task(self) -> None:
        super().end_task()
        self.candidates = self.candidates | self.ctx.old_mask | self.ctx.new_mask


class Secret(NoMemory):
    """Says that it is no memory, and keeps samples all the same."""

    def select(self) -> Tensor:
        return torch.arange(10)

    def end_task(self) -> None:
        Memory.end_task(self)


class GlobalDice(RandomMemory):
    def choose(self, features: Tensor, c: int, quota: int) -> Tensor:
        return torch.randperm(len(features))[:quota]


class AnyClass(Proden):
    """Ignores the candidate sets."""

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Pair:
        return p, out["weak"].logits.softmax(dim=1)


class Unscaled(Proden):
    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Pair:
        use, store = super().targets(p, out, batch)
        return use, 0.9 * store


class Counting(Proden):
    """Has state that is neither a parameter nor a buffer."""

    steps = 0

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Pair:
        use, store = super().targets(p, out, batch)
        return use, torch.lerp(p, store, min(self.steps / 10, 1))

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        self.steps += 1


class Peeking(Proden):
    """Reads the truth."""

    def first_sets(self) -> Tensor:
        candidates, pool = super().first_sets(), self.ctx.pool
        labels = torch.from_numpy(load_source("digits").train_labels)[pool.ids[: pool.incoming]]
        told = candidates & F.one_hot(labels, self.ctx.capacity).bool()
        return torch.where(told.any(dim=1, keepdim=True), told, candidates)


class LooseMeans(PrototypeClassifier):
    """What it learnt is no buffer: a restored learner has lost it."""

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.means = torch.zeros(ctx.capacity, ctx.network.dim)

    def end_task(self) -> None:
        self.means = self.ctx.prototypes.mu.clone()

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        return -torch.cdist(features, self.means).masked_fill(~self.ctx.prototypes.known, torch.inf)


class Backwards(LinearClassifier):
    """Masks the classes that are not born the wrong way."""

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        return logits.masked_fill(~self.ctx.network.head.born, torch.inf)


class Spilling(Component):
    """Writes to the rows of classes to come."""

    def end_task(self) -> None:
        self.ctx.network.head.bias.add_(1e-6)


MUTANTS: list[tuple[str, type[Component], str]] = [
    ("memory", OneTooMany, r"memory: task 1 keeps 51 samples, more than m = 50"),
    ("memory", Twice, r"memory: task 1 keeps a sample twice"),
    ("memory", OtherIds, r"memory: task 1 keeps samples that are not those of their ids"),
    ("memory", WiderSets, r"sets: the memory's candidate sets are not the original ones"),
    ("memory", Secret, r"memory: task 1 keeps 10 samples, more than m = 0"),
    ("memory", GlobalDice, r"deterministic: trained twice"),
    ("disambiguation", AnyClass, r"targets: task 1: .* outside the candidate sets"),
    ("disambiguation", Unscaled, r"targets: task 1: .* do not sum to 1"),
    ("disambiguation", Counting, r"resumes: stopped at task 1 .*differs"),
    ("disambiguation", Peeking, r"blind: with scrambled labels"),
    ("classifier", LooseMeans, r"resumes: restored after task 1, it predicts otherwise"),
    ("classifier", Backwards, r"seen: task 1 predicts class \d"),
    ("retention", Spilling, r"unborn: task 2 changes rows"),
]


@pytest.mark.parametrize(("family", "mutant", "message"), MUTANTS, ids=[mutant.__name__ for _, mutant, _ in MUTANTS])
def test_broken_promise(family: str, mutant: type[Component], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES[family].members, "mutant", mutant)
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_method("pgdr", **SHORT, **{f"{family}.kind": "mutant"})


def test_no_step_to_speak_of() -> None:
    with pytest.raises(AssertionError, match=r"^learns: after task 1, accuracy among its classes is"):
        check_method("proden", **{"train.lr": 1e-8})


def test_the_unbroken_method_passes() -> None:
    """What the mutants above are changed from."""
    check_method("pgdr", **SHORT)
    check_method("pgdr", **SHORT, **{"memory.kind": "random"})
    check_method("pgdr", **SHORT, **{"disambiguation.kind": "proden"})


# Parts without one of their hooks


@pytest.mark.parametrize(
    ("part", "hook", "method", "message"),
    [
        (Prototypes, "end_task", "pgdr", r"learns: after task 1"),
        (ExemplarMeans, "end_task", "proden+icarl", r"learns: after task 1"),
        (Memory, "end_task", "pgdr", r"memory: task 1 keeps no sample"),
        (Disambiguation, "begin_task", "pgdr", r"targets: task 1: .* do not sum to 1"),
    ],
)
def test_part_without_a_hook(
    part: type[Component], hook: str, method: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, hook, getattr(Component, hook))
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_method(method, **SHORT)


# Training loops that do not call a hook


@pytest.mark.parametrize(
    ("call", "nothing", "method", "message"),
    [
        ("part.hold_out()", "None", "proden+bic", r"hooks: Bic\.hold_out is never called"),
        ("part.phases()", "()", "proden+ancl", r"hooks: Ancl\.phases is never called"),
        ("part.begin_task()", "pass", "pgdr", r"targets: task 1"),
        ("part.begin_epoch()", "pass", "pgdr", r"hooks: Pgdr\.begin_epoch is never called"),
        ("part.end_epoch()", "pass", "pgdr", r"hooks: Prototypes\.end_epoch is never called"),
        ("part.end_task()", "pass", "pgdr", r"memory: task 1 keeps no sample"),
        ("part.limit(limited.candidates, batch)", "batch.candidates", "proden+er-ace", r"hooks: ErAce\.limit is never"),
        (
            "out, targets = part.reshape(out, targets, batch)",
            "pass",
            "proden+er-ace",
            r"hooks: ErAce\.reshape is never",
        ),
        ("part.weights().items()", "()", "pgdr", r"hooks: \w+\.weights is never called"),
        ("part.after(first, batch)", "pass", "pico", r"hooks: Pico\.after is never called"),
    ],
)
def test_loop_without_a_hook(
    call: str, nothing: str, method: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(ipll.learner.__file__).read_text()
    assert source.count(call) == 1
    monkeypatch.setattr("ipll.testing.Learner", _compiled(source.replace(call, nothing)).Learner)
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_method(method)


def _compiled(source: str) -> Any:
    module = ModuleType("mutant_of_the_learner")
    exec(compile(source, "mutant of learner.py", "exec"), vars(module))
    return module
