"""Methods: named combinations of one member from each family, put together and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

from ipll.component import AUTOMATIC, FAMILIES, ONE, Component
from ipll.errors import ConfigError, nearest
from ipll.families import load_members
from ipll.families.auxiliary.cutmix import CutMix
from ipll.networks.network import HEADS
from ipll.prototypes import Prototypes, PrototypeSettings
from ipll.registry import Registry
from ipll.rng import seeded

load_members()


@dataclass(frozen=True)
class PartConfig:
    """One member of a family and its settings."""

    family: str
    kind: str
    settings: Any


ADDED: Registry[Mapping[str, Any]] = Registry("method")  # those of plugins


def method_table() -> dict[str, Mapping[str, Any]]:
    """All named methods: name -> what it is made of."""
    return _packaged_methods() | ADDED.members


def our_methods() -> tuple[str, ...]:
    """The named methods that are ours, not the paper's."""
    return tuple(_packaged_rows()["ours"])


@cache
def _packaged_rows() -> Mapping[str, Mapping[str, Any]]:
    """The tables of methods.toml."""
    return tomllib.loads(resources.files("ipll").joinpath("methods.toml").read_text())


@cache
def _packaged_methods() -> dict[str, Mapping[str, Any]]:
    """The combinations that methods.toml spells out."""
    rows = _packaged_rows()
    methods: dict[str, Mapping[str, Any]] = {}
    for (dis, first), (ret, second) in product(rows["disambiguation"].items(), rows["retention"].items()):
        doc = f"{first['doc']} with {second['doc']}"
        methods[dis if ret == "none" else f"{dis}+{ret}"] = _over(first, second) | {"doc": doc}
    plain = rows["pgdr"]["pgdr"]
    for name, row in rows["pgdr"].items():
        aliases = row.get("aliases", ())
        methods[name] = {key: value for key, value in _over(plain, row).items() if key != "aliases"}
        methods |= {alias: {**methods[name], "doc": f"the same as {name}"} for alias in aliases}
        for variant, change in rows["variant"].items():
            varied = _over(methods[name], change)
            dropped = varied.pop("without", ())
            kept = [kind for kind in varied["auxiliary"] if kind not in dropped]
            methods[f"{name}/{variant}"] = varied | {"auxiliary": kept, "doc": f"{name} {change['doc']}"}
    for name, row in rows["ours"].items():
        methods[name] = {key: value for key, value in _over(methods[row["base"]], row).items() if key != "base"}
    return methods


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One row laid over another. A family's other member drops the settings that were meant for the former."""
    changed = {family for family in FAMILIES if family in above}
    kept = {key: value for key, value in below.items() if key.split(".")[0] not in changed or key in changed}
    return {**kept, **above}


def method_entry(name: str) -> Mapping[str, Any]:
    methods = method_table()
    if name not in methods:
        near = nearest(name, methods) or " See: ipll methods."
        raise ConfigError(f"unknown method '{name}'.{near} One of a plugin is known with --plugin FILE.")
    return methods[name]


def canonical(name: str) -> str:
    """-> the first method that is made of the same: 'pgdr' for its alias 'proden+pgdr'."""
    wanted = method_entry(name)
    same = (other for other, entry in method_table().items() if {**entry, "doc": wanted["doc"]} == wanted)
    return next(same)


def register_method(name: str, row: Mapping[str, Any], *, doc: str, base: str | None = None) -> None:
    """Adds a named method. `row` reads like one of methods.toml, and is laid over the row of the method `base`:

    register_method("proden+mine", {"retention": "mine", "retention.strength": 2.0}, base="proden+wa", doc="...")
    """
    if name in _packaged_methods():
        raise ConfigError(f"method '{name}' is there already: choose another name.")
    entry = _over(method_entry(base) if base else {}, row)
    for family, registry in FAMILIES.items():
        if family not in entry:
            raise ConfigError(f"method '{name}' names no {family}: give one, or a method to start from as its base.")
        if family == "auxiliary" and not isinstance(entry[family], list):
            raise ConfigError(f"method '{name}': auxiliary takes a list of members, got {entry[family]!r}.")
        for kind in entry[family] if family == "auxiliary" else (entry[family],):
            registry[kind]
    ADDED.register(name)(entry | {"doc": doc})


def check_needs(parts: tuple[PartConfig, ...], head: str, networks: int = 1) -> None:
    """Refuses a part that needs what no other provides; a head is needed as 'linear head' or 'cosine head', and that
    there are no several networks side by side as ONE."""
    members = [FAMILIES[part.family][part.kind] for part in parts]
    heads = {f"{kind} head": kind for kind in HEADS}
    given = {f"{head} head"} | ({ONE} if networks == 1 else set())
    provided = AUTOMATIC.union(given, *(member.provides for member in members))
    chosen = {part.family: part.kind for part in parts}
    for part, member in zip(parts, members, strict=True):
        for missing in sorted(member.needs - provided):
            if missing == ONE:
                raise ConfigError(
                    f"{part.family} '{part.kind}' does not go with model.members={networks}: it needs {ONE}. "
                    f"Choose that with --set model.members=1, or another {part.family}."
                )
            if missing in heads:
                raise ConfigError(
                    f"{part.family} '{part.kind}' does not go with model.head '{head}': it needs a {missing}. "
                    f"Choose that with --set model.head={heads[missing]}, or another {part.family}."
                )
            if missing not in chosen:
                raise ConfigError(f"{part.family} '{part.kind}' needs '{missing}', which no part provides.")
            raise ConfigError(
                f"{part.family} '{part.kind}' does not go with {missing} '{chosen[missing]}': it needs a {missing}. "
                f"Choose another with --set {missing}.kind=..., or another {part.family}."
            )


def assemble(
    parts: tuple[PartConfig, ...],
    prototypes: PrototypeSettings,
    cutmix: float = 0.0,
    beside: tuple[Component, ...] = (),
    seed: int = 0,
) -> tuple[Component, ...]:
    """-> the method's components, in the order in which their hooks are called. Prototypes join where a part needs
    them, behind the auxiliary losses CutMix where it has a weight; before all, what the network itself brings
    (`beside`)."""
    made = [_make(part, seed) for part in parts]
    families = [part.family for part in parts]
    if any("prototypes" in part.needs for part in made):
        made.insert(families.index("memory"), Prototypes(prototypes))
    if cutmix:
        made.insert(families.index("retention"), CutMix(cutmix))
    return (*beside, *made)


def _make(part: PartConfig, seed: int) -> Component:
    """Layers that a part makes for itself draw their weights from the global generator: the seed decides them too."""
    reason: Exception | None = None
    try:
        with seeded(seed, "part", part.family, part.kind):
            made = FAMILIES[part.family][part.kind](part.settings)
        if {"_modules", "settings"} <= vars(made).keys():
            return made
    except (AttributeError, TypeError) as error:
        if "__init__()" not in str(error):  # of which these tell who calls it otherwise than they should
            raise
        reason = error
    raise ConfigError(
        f"{part.family} '{part.kind}' cannot be made{f' ({reason})' if reason else ''}: its __init__ must take its "
        "settings alone, and begin with super().__init__(settings)."
    ) from reason
