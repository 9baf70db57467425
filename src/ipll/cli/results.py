"""What came of it: `report`, and the paper's tables and figures: `bench`, `table`, `figure`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ipll.cli.console import err_console, on_terminal, say, show, warn
from ipll.cli.options import DataRoot, Device, Plugins, Set
from ipll.messages import cell, visible
from ipll.paper import OUT

if TYPE_CHECKING:
    from ipll.paper.catalogue import Bench


BenchName = Annotated[str, typer.Argument(metavar="NAME", help="A table or figure of the paper, such as tab3.")]
BenchOut = Annotated[Path, typer.Option("--out", help="The folder that holds the runs.")]
OtherPreset = Annotated[str | None, typer.Option("--preset", help="The same methods on another data set.")]
Seeds = Annotated[str, typer.Option(help="How many (3), or which (0,1,2).")]
Only = Annotated[list[str] | None, typer.Option(help="A method, data set or setting; repeatable.")]


def report(
    folders: Annotated[list[Path], typer.Argument(help="One or more folders of finished runs.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; else report.html in the first folder.")] = None,
) -> None:
    """Write a report of one or more runs: one HTML file that needs nothing else."""
    from ipll.report.build import write_report

    target = out or folders[0] / "report.html"
    warn(f"Warning: {warning}" for warning in write_report(folders, target))
    say(f"Written to {target}")


def run_bench(
    name: Annotated[str | None, typer.Argument(help="A table or figure of the paper; --list shows them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    only: Only = None,
    seeds: Seeds = "3",
    preset: OtherPreset = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and the estimated time.")] = False,
    out: Annotated[Path, typer.Option(help="Where the run folders go.")] = OUT,
    jobs: Annotated[int | None, typer.Option(help="Cells at once; with Ray: cells that share one GPU.")] = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; else this machine's, or a new one.")] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Run a whole table or figure of the paper. Stopped at any moment, the same command goes on."""
    from ipll.paper.campaigns.campaign import Options, run_plan
    from ipll.paper.campaigns.plan import Plan, parse_seeds
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
    plan = Plan.make(_bench(name, preset, set_, only), parse_seeds(seeds), out)
    warn(plan.warnings())
    if dry_run:
        say("\n".join(plan.summary()))
        return
    failed = run_plan(plan, options, err_console, again=shlex.join(["ipll", *sys.argv[1:]]))
    if len(failed) < len(plan.tracks):
        typer.echo(visible(render(plan.bench, out, plan.seeds).rstrip(), keep="\n"))
    warn(f"failed: {track.cell}: {track.status.error} (see {track.folder}/error.json)" for track in failed)
    if failed:
        raise typer.Exit(1)


def paper_table(
    name: BenchName,
    out: BenchOut = OUT,
    format_: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    preset: OtherPreset = None,
    set_: Set = None,
    seeds: Seeds = "3",
    only: Only = None,
    to: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
) -> None:
    """Print one of the paper's tables: our numbers, from finished runs, beside the paper's."""
    from ipll.engine.files import write_text
    from ipll.paper.campaigns.plan import parse_seeds
    from ipll.paper.tables import PaperTable

    built = PaperTable(_bench(name, preset, set_, only), out, parse_seeds(seeds))
    text = built.render(format_)
    if to is None:
        typer.echo(visible(text, keep="\n") if format_ == "text" or on_terminal() else text, nl=False)
    else:
        write_text(to, text)
        say(f"Written to {to}")
    if to is not None or format_ == "csv":
        warn(f"Warning: {message}" for message in built.damaged)


def figure(
    name: BenchName,
    out: BenchOut = OUT,
    to: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf file, or a folder; else OUT/figures.")] = None,
    preset: OtherPreset = None,
    set_: Set = None,
    seeds: Seeds = "3",
) -> None:
    """Draw one of the paper's figures from finished runs, as PNG, SVG and PDF."""
    from ipll.paper import figures
    from ipll.paper.campaigns.plan import parse_seeds

    drawing = figures.draw(_bench(name, preset, set_), out, parse_seeds(seeds))
    for file in figures.save(drawing, to or out / "figures"):
        say(f"Written to {file}")
    warn(drawing.notes)


def _bench(name: str, preset: str | None, set_: list[str] | None, only: list[str] | None = None) -> Bench:
    from ipll.config import parse_overrides, resolve
    from ipll.paper.catalogue import find_bench

    bench = find_bench(name)
    if preset is not None:
        resolve(preset)  # an unknown one is told with a suggestion
        bench = bench.on(preset)
    return bench.with_settings(parse_overrides(set_ or [])).only(only or [])
