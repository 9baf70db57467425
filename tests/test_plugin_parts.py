"""Parts that a stranger writes: what works as one would expect, and what is told where it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ipll
from ipll.component import FAMILIES, Batch, Component, Context, Draw
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.families.disambiguation import Disambiguation
from ipll.families.disambiguation.proden import Proden
from ipll.families.memory import Memory
from ipll.learner import Learner
from ipll.networks.backbones import BACKBONES, Backbone
from ipll.networks.network import Output
from ipll.testing import TERMS, check_method

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


# Terms of the loss


def adding(value: Callable[[Mapping[str, Output]], Any], **attributes: Any) -> type[Component]:
    """A part whose `losses` is this."""
    return type("Mine", (Component,), {"losses": lambda self, out, targets, batch: value(out)} | attributes)


def features_of(out: Mapping[str, Output]) -> Tensor:
    return out["weak"].features


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (
            adding(lambda out: {"mine": features_of(out).square().mean(dim=1)}),
            r"^retention 'mine': the term 'mine' of its `losses` is a tensor \[32\]; .*loss\.mean\(\)",
        ),
        (adding(lambda out: {"mine": 0.0}), r"^retention 'mine': the term 'mine' of its `losses` is 0\.0; "),
        (adding(lambda out: None), r"^retention 'mine': `losses` returned None; it must return a dict of named terms"),
        (adding(lambda out: features_of(out).mean()), r"^retention 'mine': `losses` returned a tensor \[\]; "),
        (adding(lambda out: {"total": features_of(out).mean()}), r"^retention 'mine': 'total' is what the sum"),
    ],
)
def test_terms_that_are_none(
    part: type[Component], says: str, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]
) -> None:
    with pytest.raises(ipll.RunError, match=says):
        ipll.run("digits", "proden", **quick, **mine(monkeypatch, part))


def test_a_single_term_that_is_not_reduced(monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> None:
    """It alone could be summed, and would be, unseen."""

    class Rows(Proden):
        def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
            return {"ce": -(targets * out["weak"].shaped.log_softmax(dim=1)).sum(dim=1)}

    with pytest.raises(ipll.RunError, match=r"^disambiguation 'mine': the term 'ce' .*a tensor \[32\]"):
        ipll.run("digits", "proden", **quick | {"auxiliary.kinds": []} | mine(monkeypatch, Rows, "disambiguation"))


def test_a_loss_without_a_term(monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> None:
    settings = {"auxiliary.kinds": [], "retention.kind": "none"}
    part = type("Mine", (Proden,), {"losses": lambda self, out, targets, batch: {}})
    with pytest.raises(ipll.RunError, match=r"^no part adds a term to the loss"):
        ipll.run("digits", "proden", **quick | settings | mine(monkeypatch, part, "disambiguation"))


@pytest.mark.parametrize("step", [0, 4])
def test_the_term_that_is_not_finite_first_is_named(
    step: int, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]
) -> None:
    """In the next step all are, since the weights are."""

    class Odd(Component):
        def build(self, ctx: Context) -> None:
            super().build(ctx)
            self.register_buffer("steps", torch.zeros(()))

        def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
            return {"mine": out["weak"].features.mean() / (self.steps != step)}

        def after(self, out: Mapping[str, Output], batch: Batch) -> None:
            self.steps.add_(1)

    with pytest.raises(
        ipll.RunError, match=r"not finite\. At first it was only 'mine' of retention 'mine': look there"
    ):
        ipll.run("digits", "proden", **quick, **mine(monkeypatch, Odd))


# How a part is made


class NoInit(Component):
    def __init__(self, settings: Any) -> None:
        self.strength = 2.0


class LayerFirst(Component):
    def __init__(self, settings: Any) -> None:
        self.layer = nn.Linear(2, 2)
        super().__init__(settings)


class NoSettings(Component):
    def __init__(self) -> None:
        super().__init__(None)


class NoBuild(Component):
    def build(self, ctx: Context) -> None:
        self.layer = nn.Linear(ctx.network.dim, 2)


class OwnContext(Component):
    def build(self, ctx: Context) -> None:
        self.layer = nn.Linear(self.ctx.network.dim, 2)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (NoInit, r"^retention 'mine' cannot be made: its __init__ must .* begin with super\(\)\.__init__\(settings\)"),
        (
            LayerFirst,
            r"^retention 'mine' cannot be made \(cannot assign module before Module\.__init__\(\) call\):",
        ),
        (
            NoSettings,
            r"^retention 'mine' cannot be made \(.*__init__\(\) takes 1 positional argument but 2 were",
        ),
        (NoBuild, r"^retention 'mine': its `build` does not begin with super\(\)\.build\(ctx\)\.$"),
        (OwnContext, r"^retention 'mine': its `build` does not begin with super\(\)\.build\(ctx\)\.$"),
    ],
)
def test_a_part_that_is_not_whole(part: type[Component], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ipll.ConfigError, match=says):
        learner_of(mine(monkeypatch, part))


def test_other_mistakes_in_making_a_part_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Typo(Component):
        def build(self, ctx: Context) -> None:
            super().build(ctx)
            self.size = ctx.netwrok

    with pytest.raises(AttributeError, match="netwrok"):
        learner_of(mine(monkeypatch, Typo))


# Views


def looking(where: str, view: str, **attributes: Any) -> type[Component]:
    """A part that looks for a view in what the network says, in the batch, or in what is drawn."""
    hooks: dict[str, Any] = {
        "out": {"losses": lambda self, out, targets, batch: {"mine": out[view].features.mean()}},
        "batch": {"before": lambda self, batch: batch.extra.update(seen=batch.views[view])},
        "draw": {"inputs": lambda self, draw, generator: draw.extra.update(seen=draw.views[view])},
    }
    return type("Mine", (Component,), hooks[where] | attributes)


def makes_second(self: Component, draw: Draw, generator: torch.Generator) -> None:
    draw.views["second"] = draw.views["weak"].flip(-1)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (looking("out", "strong"), r"looks for the strong view .* views = \('strong',\) .*'strong view'"),
        (looking("batch", "strong"), r"looks for the strong view .* views = \('strong',\) .*'strong view'"),
        (looking("draw", "strong"), r"looks for the strong view .* views = \('strong',\) .*'strong view'"),
        (looking("out", "second", views=("second",)), r"its views = \('second',\) name 'second', which no part makes"),
        (looking("out", "strong", views="strong"), r"its views = 'strong' name 's', .* Views are a tuple of names"),
        (
            looking("out", "second", inputs=makes_second),
            r"the view 'second' does not go through the network\. In its class, views = \('second',\)",
        ),
    ],
)
def test_views_that_are_not_there(
    part: type[Component], says: str, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]
) -> None:
    with pytest.raises(ipll.RunError, match=rf"^retention 'mine'.*{says}"):
        ipll.run("digits", "proden", **quick | {"auxiliary.kinds": []} | mine(monkeypatch, part))


def test_views_that_are_asked_for_are_there(monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> None:
    for part in (
        looking("out", "strong", views=("strong",)),
        looking("batch", "strong", needs=frozenset({"strong view"})),
        looking("draw", "strong", needs=frozenset({"strong view"})),
        looking("out", "second", views=("second",), inputs=makes_second),
    ):
        ipll.run("digits", "proden", **quick | {"auxiliary.kinds": []} | mine(monkeypatch, part))


def test_other_keys_that_are_missing_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]
) -> None:
    part = adding(lambda out: {"mine": {"a": 1}["b"]})
    with pytest.raises(KeyError, match="b"):
        ipll.run("digits", "proden", **quick, **mine(monkeypatch, part))


# Backbones


class Narrow(Backbone):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, 4)


class Sounds(Narrow):
    takes = "sounds"
    dim = 4


@pytest.mark.parametrize(
    ("backbone", "says"),
    [
        (Narrow, r"^model\.backbone=mine: set self\.dim in its __init__"),
        (Sounds, r"^model\.backbone=mine: `takes` is 'sounds', must be one of images, features"),
        (
            lambda channels: nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 8)),
            r"^model\.backbone=mine makes a Sequential: it must be a Backbone .*class Mine\(Backbone\)",
        ),
    ],
)
def test_a_backbone_that_is_none(backbone: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES.members, "mine", backbone)
    with pytest.raises(ipll.ConfigError, match=says):
        learner_of({"model.backbone": "mine"})


# What a trial finds


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"loss": lambda self, out, targets, batch: {}}, "has 'loss', which nothing calls. Did you mean 'losses'?"),
        ({"end_tasks": lambda self: None}, "has 'end_tasks', which nothing calls. Did you mean 'end_task'?"),
        ({}, "overrides none, so it changes nothing. Hooks: build,"),
    ],
)
def test_a_hook_of_another_name(attributes: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = type("Mine", (Component,), attributes)
    with pytest.raises(AssertionError, match=rf"^hooks: retention 'mine' {re.escape(says)}"):
        check_method("proden", **SHORT, **mine(monkeypatch, part))


def weighing(terms: dict[str, float], part: type[Component]) -> type[Component]:
    return type("Mine", (part,), {"weights": lambda self: terms})


def test_a_weight_of_a_term_that_nobody_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    adds = adding(lambda out: {"mine": 0.01 * features_of(out).square().mean()})
    with pytest.raises(AssertionError, match=r"^weights: retention 'mine' weighs 'mien', .* Did you mean 'mine'\?"):
        check_method("proden", **SHORT, **mine(monkeypatch, weighing({"mien": 0.5}, adds)))
    with pytest.raises(AssertionError, match=r"^weights: retention 'mine' weighs 'mien', which no part has added"):
        check_method("proden", **SHORT, **mine(monkeypatch, weighing({"mien": 0.5}, Component)))


def test_weights_of_terms_that_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' that another method has, and one's own that comes later."""
    check_method("proden", **SHORT, **mine(monkeypatch, weighing({"cutmix": 0.5, "kd": 2.0}, Component)))
    later = adding(lambda out: {})
    check_method("proden", **SHORT, **mine(monkeypatch, weighing({"later": 0.5}, later)))


def test_the_terms_of_the_package_are_known(quick: dict[str, Any], tmp_path: Path) -> None:
    """Whoever weighs one of them is not told that nobody adds it."""
    found: set[str] = set()
    for name in ("pgdr", "pgdr/boosted", "papi", "pico", "terial", "proden+ancl", "proden+wa"):
        out = tmp_path / name.replace("/", "-")
        ipll.run("digits", name, out=out, **quick | {"augment.cutmix": 0.5})
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        found |= {term for line in lines if line["kind"] == "epoch" for term in line["terms"]}
    assert found == TERMS
