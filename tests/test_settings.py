"""What each setting takes: every bound of every section and component is told, and holds, however settings are made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, get_type_hints

import pytest

import ipll.method  # noqa: F401, every member is known
from ipll.component import FAMILIES
from ipll.config import SECTIONS, DataConfig, TrainConfig, resolve
from ipll.errors import ConfigError
from ipll.networks.backbones import BACKBONES
from ipll.networks.network import ModelConfig
from ipll.paper.summary import setting_rows
from ipll.settings import Bounds, Choices, Section, build, describe, setting

FREE = {"data.source", "data.through", "model.weights", "model.weights_sha256", "stream.given"}  # names, files, digests
WITH: dict[str, dict[str, Any]] = {"disambiguation.sharpness": {"soft": True}}  # what a setting is for

MEMBERS = {
    (f"{family}.{name}" if family == "auxiliary" else family, member.Settings)
    for family, registry in FAMILIES.items()
    for name, member in registry.members.items()
}
OWNERS = [*SECTIONS.items(), *sorted(MEMBERS, key=lambda pair: (pair[0], pair[1].__name__))]
SETTINGS = [
    pytest.param(section, cls, f, id=f"{cls.__name__}.{f.name}") for section, cls in OWNERS for f in fields(cls)
]


def kind(cls: type[Any], f: Field[Any]) -> Any:
    return get_type_hints(cls)[f.name]


def ends(bounds: Bounds, kind: type) -> Iterator[tuple[float, bool]]:
    """Numbers on both sides of each end and on it: (number, whether it is inside)."""
    for end, inwards, closed in (
        (bounds.least, 1, True),
        (bounds.above, 1, False),
        (bounds.most, -1, True),
        (bounds.below, -1, False),
    ):
        if end is not None:
            near = [end + inwards * s if kind is int else math.nextafter(end, inwards * s * math.inf) for s in (-1, 1)]
            yield from ((kind(near[0]), False), (kind(end), closed), (kind(near[1]), True))


def refusals(section: str, cls: type[Any], name: str, value: object) -> list[str]:
    """-> what is said of a value in Python, in a copy, and in a configuration."""
    said = []
    for make in (
        lambda: cls(**{name: value}),
        lambda: replace(cls(), **{name: value}),
        lambda: build(cls, section, {name: value}),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        said.append(str(caught.value))
    return said


@pytest.mark.parametrize(("section", "cls", "f"), SETTINGS)
def test_every_setting_says_what_it_takes(section: str, cls: type[Any], f: Field[Any]) -> None:
    """A new number without bounds, or word without choices, is noticed here; its default is one that it takes."""
    takes = f.metadata["takes"]
    assert f.default is not MISSING
    takes.check(f.name, f.default)
    if kind(cls, f) in (int, float):
        assert isinstance(takes, Bounds)
        assert takes != Bounds(), f"{section}.{f.name} is a number without bounds"
    elif kind(cls, f) is str and f"{section}.{f.name}" not in FREE:
        assert isinstance(takes, Choices), f"{section}.{f.name} is a word without choices"
    else:
        assert takes == Bounds()


@pytest.mark.parametrize(("section", "cls", "f"), [p for p in SETTINGS if p.values[2].metadata["takes"] != Bounds()])
def test_every_bound_holds(section: str, cls: type[Any], f: Field[Any]) -> None:
    takes = f.metadata["takes"]
    if isinstance(takes, Choices):
        cases: list[tuple[Any, bool]] = [*((name, True) for name in takes.names), ("no such", False), ("", False)]
    else:
        cases = list(ends(takes, kind(cls, f)))
    others = WITH.get(f"{section}.{f.name}", {})
    for value, inside in cases:
        if inside:
            assert getattr(cls(**{f.name: value}, **others), f.name) == value
            assert getattr(build(cls, section, {f.name: value, **others}), f.name) == value
        else:
            must = "not be negative" if str(takes) == "not negative" else f"be {takes}"
            assert set(refusals(section, cls, f.name, value)) == {f"{section}.{f.name} must {must}, got {value!r}."}


@pytest.mark.parametrize(("section", "cls", "f"), SETTINGS)
def test_wrong_types_are_refused_in_python_too(section: str, cls: type[Any], f: Field[Any]) -> None:
    wrong: list[object] = ["1"] if kind(cls, f) is not str else [1]
    wrong += [math.nan, math.inf] if kind(cls, f) is float else [2.5]
    for value in (*wrong, None):
        for said in refusals(section, cls, f.name, value):
            assert said.startswith(f"{section}.{f.name} ")
            assert repr(value) in said


def test_the_table_of_a_method_tells_every_bound() -> None:
    for method in ("pgdr", "pico+er-ace", "papi+ancl", "terial+c-flat"):
        shown = {key: meaning for key, _, _, meaning in setting_rows(method, "cifar100")}
        config = resolve("cifar100", method)
        parts = [
            (p.family if p.family != "auxiliary" else f"auxiliary.{p.kind}", type(p.settings)) for p in config.parts
        ]
        for section, cls in (*SECTIONS.items(), *parts):
            for f in fields(cls):
                takes, meaning = f.metadata["takes"], shown[f"{section}.{f.name}"]
                assert all(word in meaning for word in (takes.names if isinstance(takes, Choices) else [str(takes)]))
    assert shown["train.epochs"] == "epochs of each task; at least 1"
    assert shown["train.momentum"] == "momentum of SGD; in [0, 1)"
    assert shown["update.rho"].endswith("; positive")
    assert shown["model.backbone"].endswith(f"; one of {', '.join(BACKBONES)}")
    assert "one of" not in shown["stream.last_leftover"]  # its meaning names both


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, ""),
        ({"least": 0}, "not negative"),
        ({"least": 1}, "at least 1"),
        ({"least": -0.5}, "at least -0.5"),
        ({"above": 0}, "positive"),
        ({"above": 2}, "above 2"),
        ({"most": 3}, "at most 3"),
        ({"below": 0}, "below 0"),
        ({"within": (0, 1)}, "in [0, 1]"),
        ({"least": 0, "below": 1}, "in [0, 1)"),
        ({"above": 0, "most": 1}, "in (0, 1]"),
        ({"above": -1, "below": 0.5}, "in (-1, 0.5)"),
    ],
)
def test_bounds_in_words(bounds: dict[str, Any], words: str) -> None:
    takes = setting(0, "", **bounds).metadata["takes"]
    assert str(takes) == words
    for value, inside in ends(takes, float):
        if inside:
            takes.check("a.b", value)
        else:
            with pytest.raises(ConfigError, match=r"^a\.b must (be|not be) .*, got "):
                takes.check("a.b", value)


def test_choices_are_asked_for_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"model\.backbone must be one of .*, got 'mine'"):
        ModelConfig(backbone="mine")
    monkeypatch.setitem(BACKBONES.members, "mine", BACKBONES["mlp"])  # as a plugin does
    assert ModelConfig(backbone="mine").backbone == "mine"
    assert "mine" in next(meaning for name, _, meaning, _ in describe(ModelConfig) if name == "backbone")


def test_each_of_several_values_is_checked() -> None:
    @dataclass(frozen=True)
    class Several(Section, name="mine"):
        words: tuple[str, ...] = setting(("a",), "some", choices=("a", "b"))

    assert build(Several, "mine", {"words": ["b", "a"]}).words == ("b", "a")
    with pytest.raises(ConfigError, match=r"mine\.words must be one of a, b, got 'c'"):
        build(Several, "mine", {"words": ["b", "c"]})


def test_a_section_is_named_once() -> None:
    @dataclass(frozen=True)
    class Base(Section, name="memory"):
        size: int = setting(1, "how many", least=0)

    @dataclass(frozen=True)
    class Heir(Base):
        share: float = setting(0.5, "of them", within=(0, 1))

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.size and not self.share:
                raise ConfigError("memory.share is 0, and memory.size is not.")

    with pytest.raises(ConfigError, match=r"^memory\.size must not be negative, got -1\.$"):
        Heir(size=-1)
    with pytest.raises(ConfigError, match=r"^memory\.share must be in \[0, 1\], got 1\.5\.$"):
        Heir(share=1.5)
    with pytest.raises(ConfigError, match=r"^memory\.share is 0, and"):
        Heir(share=0.0)
    with pytest.raises(TypeError, match="Nowhere is of no section"):
        type("Nowhere", (Section,), {})


def test_bounds_hold_in_a_configuration_without_the_base_too() -> None:
    @dataclass(frozen=True)
    class Plain:
        size: int = setting(1, "how many", least=0)

    with pytest.raises(ConfigError, match=r"^memory\.size must not be negative, got -1\.$"):
        build(Plain, "memory", {"size": -1})


def test_what_a_setting_is_stays_what_was_given() -> None:
    assert TrainConfig(lr=1).lr == 1
    assert DataConfig(source="own").source == "own"
    with pytest.raises(ConfigError, match=r"unknown data set 'digts'\. Did you mean 'digits'"):
        DataConfig(source="digts")
