"""How commands print: on a terminal for a reader, elsewhere for files and other programs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from ipll.messages import print_visible, tell

out_console = Console()
err_console = Console(stderr=True)


def on_terminal() -> bool:
    """-> whether somebody looks on: elsewhere it is for files and other programs to read."""
    return out_console.is_terminal


def show(table: Table) -> None:
    """On a terminal as wide as that is; elsewhere one line a row."""
    console = out_console if on_terminal() else Console(file=out_console.file, width=1000)
    print_visible(console, table)


def say(*lines: str) -> None:
    for line in lines:
        tell(line, out_console)


def warn(messages: Iterable[str]) -> None:
    for message in messages:
        tell(message, err_console, style="yellow")


@contextmanager
def warnings_told() -> Iterator[None]:
    """Warnings of the library are told as they come."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_rest, **_more: warn([f"Warning: {message}"])
        yield
