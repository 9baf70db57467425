"""Parts that a stranger writes: what works as one would expect, and what is told where it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ipll
from ipll.component import FAMILIES, Batch, Component, Context
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.families.disambiguation import Disambiguation
from ipll.families.disambiguation.proden import Proden
from ipll.families.memory import Memory
from ipll.learner import Learner
from ipll.networks.network import Output
from ipll.testing import check_method

SHORT = {"train.steps_per_epoch": 10}


def mine(monkeypatch: pytest.MonkeyPatch, part: type[Component], family: str = "retention") -> dict[str, Any]:
    """Registers a part as 'mine', for one test. -> the settings that choose it."""
    monkeypatch.setitem(FAMILIES[family].members, "mine", part)
    return {"auxiliary.kinds": ["mine"]} if family == "auxiliary" else {f"{family}.kind": "mine"}


def learner_of(settings: dict[str, Any], seed: int = 0, method: str = "proden+wa") -> Learner:
    source, config = load_source("digits"), resolve("digits", method, seed=seed, overrides=settings)
    return Learner(config, channels=1, classes=10, mean=source.mean, std=source.std)


class OwnLayers(Component):
    """A small network over the features that learns beside the method; made as anyone would."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.first = nn.Linear(8, 1)

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.second = nn.Linear(ctx.network.dim, 8)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"mine": self.first(self.second(out["weak"].features).relu()).square().mean()}


# Layers of its own


def test_the_seed_decides_the_first_weights_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a generator of its own: in another process the global one stands elsewhere."""
    settings = mine(monkeypatch, OwnLayers)

    def weights(global_seed: int, seed: int) -> dict[str, Tensor]:
        torch.manual_seed(global_seed)
        drawn = learner_of(settings, seed).state_dict()
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(global_seed)))
        return {name: tensor for name, tensor in drawn.items() if "first" in name or "second" in name}

    first, again, other = weights(1, 0), weights(2, 0), weights(1, 1)
    assert len(first) == 4
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name]), name
        assert not torch.equal(tensor, other[name]), name


def test_layers_of_its_own_keep_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    check_method("proden+wa", **SHORT, **mine(monkeypatch, OwnLayers))


# Soft targets


class OneTensor(Proden):
    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Any:
        return super().targets(p, out, batch)[1]


class Triple(Proden):
    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Any:
        return p, p, p


class Classes(Proden):
    """Labels in place of distributions."""

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Any:
        return p, p.argmax(dim=1)


class Silent(Proden):
    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> Any:
        return None


class Without(Disambiguation):
    pass


class OwnStart(Proden):
    def begin_task(self) -> None:
        self.started = True


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (OneTensor, r"^disambiguation 'mine': `targets` returned a tensor \[32, 10\]; it must return a pair, the soft"),
        (Triple, r"^disambiguation 'mine': `targets` returned \(a tensor \[32, 10\], a tensor"),
        (Classes, r"^disambiguation 'mine': `targets` returned \(a tensor \[32, 10\], a tensor \[32\]\); it must"),
        (Silent, r"^disambiguation 'mine': `targets` returned None, and no other part decides: it must return a pair"),
        (Without, r"^disambiguation 'mine' has no targets, which every member of its family must have: define it"),
        (OwnStart, r"^disambiguation 'mine' has not started the soft targets of task 1: .*super\(\)\.begin_task\(\)"),
    ],
)
def test_soft_targets_that_are_none(
    part: type[Component], says: str, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]
) -> None:
    with pytest.raises(ipll.RunError, match=says):
        ipll.run("digits", "proden", **quick, **mine(monkeypatch, part, "disambiguation"))


def test_a_memory_that_chooses_nothing_to_keep(monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> None:
    with pytest.raises(ipll.RunError, match=r"^memory 'mine' has no select"):
        ipll.run("digits", "pgdr", **quick, **mine(monkeypatch, type("Mine", (Memory,), {}), "memory"))
