"""Settings: frozen dataclasses whose fields know what they mean, what they take and where their default comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from ipll.errors import ConfigError, nearest, suggest

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Numbers from `least`, or from beyond `above`, to `most`, or to short of `below`; None: no end there."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def check(self, key: str, value: Any) -> None:
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        high = (self.most is None or value <= self.most) and (self.below is None or value < self.below)
        check(low and high, key, f"be {self}".replace("be not", "not be"), value)

    def __str__(self) -> str:
        low = self.above if self.least is None else self.least
        high = self.below if self.most is None else self.most
        if low is not None and high is not None:
            return f"in {'(' if self.least is None else '['}{low}, {high}{')' if self.most is None else ']'}"
        if low == 0:
            return "positive" if self.least is None else "not negative"
        if low is not None:
            return f"{'above' if self.least is None else 'at least'} {low}"
        return "" if high is None else f"{'below' if self.most is None else 'at most'} {high}"


@dataclass(frozen=True)
class Choices:
    """One of some names; a function or a registry gives those that are known when it is asked."""

    source: Iterable[str] | Callable[[], Iterable[str]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.source() if callable(self.source) else self.source)

    def check(self, key: str, value: Any) -> None:
        check_choice(key, value, self.names)

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


def setting(
    default: Any,
    doc: str,
    origin: str = "ours",
    *,
    within: tuple[float, float] | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Iterable[str] | Callable[[], Iterable[str]] | None = None,
) -> Any:
    """A dataclass field with its meaning, the origin of its default ('paper', 'official code' or 'ours') and what it
    takes: numbers `within` two ends that count (`least` and `most` in one), or one of the `choices`."""
    if within is not None:
        least, most = within
    takes = Bounds(least, above, most, below) if choices is None else Choices(choices)
    return field(default=default, metadata={"doc": doc, "origin": origin, "takes": takes})


class Section:
    """Base of settings. However they are made, a value of a wrong type or out of bounds is refused by its full key.

    `class WaSettings(Section, name="retention")`, under `@dataclass(frozen=True)`; heirs are of the same section.
    A `__post_init__` is for what several settings must be together, and calls this one first.
    """

    _name: ClassVar[str]

    def __init_subclass__(cls, name: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if name is not None:
            cls._name = name
        elif not hasattr(cls, "_name"):
            raise TypeError(f"{cls.__name__} is of no section: class {cls.__name__}(Section, name=...).")

    def __post_init__(self) -> None:
        hints = _kinds(type(self))  # type: ignore[arg-type]
        for f in fields(self):  # type: ignore[arg-type]
            _admit(f, hints[f.name], self._name, getattr(self, f.name))


@cache
def _kinds(cls: type[Any]) -> dict[str, Any]:
    """-> the type of each field. Evaluated once: it was half of the time that a configuration takes."""
    return get_type_hints(cls)


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
    """-> the dataclass `cls` from a table of a TOML file; unknown keys and wrong values are errors."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"'{section}' is a section, not a setting: use {section}.NAME=..., got {values!r}.")
    known, hints = {f.name: f for f in fields(cls)}, _kinds(cls)  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            keys = [f"{section}.{name}" for name in known]
            raise ConfigError(f"unknown setting '{section}.{key}'.{suggest(f'{section}.{key}', keys)}")
    return cls(**{key: _admit(known[key], hints[key], section, value) for key, value in values.items()})


def _admit(f: Field[Any], kind: Any, section: str, value: object) -> object:
    """-> `value` as a `kind`, or an error that names its key: it is of another type, or not what the field takes."""
    key, takes = f"{section}.{f.name}", f.metadata.get("takes", Bounds())
    value = convert(key, value, kind)
    for one in value if isinstance(value, tuple) else (value,):
        takes.check(key, one)
    return value


def table(settings: Any) -> dict[str, Any]:
    """-> the settings as a plain table, lists for tuples."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(settings).items()}


def describe(cls: type[Any]) -> list[tuple[str, Any, str, str]]:
    """-> (name, default, meaning, origin) of each setting; what it takes ends its meaning, unless that names it."""

    def row(f: Field[Any]) -> tuple[str, Any, str, str]:
        default = None if f.default is MISSING else f.default
        doc, takes = f.metadata.get("doc", ""), f.metadata.get("takes", Bounds())
        told = isinstance(takes, Choices) and all(f"'{name}'" in doc for name in takes.names)
        meaning = doc if told or not str(takes) else f"{doc}; {takes}"
        return f.name, default, meaning, f.metadata.get("origin", "ours")

    return [row(f) for f in fields(cls)]
