"""How settings are worded: in labels, as options of a command, in the names of folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SOURCE, CANDIDATES = "data.source", "stream.candidates"
WORDS = {"stream.tasks": "{} tasks", "stream.blurry": "{}-blurry", "stream.q": "q {}", CANDIDATES: "{}"}


def without_a_part(settings: Mapping[str, Any]) -> set[str]:
    """-> the settings that these make meaningless: q, where the paper's matrix draws the candidates."""
    return {"stream.q"} if settings.get(CANDIDATES) == "banded" else set()


def freeze(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Settings that can be compared and hashed; lists become tuples."""
    return tuple(sorted((k, frozen(v)) for k, v in settings.items()))


def frozen(value: Any) -> Any:
    """A table, which no setting takes, becomes text: it is refused like any other value."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return str(value) if isinstance(value, Mapping) else value


def option(key: str, value: Any) -> str:
    """A setting as --set takes it."""
    return f"{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def text_of(value: Any) -> str:
    """Numbers as short as they can be without another one looking the same."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
