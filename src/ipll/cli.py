"""The command line. Each command is a few lines that call the library."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import ipll
from ipll.bench.campaign import Options, run_plan
from ipll.bench.catalogue import Bench, benches, find_bench
from ipll.bench.plan import Plan, parse_seeds
from ipll.config import parse_overrides, preset_names, resolve
from ipll.data.grid import check_picture, write_grid
from ipll.data.source import SOURCES
from ipll.data.sources import default_data_root, image_source, load_source
from ipll.data.stream import Stream
from ipll.demo import run_demo
from ipll.engine.files import write_text
from ipll.errors import Interrupted, IpllError
from ipll.method import canonical, method_entry, method_table
from ipll.plugins import load_plugins
from ipll.results import figures
from ipll.results.numbers import OUT
from ipll.results.paper import verified
from ipll.results.progress import LiveProgress
from ipll.results.report import write_report
from ipll.results.summary import compare, made_of, method_groups, method_row, setting_rows, setting_table, table_numbers
from ipll.results.tables import Table as PaperTable
from ipll.results.tables import render
from ipll.run import resume as resume_run
from ipll.run import run_config

app = typer.Typer(
    help="Incremental partial-label learning: learn from ambiguous labels that arrive task by task.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out_console = Console()
err_console = Console(stderr=True)

Preset = Annotated[
    str,
    typer.Argument(help="What to run, named after its data: digits, cifar100, cifar100-h, tiny-imagenet, cub200."),
]
Method = Annotated[str, typer.Option("--method", "-m", help="A named method; `ipll methods` lists them.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting: train.epochs=40.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file of settings.")]
Seed = Annotated[int, typer.Option(help="Decides everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataRoot = Annotated[Path | None, typer.Option(help="Where data sets are kept; else $IPLL_DATA, else ~/.cache/ipll.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="A Python file with parts or methods of your own; repeatable."),
]
Precision = Annotated[str | None, typer.Option(help="float32, bf16, or auto: bf16 on a GPU that has it.")]
Compile = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compile networks and views; else only on a GPU.")
]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="The same bits again; slower on a GPU.")]
BenchName = Annotated[str, typer.Argument(metavar="NAME", help="A table or figure of the paper, such as tab3.")]
BenchOut = Annotated[Path, typer.Option("--out", help="The folder that holds the runs.")]
OtherPreset = Annotated[str | None, typer.Option("--preset", help="The same methods on another data set.")]
Seeds = Annotated[str, typer.Option(help="How many (3), or which (0,1,2).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that the folder already holds.")]


@app.command()
def run(
    preset: Preset,
    method: Method = "pgdr",
    set_: Set = None,
    config: ConfigFile = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="The run's folder; else runs/PRESET-METHOD-seedN.")] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    plugin: Plugins = None,
    precision: Precision = None,
    compile_: Compile = None,
    deterministic: Deterministic = False,
    overwrite: Overwrite = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events as well.")] = False,
) -> None:
    """Learn a stream of tasks with one method. Ctrl-C stops it; `ipll resume` goes on."""
    load_plugins(plugin or ())
    overrides = parse_overrides(set_ or [])
    if precision is not None:
        overrides["train.precision"] = precision
    if compile_ is not None:
        overrides["train.compile"] = "on" if compile_ else "off"
    if deterministic:
        overrides["train.deterministic"] = True
    resolved = resolve(preset, method, seed=seed, file=config, overrides=overrides)
    _warn(resolved.model.notices())
    result = run_config(
        resolved,
        out=out or Path("runs") / f"{preset}-{method.replace('/', '-')}-seed{seed}",
        device=device,
        data_root=data_root,
        overwrite=overwrite,
        tensorboard=tensorboard,
        reporter=LiveProgress(err_console),
    )
    _show(result)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    device: Device = "auto",
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Go on with a run that was stopped, from its last checkpoint. Its plugins are loaded by themselves."""
    reporter = LiveProgress(err_console)
    _show(resume_run(folder, device=device, data_root=data_root, plugins=plugin or (), reporter=reporter))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path("runs/demo"),
    overwrite: Overwrite = False,
) -> None:
    """Watch PGDR and a learner that forgets learn five tasks of handwritten digits, on a CPU, in a minute."""
    results = run_demo(out, overwrite=overwrite, reporter=lambda: LiveProgress(err_console))
    out_console.print(compare(results))
    out_console.print(f"\nThe report: {out / 'report.html'}", highlight=False, soft_wrap=True)


@app.command()
def stream(
    preset: Preset,
    set_: Set = None,
    config: ConfigFile = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Write it here, as .npz.")] = None,
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Build a stream and its candidate sets, show it task by task, and write it to a file."""
    load_plugins(plugin or ())
    resolved = resolve(preset, seed=seed, file=config, overrides=parse_overrides(set_ or []))
    source = load_source(resolved.data.source, data_root, resolved.data.size)
    built = Stream.build(source, resolved.stream, seed)
    columns = ("task", "classes", "samples", "new", "old", "mean candidates", "singletons")
    table = Table(*columns, title=f"{preset}, seed {seed}")
    for t, row in enumerate(built.summary(source.train_labels)):
        counts = (row.samples, row.new, row.old, f"{row.mean_candidates:.2f}", row.singletons)
        table.add_row(str(t + 1), f"{built.seen(t - 1)} + {built.classes_per_task[t]}", *map(str, counts))
    out_console.print(table)
    if out:
        built.save(out)
        out_console.print(f"Written to {out}", highlight=False, soft_wrap=True)


@app.command()
def augment(
    preset: Preset,
    out: Annotated[Path, typer.Option(help="The picture, a .png file.")],
    samples: Annotated[int, typer.Option(help="How many training images, one a row.")] = 8,
    set_: Set = None,
    config: ConfigFile = None,
    seed: Seed = 0,
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Draw training images beside their weak and strong views, as one picture."""
    load_plugins(plugin or ())
    resolved = resolve(preset, seed=seed, file=config, overrides=parse_overrides(set_ or []))
    check_picture(out)
    source = load_source(resolved.data.source, data_root, resolved.data.size)
    write_grid(out, source, resolved.augment, samples=samples, seed=seed)
    out_console.print(f"Written to {out}", highlight=False, soft_wrap=True)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to see its settings.")] = None,
    preset: Annotated[str, typer.Option(help="The preset that one method's settings are shown for.")] = "cifar100",
    plugin: Plugins = None,
) -> None:
    """List the methods, what each is made of, and the paper's tables that it is in; or one method's settings."""
    load_plugins(plugin or ())
    if name is not None:
        _show_method(name, preset)
        return
    for title, names in method_groups().items():
        table = Table(title=title)
        for column in ("method", "made of", "tables", "ours / paper"):
            table.add_column(column, no_wrap=column != "made of")
        for row in map(method_row, names):
            table.add_row(*map(escape, row))
        _print(table)
    _say("tables: of the paper; ours / paper: average incremental accuracy in %, where it was measured here:")
    for name in method_table():
        for cell in verified(name) if canonical(name) == name else ():
            _say(f"  {name}: {cell}")
    _say("One method's settings: ipll methods NAME")


def _show_method(name: str, preset: str) -> None:
    rows = list(setting_rows(name, preset))
    _say(f"{name}: {method_entry(name)['doc']}\nmade of: {made_of(name)}")
    _say(f"tables of the paper: {table_numbers(name) or 'none'}")
    _say("measured here: " + ("; ".join(map(str, verified(name))) or "no"))
    _print(setting_table(rows, title=f"{name} on {preset}", narrow=out_console.is_terminal))


@app.command()
def datasets(data_root: DataRoot = None, plugin: Plugins = None) -> None:
    """List the data sets, whether they are at hand, and the presets that use them."""
    load_plugins(plugin or ())
    root = data_root or default_data_root()
    table = Table("data set", "at hand", "presets", "what it is", caption=f"Data root: {root}")
    for name, loader in SOURCES.members.items():
        presets = [preset for preset in preset_names() if resolve(preset).data.source == name]
        table.add_row(name, "yes" if loader().available(root) else "no", ", ".join(presets), loader.description)
    _print(table)


@app.command()
def prepare(
    dataset: Annotated[str, typer.Argument(help="A data set of image files: tiny-imagenet, cub200 or folder.")],
    size: Annotated[int, typer.Option(help="Height and width; 0: the data set's own.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Threads that decode; 0: one per core.")] = 0,
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Decode and resize a data set's images into one file, or check the one that is there. A run does it by itself."""
    load_plugins(plugin or ())
    folder, images = image_source(dataset, size).prepare(data_root or default_data_root(), jobs)
    _say(f"{dataset}: {len(images):,} images of {images.shape[2]} x {images.shape[3]} are whole in {folder}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="One or more folders of finished runs.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; else report.html in the first folder.")] = None,
) -> None:
    """Write a report of one or more runs: one HTML file that needs nothing else."""
    target = out or folders[0] / "report.html"
    for warning in write_report(folders, target):
        err_console.print(f"Warning: {warning}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    out_console.print(f"Written to {target}", highlight=False, soft_wrap=True)


@app.command("bench")
def run_bench(
    name: Annotated[str | None, typer.Argument(help="A table or figure of the paper; --list shows them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="A method, data set or setting; repeatable.")] = None,
    seeds: Annotated[str, typer.Option(help="How many (3), or which (0,1,2).")] = "3",
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
    if name is None or list_:
        table = Table("name", "what it is", "numbers")
        for each in benches().values():
            table.add_row(each.name, escape(each.title), str(len(each.entries)))
        _print(table)
        return
    load_plugins(plugin or ())
    options = Options(device, data_root, tuple(plugin or ()), executor, jobs, address)
    plan = Plan.make(_bench(name, preset, set_, only), parse_seeds(seeds), out)
    _warn(plan.warnings())
    if dry_run:
        _say("\n".join(plan.summary()))
        return
    failed = run_plan(plan, options, err_console, again=shlex.join(["ipll", *sys.argv[1:]]))
    if len(failed) < len(plan.tracks):
        typer.echo(render(plan.bench, out, plan.seeds).rstrip())
    _warn(f"failed: {track.cell}: {track.status.error} (see {track.folder}/error.json)" for track in failed)
    if failed:
        raise typer.Exit(1)


@app.command("table")
def paper_table(
    name: BenchName,
    out: BenchOut = OUT,
    format_: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    preset: OtherPreset = None,
    set_: Set = None,
    seeds: Seeds = "3",
    only: Annotated[list[str] | None, typer.Option(help="A method, data set or setting; repeatable.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
) -> None:
    """Print one of the paper's tables: our numbers, from finished runs, beside the paper's."""
    built = PaperTable(_bench(name, preset, set_, only), out, parse_seeds(seeds))
    text = built.render(format_)
    if to is None:
        typer.echo(text, nl=False)
    else:
        write_text(to, text)
        _say(f"Written to {to}")
    if to is not None or format_ == "csv":
        _warn(f"Warning: {message}" for message in built.damaged)


@app.command()
def figure(
    name: BenchName,
    out: BenchOut = OUT,
    to: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf file, or a folder; else OUT/figures.")] = None,
    preset: OtherPreset = None,
    set_: Set = None,
    seeds: Seeds = "3",
) -> None:
    """Draw one of the paper's figures from finished runs, as PNG, SVG and PDF."""
    drawing = figures.draw(_bench(name, preset, set_), out, parse_seeds(seeds))
    for file in figures.save(drawing, to or out / "figures"):
        _say(f"Written to {file}")
    _warn(drawing.notes)


def _bench(name: str, preset: str | None, set_: list[str] | None, only: list[str] | None = None) -> Bench:
    bench = find_bench(name)
    if preset is not None:
        resolve(preset)  # an unknown one is told with a suggestion
        bench = bench.on(preset)
    return bench.with_settings(parse_overrides(set_ or [])).only(only or [])


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        out_console.print(f"ipll {ipll.__version__}", highlight=False)
        raise typer.Exit


def _print(table: Table) -> None:
    """On a terminal as wide as that is; elsewhere one line a row, for files and other programs to read."""
    console = out_console if out_console.is_terminal else Console(file=out_console.file, width=1000)
    console.print(table)


def _say(text: str) -> None:
    out_console.print(text, highlight=False, markup=False, soft_wrap=True)


def _warn(messages: Iterable[str]) -> None:
    for message in messages:
        err_console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _show(result: ipll.Result) -> None:
    out_console.print(compare([result]))
    out_console.print(f"\nThe run: {result.folder}", highlight=False, soft_wrap=True)


def main() -> None:
    """The program: a mistake of the user's is one message and status 2, an interruption 130."""
    try:
        app()
    except Interrupted as stop:
        err_console.print(str(stop), highlight=False, markup=False, soft_wrap=True)
        sys.exit(128 + stop.signal)
    except IpllError as error:
        err_console.print(f"ipll: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
