"""The command line: the program, and how it prints. Each command is a few lines that call the library."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import ipll
from ipll.errors import Interrupted, IpllError
from ipll.messages import print_visible, tell

app = typer.Typer(
    help="Incremental partial-label learning: learn from ambiguous labels that arrive task by task.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out_console = Console()
err_console = Console(stderr=True)


@app.callback(invoke_without_command=True)
def program(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        out_console.print(f"ipll {ipll.__version__}", highlight=False)
        raise typer.Exit


def on_terminal() -> bool:
    """-> whether somebody looks on: elsewhere it is for files and other programs to read."""
    return out_console.is_terminal


def show(table: Table) -> None:
    """On a terminal as wide as that is; elsewhere one line a row."""
    console = out_console if on_terminal() else Console(file=out_console.file, width=1000)
    print_visible(console, table)


def say(text: str) -> None:
    tell(text, out_console)


def warn(messages: Iterable[str]) -> None:
    for message in messages:
        tell(message, err_console, style="yellow")


def main() -> None:
    """The program: a mistake of the user's is one message and status 2, an interruption 130."""
    try:
        app()
    except Interrupted as stop:
        tell(str(stop), err_console)
        sys.exit(128 + stop.signal)
    except IpllError as error:
        tell(f"ipll: {error}", err_console, style="red")
        sys.exit(2)


# The commands print by what is above, so they come last.
from ipll.cli.catalogue import datasets, methods, prepare  # noqa: E402
from ipll.cli.experiments import demo, resume, run  # noqa: E402
from ipll.cli.own import fit, update  # noqa: E402
from ipll.cli.own_look import audit, evaluate, info, predict  # noqa: E402
from ipll.cli.results import figure, paper_table, report, run_bench  # noqa: E402
from ipll.cli.streams import augment, stream  # noqa: E402

for _command in (run, resume, demo, stream, augment, methods, datasets, prepare, report):  # in the order of the help
    app.command()(_command)
app.command("bench")(run_bench)
app.command("table")(paper_table)
app.command()(figure)
for _own in (fit, update, predict, evaluate, audit, info):
    app.command(rich_help_panel="Your own data")(_own)
