"""What came of it: `report`, and the paper's tables and figures: `bench`, `table`, `figure`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ipll.cli.console import err_console, on_terminal, say, show, warn
from ipll.cli.options import DataRoot, Device, Plugins, Set
from ipll.errors import ConfigError
from ipll.messages import cell, visible
from ipll.paper import OUT

TableName = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the paper, such as tab3; or `published`: all that we measured.")
]
FigureName = Annotated[str, typer.Argument(metavar="NAME", help="A figure of the paper, such as memory-size.")]
BenchOut = Annotated[Path, typer.Option("--out", help="The folder that holds the runs.")]
OtherPreset = Annotated[str | None, typer.Option("--preset", help="The same methods on another data set.")]
Seeds = Annotated[str | None, typer.Option(help="How many (3, the default), or which (0,1,2).")]
Further = Annotated[
    list[str] | None,
    typer.Option("--method", "-m", help="Another method, perhaps from a --plugin, beside the paper's; repeatable."),
]
Only = Annotated[list[str] | None, typer.Option(help="A method, data set or setting; repeatable.")]


def report(
    folders: Annotated[list[Path], typer.Argument(help="One or more folders of finished runs.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file. Default: report.html in the first folder.")] = None,
) -> None:
    """Write a report of one or more runs: a single HTML file."""
    from ipll.report.build import write_report

    target = out or folders[0] / "report.html"
    warn(f"Warning: {warning}" for warning in write_report(folders, target))
    say(f"Written to {target}")


def run_bench(
    name: Annotated[str | None, typer.Argument(help="A table or figure of the paper; --list shows them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    only: Only = None,
    method: Further = None,
    seeds: Seeds = None,
    preset: OtherPreset = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and the estimated time.")] = False,
    out: Annotated[Path, typer.Option(help="Where the run folders go.")] = OUT,
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once, on GPUs in turn; with Ray: cells that share one.")
    ] = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster. Default: this machine's, or a new one.")
    ] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Run a whole table or figure of the paper. If it is stopped, the same command continues."""
    from ipll.paper.campaigns.asked import Asked
    from ipll.paper.campaigns.campaign import Options, run_plan
    from ipll.paper.campaigns.plan import Plan
    from ipll.paper.catalogue import benches
    from ipll.paper.tables import render
    from ipll.plugins import load_plugins

    if name is None or list_:
        table = Table("name", "what it is", "numbers")
        for each in benches().values():
            table.add_row(each.name, cell(each.title), str(len(each.entries)))
        show(table)
        return
    load_plugins(plugin or ())
    options = Options(device, data_root, tuple(plugin or ()), executor, jobs, address)
    asked = Asked(name, preset, tuple(set_ or ()), seeds, tuple(only or ()), tuple(method or ()))
    plan = Plan.make(asked.bench(), asked.numbers, out)
    warn(plan.warnings())
    if dry_run:
        say("\n".join(plan.summary()))
        return
    again = shlex.join(["ipll", *sys.argv[1:]])
    failed = run_plan(plan, options, err_console, again=again, begun=lambda: asked.keep(out))
    if len(failed) < len(plan.tracks):
        typer.echo(visible(render(plan.bench, out, plan.seeds).rstrip(), keep="\n"))
    warn(f"failed: {track.cell}: {track.status.error} (see {track.folder}/error.json)" for track in failed)
    if failed:
        raise typer.Exit(1)


def paper_table(
    name: TableName,
    out: BenchOut = OUT,
    format_: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    preset: OtherPreset = None,
    set_: Set = None,
    seeds: Seeds = None,
    only: Only = None,
    method: Further = None,
    to: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
    plugin: Plugins = None,
) -> None:
    """Print one of the paper's tables: our numbers beside the paper's. Ours come from the campaign
    in the folder, or the one that the options name; without runs of your own, they are those we published."""
    from ipll.engine.files import write_text
    from ipll.paper.campaigns.asked import Asked, hints, to_show
    from ipll.paper.catalogue import find_bench
    from ipll.paper.measured import with_ours
    from ipll.paper.overview import NAME, overview
    from ipll.paper.tables import PaperTable
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    warnings: list[str] = []
    if name == NAME:
        if set_ or seeds or method:
            raise ConfigError(f"ipll table {NAME} shows every number there is: it takes --preset and --only alone.")
        text = overview(format_, preset, only or (), to)
    else:
        asked = Asked(name, preset, tuple(set_ or ()), seeds, tuple(only or ()), tuple(method or ()))
        if shown := to_show(asked, out, "table"):
            built = PaperTable.of_runs(shown.bench(), out, shown.numbers)
        else:
            warnings = hints(asked, out)
            built = PaperTable.of_published(with_ours(find_bench(name)).only(asked.only), out, preset)
        text = built.render(format_)
        warnings += built.cautions if format_ == "csv" else []  # which has no lines below
        warnings += built.damaged if to is not None or format_ == "csv" else []
    if to is None:
        typer.echo(visible(text, keep="\n") if format_ == "text" or on_terminal() else text, nl=False)
    else:
        write_text(to, text)
        say(f"Written to {to}")
    warn(warnings)


def figure(
    name: FigureName,
    out: BenchOut = OUT,
    to: Annotated[
        Path | None, typer.Option(help="A .png, .svg or .pdf file, or a folder. Default: OUT/figures.")
    ] = None,
    preset: OtherPreset = None,
    set_: Set = None,
    seeds: Seeds = None,
    method: Further = None,
    plugin: Plugins = None,
) -> None:
    """Draw one of the paper's figures, as PNG, SVG and PDF, from the runs that `ipll table` would show."""
    from ipll.paper import figures
    from ipll.paper.campaigns.asked import Asked, hints, to_show
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    asked = Asked(name, preset, tuple(set_ or ()), seeds, methods=tuple(method or ()))
    figures.check(asked.bench())
    shown = to_show(asked, out, "figure")
    if shown:
        drawing = figures.draw(replace(shown, only=()).bench(), out, shown.numbers)
    else:
        warn(hints(asked, out))
        drawing = figures.draw_published(asked.bench(), out)
    for file in figures.save(drawing, to or out / "figures"):
        say(f"Written to {file}")
    warn(drawing.notes)
