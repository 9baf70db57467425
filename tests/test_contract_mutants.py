"""The contract can fail: parts that break one promise each, and training loops that drop a hook, are caught."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

import ipll.learner
import ipll.step
from ipll.component import FAMILIES, Batch, Component, Context
from ipll.data.sources import load_source
from ipll.data.sources.digits import SCALE
from ipll.errors import RunError
from ipll.families.classifier import LinearClassifier
from ipll.families.classifier.exemplar_means import ExemplarMeans
from ipll.families.classifier.prototypes import PrototypeClassifier
from ipll.families.disambiguation import Disambiguation
from ipll.families.disambiguation.proden import Proden
from ipll.families.memory import Memory, NoMemory
from ipll.families.memory.by_class import RandomMemory
from ipll.networks.network import Output
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

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.steps = torch.zeros(())

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Pair:
        use, store = super().targets(p, out, batch)
        return use, torch.lerp(p, store, (self.steps / 10).clamp(max=1))

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        self.steps.add_(1)


class ByEpoch(Proden):
    """Waits for the second epoch, and tells nobody."""

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Pair:
        use, store = super().targets(p, out, batch)
        return use, store if self.ctx.epoch else p


class ByNumber(Proden):
    """Its schedule is no tensor."""

    def begin_epoch(self) -> None:
        self.share = (1 + self.ctx.epoch) / self.ctx.epochs

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Pair:
        use, store = super().targets(p, out, batch)
        return use, torch.lerp(p, store, self.share)


class ByStage(ByEpoch):
    """As it should be."""

    def stage(self) -> bool:
        return self.ctx.epoch > 0


class Peeking(Proden):
    """Reads the truth."""

    def first_sets(self) -> Tensor:
        candidates, pool = super().first_sets(), self.ctx.pool
        told = candidates & F.one_hot(self.truth(pool.ids[: pool.incoming]), self.ctx.capacity).bool()
        return torch.where(told.any(dim=1, keepdim=True), told, candidates)

    def truth(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(load_source("digits").train_labels)[ids]


class PeekingElsewhere(Peeking):
    """Reads the truth where the data set comes from."""

    def truth(self, ids: Tensor) -> Tensor:
        grey, labels = load_digits(return_X_y=True)
        known = dict(zip(map(bytes, (grey * SCALE).astype(np.uint8)), labels, strict=True))
        return torch.tensor([known[bytes(sample)] for sample in self.ctx.pool.samples[: len(ids)].numpy()])


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
    ("disambiguation", ByEpoch, r"replays: .*stage\(\)"),
    ("disambiguation", ByNumber, r"replays: .*buffers"),
    ("disambiguation", Peeking, r"blind: with scrambled labels"),
    ("disambiguation", PeekingElsewhere, r"blind: with scrambled labels"),
    ("classifier", LooseMeans, r"resumes: restored after task 1, it predicts otherwise"),
    ("classifier", Backwards, r"seen: task 1 predicts class \d"),
    ("retention", Spilling, r"unborn: task 2 changes rows"),
]


ALIKE = (ByNumber, PeekingElsewhere)  # like the one before, elsewhere: they have time in `slow`


@pytest.mark.parametrize(
    ("family", "mutant", "message"),
    [pytest.param(*row, id=row[1].__name__, marks=[pytest.mark.slow] * (row[1] in ALIKE)) for row in MUTANTS],
)
def test_broken_promise(family: str, mutant: type[Component], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES[family].members, "mutant", mutant)
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_method("pgdr", **SHORT, **{f"{family}.kind": "mutant"})


def test_no_step_to_speak_of() -> None:
    with pytest.raises(AssertionError, match=r"^learns: after task 1, accuracy among its classes is"):
        check_method("proden", **{"train.lr": 1e-8})


def test_the_unbroken_method_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mutants above are changed from."""
    check_method("pgdr", **SHORT)
    check_method("pgdr", **SHORT, **{"memory.kind": "random"})
    check_method("pgdr", **SHORT, **{"disambiguation.kind": "proden"})
    monkeypatch.setitem(FAMILIES["disambiguation"].members, "staged", ByStage)
    check_method("pgdr", **SHORT, **{"disambiguation.kind": "staged"})


# Parts without one of their hooks


@pytest.mark.parametrize(
    ("part", "hook", "method", "message"),
    [
        (Prototypes, "end_task", "pgdr", r"learns: after task 1"),
        (ExemplarMeans, "end_task", "proden+icarl", r"learns: after task 1"),
        (Memory, "end_task", "pgdr", r"memory: task 1 keeps no sample"),
    ],
)
def test_part_without_a_hook(
    part: type[Component], hook: str, method: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, hook, getattr(Component, hook))
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_method(method, **SHORT)


def test_targets_that_nobody_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run goes on like that, a trial neither; whether the part lacks the hook or the loop does not call it."""
    says = r"^disambiguation 'pgdr' has not started the soft targets of task 1: .*super\(\)\.begin_task\(\)"
    with monkeypatch.context() as patch:
        patch.setattr(Disambiguation, "begin_task", Component.begin_task)
        with pytest.raises(RunError, match=says):
            check_method("pgdr", **SHORT)
    text = Path(ipll.learner.__file__).read_text().replace("part.begin_task()", "pass")
    monkeypatch.setattr("ipll.testing.Learner", _compiled(text).Learner)
    with pytest.raises(RunError, match=says):
        check_method("pgdr", **SHORT)


# Training loops that do not call a hook


@pytest.mark.parametrize(
    ("call", "nothing", "method", "message"),
    [
        ("part.hold_out()", "None", "proden+bic", r"hooks: Bic\.hold_out is never called"),
        ("part.phases()", "()", "proden+ancl", r"hooks: Ancl\.phases is never called"),
        ("part.begin_epoch()", "pass", "pgdr", r"hooks: Pgdr\.begin_epoch is never called"),
        ("part.end_epoch()", "pass", "pgdr", r"hooks: Pgdr\.end_epoch is never called"),
        ("part.end_task()", "pass", "pgdr", r"memory: task 1 keeps no sample"),
        ("part.limit(batch.candidates, batch)", "batch.candidates", "proden+er-ace", r"hooks: ErAce\.limit is never"),
        (
            "out, targets = part.reshape(out, targets, batch)",
            "pass",
            "proden+er-ace",
            r"hooks: ErAce\.reshape is never",
        ),
        ("part.weights().items()", "()", "pgdr", r"hooks: \w+\.weights is never called"),
        ("part.after(out, batch)", "pass", "pico", r"hooks: Pico\.after is never called"),
    ],
)
def test_loop_without_a_hook(
    call: str, nothing: str, method: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, learner = (Path(module.__file__).read_text() for module in (ipll.step, ipll.learner))
    assert (step + learner).count(call) == 1
    monkeypatch.setitem(sys.modules, "ipll.step", _compiled(step.replace(call, nothing)))
    monkeypatch.setattr("ipll.testing.Learner", _compiled(learner.replace(call, nothing)).Learner)
    with pytest.raises(AssertionError, match=f"^{message}"):
        check_method(method)


def _compiled(source: str) -> Any:
    module = ModuleType("mutant_of_the_loop")
    exec(compile(source, "mutant of the loop", "exec"), vars(module))
    return module
