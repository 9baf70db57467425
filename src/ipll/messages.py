"""Messages to people, printed as they are."""

from __future__ import annotations

from rich.console import Console


def tell(message: str, console: Console | None = None, *, style: str = "") -> None:
    """On standard error, or on a console. Nothing in the text counts as markup, and lines stay whole."""
    console = console or Console(stderr=True)
    console.print(message, style=style or None, highlight=False, markup=False, soft_wrap=True)
