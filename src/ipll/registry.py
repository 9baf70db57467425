"""Registries: plain dicts that a decorator fills, one per family of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ipll.errors import ConfigError, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of one family by name. `kind` is the family's name in messages, `base` the class that all are made of."""

    def __init__(self, kind: str, base: type[Any] | None = None) -> None:
        self.kind, self.base = kind, base
        self.members: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(member: T) -> T:
            if name in self.members:
                raise ConfigError(f"{self.kind} '{name}' is registered twice.")
            self._check_base(name, member)
            self.members[name] = member
            return member

        return add

    def _check_base(self, name: str, member: object) -> None:
        base = self.base
        if base is None or (isinstance(member, type) and issubclass(member, base)):
            return
        own = getattr(member, "__name__", "Mine")
        raise ConfigError(
            f"{self.kind} '{name}' is not made of the family's base: write class {own}({base.__name__}), after "
            f"from {base.__module__} import {base.__name__}."
        )

    def __getitem__(self, name: str) -> T:
        if name not in self.members:
            raise ConfigError(f"unknown {self.kind} '{name}'.{suggest(name, self.members)}")
        return self.members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)
