"""Text of others, names of classes and files, in Markdown that we write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ipll.messages import visible

MARKS = re.compile(r"([\\`*_\[\]<>|~&$])")


def plain_text(text: object) -> str:
    """-> the text with nothing in it that Markdown, or HTML within it, takes for a command."""
    return MARKS.sub(r"\\\1", visible(str(text)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """-> the lines of a table whose cells are plain text."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(map(plain_text, row))} |" for row in rows]
