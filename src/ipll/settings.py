"""Settings: frozen dataclasses whose fields know what they mean and where their default comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ipll.errors import ConfigError, nearest, suggest

T = TypeVar("T")


def setting(default: Any, doc: str, origin: str = "ours") -> Any:
    """A dataclass field with its meaning and the origin of its default ('paper', 'official code' or 'ours')."""
    return field(default=default, metadata={"doc": doc, "origin": origin})


def check(condition: bool, key: str, must: str, got: object) -> None:
    """Raises unless `condition` holds: '<key> must <must>, got <got>.'"""
    if not condition:
        raise ConfigError(f"{key} must {must}, got {got!r}.")


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{key} must be one of {', '.join(choices)}, got {value!r}.{nearest(value, choices)}")


def convert(key: str, value: object, kind: Any) -> object:
    """`value` as a `kind` (bool, int, float, str, tuple of str), or an error that names the key and both types."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if isinstance(value, (list, tuple)):
            return tuple(convert(f"{key}[{i}]", v, item) for i, v in enumerate(value))
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        check(math.isfinite(value), key, "be a finite number", value)
        return float(value)
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    name = getattr(kind, "__name__", str(kind)) if get_origin(kind) is None else "list"
    raise ConfigError(f"{key} takes a value of type {name}, got {value!r} ({type(value).__name__}).")


def build(cls: type[T], section: str, values: Mapping[str, object]) -> T:
    """-> the dataclass `cls` from a table of a TOML file; unknown keys and wrong types are errors."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"'{section}' is a section, not a setting: use {section}.NAME=..., got {values!r}.")
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            known = [f"{section}.{name}" for name in names]
            raise ConfigError(f"unknown setting '{section}.{key}'.{suggest(f'{section}.{key}', known)}")
    return cls(**{key: convert(f"{section}.{key}", value, hints[key]) for key, value in values.items()})


def table(settings: Any) -> dict[str, Any]:
    """-> the settings as a plain table, lists for tuples."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(settings).items()}


def describe(cls: type[Any]) -> list[tuple[str, Any, str, str]]:
    """-> (name, default, meaning, origin) of each setting."""

    def row(f: Field[Any]) -> tuple[str, Any, str, str]:
        default = None if f.default is MISSING else f.default
        return f.name, default, f.metadata.get("doc", ""), f.metadata.get("origin", "ours")

    return [row(f) for f in fields(cls)]
