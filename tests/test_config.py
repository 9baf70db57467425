"""Configurations: which layer wins, what a run folder keeps, and that every setting says what it means."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ipll import method as methods
from ipll.component import FAMILIES
from ipll.config import SECTIONS, Config, parse_overrides, preset_names, resolve, to_toml
from ipll.errors import ConfigError
from ipll.families.update import Update
from ipll.settings import describe

PRESETS, METHODS = preset_names(), tuple(methods.method_table())


def packaged(preset: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("ipll").joinpath(f"presets/{preset}.toml").read_text())


def part(config: Config, family: str) -> Any:
    """-> the settings of a family's member."""
    return next(p.settings for p in config.parts if p.family == family)


def kind(config: Config, family: str) -> str:
    return next(p.kind for p in config.parts if p.family == family)


@pytest.fixture
def change_method(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds entries to pgdr's row of methods.toml."""

    def change(**entries: Any) -> None:
        table = {name: dict(entry) for name, entry in methods.method_table().items()}
        table["pgdr"] |= entries
        monkeypatch.setattr(methods, "method_table", lambda: table)

    return change


# Precedence


def test_each_layer_lies_over_the_one_before(change_method: Any, tmp_path: Path) -> None:
    """preset < method < method@preset < file < --set."""
    file = tmp_path / "mine.toml"
    preset = resolve("digits").train.lr
    assert preset == packaged("digits")["train"]["lr"]

    def lr(**layers: Any) -> float:
        file.write_text(f"[train]\nlr = {layers['file']}\n" if "file" in layers else "")
        overrides = {"train.lr": layers["set"]} if "set" in layers else {}
        return resolve("digits", "pgdr", file=file, overrides=overrides).train.lr

    assert lr() == preset
    assert lr(file=3.0) == 3.0
    assert lr(set=4.0) == 4.0
    change_method(train={"lr": 1.0})
    assert lr() == 1.0
    assert lr(file=3.0) == 3.0
    change_method(train={"lr": 1.0}, **{"@digits": {"train": {"lr": 2.0}}})
    assert lr() == 2.0
    assert lr(file=3.0) == 3.0
    assert lr(file=3.0, set=4.0) == 4.0


def test_a_layer_leaves_alone_what_it_does_not_name(change_method: Any, tmp_path: Path) -> None:
    change_method(train={"momentum": 0.5}, **{"@digits": {"train": {"weight_decay": 0.25}}})
    (tmp_path / "mine.toml").write_text("[train]\nepochs = 7\n")
    train = resolve("digits", file=tmp_path / "mine.toml", overrides={"train.batch_size": 8}).train
    plain = resolve("digits", "proden").train
    assert (train.momentum, train.weight_decay, train.epochs, train.batch_size) == (0.5, 0.25, 7, 8)
    assert (train.lr, train.schedule) == (plain.lr, plain.schedule)


def test_a_layer_for_one_preset_holds_for_that_one_only(change_method: Any) -> None:
    change_method(**{"@cifar100": {"train": {"lr": 2.0}}})
    assert resolve("cifar100").train.lr == 2.0
    assert resolve("digits").train.lr != 2.0
    assert resolve("cifar100-h").train.lr != 2.0


def test_dotted_keys_in_a_method_set_a_members_settings(change_method: Any) -> None:
    """A family's name is taken by its member in methods.toml, so settings of that member are dotted keys."""
    change_method(**{"memory.size": 50, "@digits": {"memory.size": 60, "retention.weight": 0.5}})
    assert part(resolve("cifar100"), "memory").size == 50
    assert part(resolve("digits"), "memory").size == 60
    assert part(resolve("digits"), "retention").weight == 0.5


def test_a_method_decides_the_parts_and_a_preset_their_sizes() -> None:
    for method, memory in (("pgdr", "representative-diverse"), ("pgdr/random-memory", "random"), ("proden", "none")):
        assert kind(resolve("digits", method), "memory") == memory
    assert part(resolve("digits"), "memory").size == 200
    assert part(resolve("cifar100"), "memory").size == 2000


def test_aliases_are_the_same_method() -> None:
    for alias in ("proden+pgdr", "terial+pgdr"):
        assert resolve("digits", alias).parts == resolve("digits", "pgdr").parts


def test_a_variant_differs_in_its_part_alone() -> None:
    for name, family in {"no-memory": "memory", "linear-classifier": "classifier", "no-kd": "retention"}.items():
        base, variant = resolve("digits", "pgdr"), resolve("digits", f"pgdr/{name}")
        different = [a.family for a, b in zip(base.parts, variant.parts, strict=True) if a != b]
        assert different == [family]
    assert not any(p.family == "auxiliary" for p in resolve("digits", "pgdr/no-cr").parts)


def test_the_configuration_of_a_run_can_be_given_as_a_file(tmp_path: Path) -> None:
    settings = {"train.epochs": 3, "memory.neighbours": 4, "stream.candidates": "banded"}
    config = resolve("digits", seed=5, overrides=settings)
    (tmp_path / "config.toml").write_text(to_toml(config.to_table()))
    assert resolve("digits", seed=5, file=tmp_path / "config.toml") == config
    assert resolve("digits", seed=6, file=tmp_path / "config.toml").seed == 6


# Members of families


def test_another_member_drops_what_only_the_former_knew(change_method: Any) -> None:
    change_method(**{"memory.neighbours": 7, "memory.size": 77, "disambiguation.beta_start": 0.9})
    other = resolve("digits", overrides={"memory.kind": "random", "disambiguation.kind": "proden"})
    assert kind(other, "memory") == "random"
    assert part(other, "memory").size == 77  # both know it
    assert not hasattr(part(other, "memory"), "neighbours")
    assert kind(other, "disambiguation") == "proden"
    same = resolve("digits", overrides={"memory.kind": "representative-diverse"})
    assert part(same, "memory").neighbours == 7


def test_auxiliary_losses_that_are_not_picked_drop_their_settings(change_method: Any) -> None:
    change_method(**{"auxiliary.consistency": {"weight": 0.5}})
    assert part(resolve("digits"), "auxiliary").weight == 0.5
    without = resolve("digits", overrides={"auxiliary.kinds": []})
    assert not any(p.family == "auxiliary" for p in without.parts)


def test_what_the_user_sets_himself_never_falls_away() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'memory\.neighbours'"):
        resolve("digits", overrides={"memory.kind": "random", "memory.neighbours": 3})
    with pytest.raises(ConfigError, match="add 'consistency' to it"):
        resolve("digits", overrides={"auxiliary.kinds": [], "auxiliary.consistency.weight": 2.0})


# Files


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", PRESETS)
def test_round_trip(preset: str, method: str, tmp_path: Path) -> None:
    config = resolve(preset, method, seed=3)
    table = tomllib.loads(to_toml(config.to_table()))
    assert table == config.to_table()
    assert Config.from_table(table) == config
    (tmp_path / "config.toml").write_text(to_toml(config.to_table()))
    assert Config.load(tmp_path / "config.toml") == config


def test_round_trip_of_every_kind_of_value() -> None:
    overrides = {
        "train.lr": 1e-07,
        "train.weight_decay": 0.1 + 0.2,
        "stream.blurry": 33,
        "train.joint_views": False,
        "auxiliary.kinds": ["consistency"],
        "retention.literal": True,
    }
    config = resolve("digits", overrides=overrides, seed=2**40)
    assert config.train.weight_decay == 0.1 + 0.2
    assert config.stream.blurry == 33.0
    again = Config.from_table(tomllib.loads(to_toml(config.to_table())))
    assert again == config
    assert again.seed == 2**40


def test_a_kept_configuration_is_complete() -> None:
    """Every setting is written out, so that a later version's defaults cannot change a run that is resumed."""
    for method in METHODS:
        config = resolve("digits", method)
        table = config.to_table()
        for section, settings in SECTIONS.items():
            assert set(table[section]) == {f.name for f in fields(settings)}
        for p in config.parts:
            names = {f.name for f in fields(p.settings)}
            assert names <= set(table["auxiliary"][p.kind] if p.family == "auxiliary" else table[p.family])


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("a.b=3", 3),
        ("a.b=-3", -3),
        ("a.b=1_000", 1000),
        ("a.b=0.5", 0.5),
        ("a.b=1e-3", 0.001),
        ("a.b=true", True),
        ("a.b=false", False),
        ("a.b=True", "True"),
        ("a.b=small-cnn", "small-cnn"),
        ("a.b='small-cnn'", "small-cnn"),
        ('a.b="3"', "3"),
        ("a.b=['x', 'y']", ["x", "y"]),
        ("a.b=[]", []),
        ("a.b=", ""),
        ("a.b=c=d", "c=d"),
        (" a.b = 3 ", 3),
        ("a.b= two words ", "two words"),
    ],
)
def test_values_on_the_command_line(item: str, value: object) -> None:
    found = parse_overrides([item])
    assert found == {"a.b": value}
    assert type(found["a.b"]) is type(value)


def test_the_last_value_on_the_command_line_wins() -> None:
    assert parse_overrides(["a.b=1", "c=2", "a.b=3"]) == {"a.b": 3, "c": 2}
    assert parse_overrides([]) == {}


# Documentation

OWNERS = SECTIONS | {
    f"{family}.{name}": member.Settings
    for family, registry in FAMILIES.items()
    for name, member in registry.members.items()
}


@pytest.mark.parametrize("owner", OWNERS)
def test_every_setting_says_what_it_means_and_where_its_default_comes_from(owner: str) -> None:
    for field in fields(OWNERS[owner]):
        assert str(field.metadata.get("doc", "")).strip(), f"{owner}.{field.name} has no meaning"
        assert str(field.metadata.get("origin", "")).strip(), f"{owner}.{field.name} has no origin"
    for name, default, meaning, origin in describe(OWNERS[owner]):
        assert default is not None, name
        assert meaning
        assert origin


def test_presets_and_methods_say_what_they_are() -> None:
    assert {"digits", "cifar100", "cifar100-h"} <= set(PRESETS)
    for preset in PRESETS:
        assert packaged(preset)["doc"]
    for name, entry in methods.method_table().items():
        assert entry["doc"], name
        assert set(FAMILIES) <= set(entry), name


def test_names_of_the_settings_people_reach_for_most() -> None:
    overrides = {
        "stream.tasks": 2,
        "stream.blurry": 30,
        "stream.q": 0.3,
        "stream.candidates": "banded",
        "train.epochs": 3,
        "train.batch_size": 16,
        "train.lr": 0.5,
        "memory.size": 30,
    }
    config = resolve("digits", overrides=overrides)
    table = config.to_table()
    assert {key: table[key.split(".")[0]][key.split(".")[1]] for key in overrides} == overrides


@pytest.mark.parametrize("method", METHODS)
def test_every_named_method_can_be_put_together(method: str) -> None:
    config = resolve("digits", method)
    parts = methods.assemble(config.parts, config.prototypes)
    assert sum(isinstance(p, Update) for p in parts) == 1
