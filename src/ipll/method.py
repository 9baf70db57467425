"""Methods: named combinations of one member from each family, put together and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

# The members register themselves when imported.
from ipll.auxiliary import consistency as _consistency  # noqa: F401
from ipll.classifier import members as _classifiers  # noqa: F401
from ipll.component import FAMILIES, Component
from ipll.disambiguation import pgdr as _pgdr  # noqa: F401
from ipll.disambiguation import proden as _proden  # noqa: F401
from ipll.errors import ConfigError, suggest
from ipll.memory import by_class as _by_class  # noqa: F401
from ipll.prototypes import Prototypes, PrototypeSettings
from ipll.retention import distillation as _distillation  # noqa: F401
from ipll.separation import prototype_distance as _prototype_distance  # noqa: F401
from ipll.update import sgd as _sgd  # noqa: F401

AUTOMATIC = frozenset({"prototypes"})  # what is there as soon as a part needs it


@dataclass(frozen=True)
class PartConfig:
    """One member of a family and its settings."""

    family: str
    kind: str
    settings: Any


@cache
def method_table() -> dict[str, dict[str, Any]]:
    """All named methods: name -> its entry of methods.toml, aliases resolved, variants laid over their base."""
    entries = tomllib.loads(resources.files("ipll").joinpath("methods.toml").read_text())
    variants = entries.pop("variant")
    methods = {name: {k: v for k, v in entry.items() if k != "aliases"} for name, entry in entries.items()}
    for name, entry in entries.items():
        for alias in entry.get("aliases", ()):
            methods[alias] = methods[name] | {"doc": f"the same as {name}"}
    for variant, entry in variants.items():
        for base in entry["on"]:
            doc = f"{base} {entry['doc']}"
            methods[f"{base}/{variant}"] = methods[base] | {k: v for k, v in entry.items() if k != "on"} | {"doc": doc}
    return methods


def method_entry(name: str) -> Mapping[str, Any]:
    methods = method_table()
    if name not in methods:
        raise ConfigError(f"unknown method '{name}'.{suggest(name, methods)}")
    return methods[name]


def check_needs(parts: tuple[PartConfig, ...]) -> None:
    """Refuses a part that needs what no other provides."""
    members = [FAMILIES[part.family][part.kind] for part in parts]
    provided = AUTOMATIC.union(*(member.provides for member in members))
    for part, member in zip(parts, members, strict=True):
        for missing in sorted(member.needs - provided):
            raise ConfigError(
                f"{part.family} '{part.kind}' needs a {missing}, but {missing}.kind is 'none'. "
                f"Choose another with --set {missing}.kind=..., or another {part.family}."
            )


def assemble(parts: tuple[PartConfig, ...], prototypes: PrototypeSettings) -> tuple[Component, ...]:
    """-> the method's components, in the order in which their hooks are called. Prototypes join where needed."""
    members = [FAMILIES[part.family][part.kind](part.settings) for part in parts]
    if any("prototypes" in member.needs for member in members):
        members.insert([part.family for part in parts].index("memory"), Prototypes(prototypes))
    return tuple(members)
