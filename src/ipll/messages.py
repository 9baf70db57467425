"""Messages to people: what is in them is shown, and does nothing to the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment, Segments

DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
# What the answer to a signal may meet: another line that is being printed, or that nobody reads any more (of which rich
# makes an exit). The signal is obeyed all the same.
UNTOLD = (RuntimeError, OSError, SystemExit)
HIDDEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs (names that are not UTF-8), line separators


def tell(message: str, console: Console | None = None, *, style: str = "") -> None:
    """On standard error, or on a console. Nothing in the text counts as markup, and lines stay whole."""
    console = console or Console(stderr=True)
    console.print(visible(message, keep="\n\t"), style=style or None, highlight=False, markup=False, soft_wrap=True)


def visible(text: str, keep: str = "") -> str:
    r"""-> the text with what would command a terminal, or turn the direction of what follows, as its escape: \x1b.

    For all that is printed and may come from a file: names of classes, ids, columns, paths. Characters of `keep` stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _commands(c) else _escape(c) for c in text)


def counted(n: int, word: str) -> str:
    """-> '1 epoch', '2 epochs'."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def batches(n: int) -> str:
    """-> what a model learnt n batches of samples in: 'one fit and 2 updates'."""
    return f"one fit and {counted(n - 1, 'update')}" if n > 1 else "one fit"


def cell(text: object) -> str:
    """-> text as a cell of a rich table, of which nothing counts as markup either."""
    return escape(visible(str(text)))


def print_visible(console: Console, renderable: object) -> None:
    """Prints a table: whatever its cells hold, only rich itself gives the terminal commands."""
    console.print(Segments(_shown(console.render(renderable))))  # type: ignore[arg-type]


def _shown(segments: Iterable[Segment]) -> Iterable[Segment]:
    return (s if s.control else Segment(visible(s.text, keep="\n"), s.style) for s in segments)


def _commands(character: str) -> bool:
    return character in DIRECTIONS or unicodedata.category(character) in HIDDEN


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
