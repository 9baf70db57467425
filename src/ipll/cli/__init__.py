"""The command line: the program. Each command is a few lines that call the library.

Commands import what they call when they are called: help, version and mistyped options are told at once, without torch.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated

import typer

import ipll
from ipll.cli.catalogue import datasets, methods, prepare
from ipll.cli.console import err_console, out_console
from ipll.cli.experiments import demo, resume, run
from ipll.cli.mistakes import Command, Program
from ipll.cli.own import fit, update
from ipll.cli.own_leave import card, export
from ipll.cli.own_look import audit, evaluate, info, predict
from ipll.cli.results import figure, paper_table, report, run_bench
from ipll.cli.streams import augment, stream
from ipll.engine.launch import leave
from ipll.errors import Interrupted, IpllError
from ipll.messages import UNTOLD, tell

app = typer.Typer(
    cls=Program,
    help="Incremental partial-label learning: learn from ambiguous labels that arrive task by task.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def program(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        out_console.print(f"ipll {ipll.__version__}", highlight=False)
        raise typer.Exit


def main() -> None:
    """The program."""
    try:
        _answer()
    except BaseException as error:
        leave(error)
        raise


def _answer() -> None:
    """A mistake of the user's is one message and status 2, an interruption 130."""
    try:
        with _heard():
            app()
    except Interrupted as stop:
        tell(str(stop), err_console)
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:  # before the command itself began; `Heard` has answered it
        sys.exit(128 + signal.SIGINT)
    except IpllError as error:
        tell(f"ipll: {error}", err_console, style="red")
        sys.exit(2)


class Heard:
    """Answers Ctrl-C, and remembers it: what goes on may swallow a KeyboardInterrupt (see `driver.stop_requests`)."""

    asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        with suppress(*UNTOLD):
            tell("Stopping.", err_console)
        signal.default_int_handler(number, frame)


@contextmanager
def _heard() -> Iterator[None]:
    """Ctrl-C is acknowledged at once, also where it takes a while to get out: of an import, of what Arrow reads."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:  # whoever started it wants it otherwise
        yield
        return

    signal.signal(signal.SIGINT, Heard())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


for _command in (run, resume, demo, stream, augment, methods, datasets, prepare, report):  # in the order of the help
    app.command(cls=Command)(_command)
app.command("bench", cls=Command)(run_bench)
app.command("table", cls=Command)(paper_table)
app.command(cls=Command)(figure)
for _own in (fit, update, predict, evaluate, audit, info, card, export):
    app.command(cls=Command, rich_help_panel="Your own data")(_own)
