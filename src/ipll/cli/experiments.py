"""Runs: `run`, `resume`, `demo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipll.cli.console import err_console, say, show, warn
from ipll.cli.options import (
    Compile,
    ConfigFile,
    DataRoot,
    Deterministic,
    Device,
    Method,
    Overwrite,
    Plugins,
    Precision,
    Preset,
    Processes,
    RecordedPlugins,
    Seed,
    Set,
)
from ipll.errors import ConfigError

if TYPE_CHECKING:
    from ipll.results.result import Result


def run(
    preset: Preset,
    method: Method = "pgdr",
    set_: Set = None,
    config: ConfigFile = None,
    stream: Annotated[
        Path | None, typer.Option(help="A stream of your own, as `ipll stream --out` writes it; see docs/streams.md.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/PRESET-METHOD-seedN.")] = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    plugin: Plugins = None,
    precision: Precision = None,
    compile_: Compile = None,
    deterministic: Deterministic = False,
    processes: Processes = 1,
    overwrite: Overwrite = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events as well.")] = False,
) -> None:
    """Learn a stream of tasks with one method. Ctrl-C stops it; `ipll resume` continues."""
    out = out or Path("runs") / f"{preset}-{method.replace('/', '-')}-seed{seed}"
    _share(processes, out)
    from ipll.benchmark.checks import check_stream, idle_notices
    from ipll.benchmark.run import run_config
    from ipll.config import parse_overrides, resolve
    from ipll.plugins import load_plugins
    from ipll.progress import LiveProgress

    load_plugins(plugin or ())
    overrides = parse_overrides(set_ or [])
    if precision is not None:
        overrides["train.precision"] = precision
    if compile_ is not None:
        overrides["train.compile"] = "on" if compile_ else "off"
    if deterministic:
        overrides["train.deterministic"] = True
    check_stream(stream, overrides)
    resolved = resolve(preset, method, seed=seed, file=config, overrides=overrides)
    warn(idle_notices(resolved, overrides, config))
    result = run_config(
        resolved,
        stream=stream,
        out=out,
        device=device,
        data_root=data_root,
        overwrite=overwrite,
        tensorboard=tensorboard,
        reporter=LiveProgress(err_console),
    )
    _show_result(result)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    device: Device = "auto",
    data_root: DataRoot = None,
    plugin: RecordedPlugins = None,
    processes: Processes = 1,
) -> None:
    """Continue a stopped run from its last checkpoint; if it is finished, show the result.

    Its data are looked for where they were. Other data than it was begun with are refused.
    """
    _share(processes, folder)
    import ipll
    from ipll.progress import LiveProgress

    reporter = LiveProgress(err_console)
    _show_result(ipll.resume(folder, device=device, data_root=data_root, plugins=plugin or (), reporter=reporter))


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path("runs/demo"),
    overwrite: Overwrite = False,
) -> None:
    """Watch PGDR and a learner that forgets learn five tasks of handwritten digits, on a CPU, in a minute."""
    from ipll.demo import run_demo
    from ipll.paper.summary import compare
    from ipll.progress import LiveProgress

    results = run_demo(out, overwrite=overwrite, reporter=lambda: LiveProgress(err_console))
    show(compare(results))
    say(f"\nThe report: {out / 'report.html'}")


def _share(processes: int, folder: Path) -> None:
    """Runs this very command in so many processes instead, unless this is one of them. `folder` is the run's."""
    from ipll.engine.launch import launch, wanted

    there = wanted()
    if there > 1 and processes not in (1, there):
        raise ConfigError(f"--processes {processes}: there are {there} already (WORLD_SIZE). Leave the option out.")
    if there == 1 and processes != 1:
        raise typer.Exit(launch(["-m", "ipll", *sys.argv[1:]], processes, folder))


def _show_result(result: Result) -> None:
    from ipll.paper.summary import compare

    if os.environ.get("RANK", "0") != "0":
        return
    show(compare([result]))
    say(f"\nThe run: {result.folder}")
