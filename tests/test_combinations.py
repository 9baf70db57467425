"""Which parts go together: what a part needs must be there, and a refusal names both parts."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import ipll
from ipll.component import FAMILIES, Component
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.errors import ConfigError
from ipll.learner import Learner
from ipll.method import PartConfig, check_needs, method_table

NEEDS = {
    ("classifier", "exemplar-means"): "memory",
    ("retention", "er-ace"): "memory",
    ("disambiguation", "pgdr"): "separation",
}


def part(family: str, kind: str) -> PartConfig:
    return PartConfig(family, kind, FAMILIES[family][kind].Settings())


def test_every_combination_is_refused_or_accepted_as_it_should_be() -> None:
    families = [family for family in FAMILIES if family != "auxiliary"]
    refused = 0
    for kinds in product(*(FAMILIES[family] for family in families)):
        chosen = dict(zip(families, kinds, strict=True))
        parts = tuple(part(family, kind) for family, kind in chosen.items())
        impossible = [key for key in NEEDS if chosen[key[0]] == key[1] and chosen[NEEDS[key]] == "none"]
        if not impossible:
            check_needs(parts, "linear")
            continue
        refused += 1
        with pytest.raises(ConfigError) as caught:
            check_needs(parts, "linear")
        family, kind = next(key for key in impossible if f"{key[0]} '{key[1]}'" in str(caught.value))
        missing = NEEDS[family, kind]
        assert str(caught.value).startswith(f"{family} '{kind}' does not go with {missing} 'none'")
        assert f"--set {missing}.kind=" in str(caught.value)
    assert refused > 0


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("pico+icarl", {"memory.kind": "none"}, "classifier 'exemplar-means' does not go with memory 'none'"),
        ("proden", {"classifier.kind": "exemplar-means"}, "classifier 'exemplar-means' does not go with memory 'none'"),
        ("papi+er-ace", {"memory.kind": "none"}, "retention 'er-ace' does not go with memory 'none'"),
        ("pgdr/no-memory", {"retention.kind": "er-ace"}, "retention 'er-ace' does not go with memory 'none'"),
        ("pgdr", {"separation.kind": "none"}, "disambiguation 'pgdr' does not go with separation 'none'"),
        ("pico", {"disambiguation.kind": "pgdr"}, "disambiguation 'pgdr' does not go with separation 'none'"),
    ],
)
def test_a_user_is_told_both_parts(method: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ipll.run("digits", method, **settings)


@pytest.mark.parametrize(
    ("method", "settings"), [("papi+wa", {}), ("pico+c-flat", {}), ("pgdr", {"retention.kind": "wa"})]
)
def test_a_head_that_aligning_would_do_nothing_to(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """A cosine head does not see the norms of weights, which are all that WA changes."""
    with pytest.raises(
        ConfigError, match=r"^retention 'wa' does not go with model\.head 'cosine': .*model\.head=linear"
    ):
        ipll.run("digits", method, out=tmp_path / "run", **settings | {"model.head": "cosine"})
    assert not list(tmp_path.iterdir())


def test_networks_side_by_side_that_a_part_knows_nothing_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^retention 'boost' does not go with model\.members=4: .*members=1"):
        resolve("digits", "pgdr", overrides={"retention.kind": "boost", "model.members": 4})


def test_a_row_of_zeros_has_no_direction() -> None:
    with pytest.raises(ConfigError, match=r"new_rows=zero needs model\.head=linear"):
        resolve("digits", "pgdr", overrides={"model.new_rows": "zero", "model.head": "cosine"})


def test_only_aligning_minds_the_head() -> None:
    for method in method_table():
        parts = resolve("digits", method).parts
        if ("retention", "wa") not in {(part.family, part.kind) for part in parts}:
            check_needs(parts, "cosine")
        check_needs(parts, "linear")


@pytest.mark.parametrize("method", ["proden+bic", "proden+ancl", "pico+wa", "papi+c-flat", "terial+bic"])
def test_what_a_missing_memory_leaves_alone(method: str, quick: dict[str, Any]) -> None:
    """Corrections and hold-outs do with the task's own samples."""
    assert len(ipll.run("digits", method, **quick | {"memory.kind": "none"}).accuracy_per_task) == 3


def test_every_method_can_be_built_on_every_preset() -> None:
    source = load_source("digits")
    for method in method_table():
        for preset in ("cifar100", "cifar100-h"):
            resolve(preset, method)
        config = resolve("digits", method)
        learner = Learner(config, channels=1, classes=source.classes, mean=source.mean, std=source.std)
        kinds = [part.kind for part in config.parts]
        assert [type(p) for p in learner.ctx.parts if type(p) in _members()] == [
            FAMILIES[p.family][p.kind] for p in config.parts
        ], kinds


def _members() -> set[type[Component]]:
    return {member for registry in FAMILIES.values() for member in registry.members.values()}


def test_a_need_that_no_family_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin may ask for what nobody has."""

    class Odd(Component):
        needs = frozenset({"second teacher"})

    monkeypatch.setitem(FAMILIES["retention"].members, "odd", Odd)
    with pytest.raises(ConfigError, match="retention 'odd' needs 'second teacher', which no part provides"):
        resolve("digits", "proden", overrides={"retention.kind": "odd"})


def test_needs_that_are_met_by_themselves() -> None:
    """A part that projects features gets a projection, one that compares with prototypes gets prototypes."""
    source = load_source("digits")

    def learner(method: str, **settings: Any) -> Learner:
        config = resolve("digits", method, overrides={k.replace("__", "."): v for k, v in settings.items()})
        return Learner(config, channels=1, classes=10, mean=source.mean, std=source.std)

    assert learner("proden").network.projection is None
    assert isinstance(learner("proden", auxiliary__kinds=["contrastive"]).network.projection, torch.nn.Module)
    assert not hasattr(learner("proden").ctx, "prototypes")
    assert hasattr(learner("proden", classifier__kind="prototypes").ctx, "prototypes")
