"""What a run would learn from: `stream`, `augment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ipll.cli.console import say, show
from ipll.cli.options import ConfigFile, DataRoot, Plugins, Preset, Seed, Set


def stream(
    preset: Preset,
    set_: Set = None,
    config: ConfigFile = None,
    seed: Seed = 0,
    stream: Annotated[
        Path | None, typer.Option(help="Draw none: show this one, a file of your own; see docs/streams.md.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write it here, a .npz file.")] = None,
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Build a stream and its candidate sets, show it task by task, and write it to a file."""
    from ipll.benchmark.checks import check_stream
    from ipll.benchmark.given import as_given, sets_without_truth
    from ipll.benchmark.run import load_data
    from ipll.config import parse_overrides, resolve
    from ipll.data.stream import ENDING, Stream
    from ipll.engine.files import check_out
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    overrides = parse_overrides(set_ or [])
    check_stream(stream, overrides)
    resolved = resolve(preset, seed=seed, file=config, overrides=overrides)
    if out:
        check_out(out, ENDING)
    source = load_data(resolved.data, data_root)
    built = Stream.build(source, resolved.stream, seed) if stream is None else as_given(stream, resolved, source)[1]
    columns = ("task", "classes", "samples", "new", "old", "mean candidates", "singletons")
    held_out = f", {len(source.test_labels):,} samples held out for validation" if resolved.data.validation else ""
    drawn_by = f"seed {seed}" if stream is None else str(stream)
    table = Table(*columns, title=f"{preset}, {drawn_by}{held_out}")
    for t, row in enumerate(built.summary(source.train_labels)):
        counts = (row.samples, row.new, row.old, f"{row.mean_candidates:.2f}", row.singletons)
        table.add_row(str(t + 1), f"{built.seen(t - 1)} + {built.classes_per_task[t]}", *map(str, counts))
    show(table)
    if words := sets_without_truth(built, source):
        say(words)
    if out:
        built.save(out)
        say(f"Written to {out}")


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
    """Draw training images beside their weak and strong views, as one picture.

    The weak view is the one that labels are judged by, the strong one is learnt besides; it need not look wilder.
    """
    from ipll.benchmark.run import load_data
    from ipll.config import parse_overrides, resolve
    from ipll.data.grid import ENDING, write_grid
    from ipll.engine.files import check_out
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    resolved = resolve(preset, seed=seed, file=config, overrides=parse_overrides(set_ or []))
    check_out(out, ENDING)
    source = load_data(resolved.data, data_root)
    write_grid(out, source, resolved.augment, samples=samples, seed=seed)
    say(f"Written to {out}")
