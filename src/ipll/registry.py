"""Registries: plain dicts that a decorator fills, one per family of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ipll.errors import ConfigError, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of one family by name. `kind` is the family's name in messages."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.members: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(member: T) -> T:
            if name in self.members:
                raise ConfigError(f"{self.kind} '{name}' is registered twice.")
            self.members[name] = member
            return member

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self.members:
            raise ConfigError(f"unknown {self.kind} '{name}'.{suggest(name, self.members)}")
        return self.members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)
