"""What there is: `methods`, `datasets`, `prepare`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ipll.cli.console import on_terminal, say, show
from ipll.cli.options import DataRoot, Plugins, SkipBad
from ipll.messages import cell


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to see its settings.")] = None,
    preset: Annotated[str, typer.Option(help="The preset that one method's settings are shown for.")] = "cifar100",
    plugin: Plugins = None,
) -> None:
    """List the methods, what each is made of, and the paper's tables that it is in; or one method's settings."""
    from ipll.paper.summary import method_groups, method_row
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    if name is not None:
        _show_method(name, preset)
        return
    for title, names in method_groups().items():
        table = Table(title=title)
        for column in ("method", "made of", "tables", "ours / paper"):
            table.add_column(column, no_wrap=column != "made of")
        for row in map(method_row, names):
            table.add_row(*map(cell, row))
        show(table)
    say("tables: of the paper; ours / paper: average incremental accuracy in %, the first that was measured here")
    say("(of CIFAR-100 where no data set is named; *: with our training, not the paper's; +N: so many more).")
    say("One method's settings and numbers: ipll methods NAME; every number: ipll table published")


def _show_method(name: str, preset: str) -> None:
    from ipll.method import method_entry
    from ipll.paper.measured import measured_of
    from ipll.paper.summary import made_of, setting_rows, setting_table, table_numbers

    rows = list(setting_rows(name, preset))
    say(f"{name}: {method_entry(name)['doc']}\nmade of: {made_of(name)}")
    say(f"tables of the paper: {table_numbers(name) or 'none'}")
    numbers = measured_of(name)
    say("\n  ".join(["measured here:", *map(str, numbers)]) if numbers else "measured here: no")
    show(setting_table(rows, title=f"{name} on {preset}", narrow=on_terminal()))


def datasets(data_root: DataRoot = None, plugin: Plugins = None) -> None:
    """List the data sets, whether they are at hand, and the presets that use them."""
    from ipll.config import preset_names, resolve
    from ipll.data.sources import SOURCES, default_data_root
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    root = data_root or default_data_root()
    table = Table("data set", "at hand", "presets", "what it is", caption=f"Data root: {cell(root)}")
    for name, loader in SOURCES.members.items():
        presets = [preset for preset in preset_names() if resolve(preset).data.source == name]
        at_hand = "yes" if loader().available(root) else "no"
        table.add_row(cell(name), at_hand, ", ".join(presets), cell(loader.description))
    show(table)


def prepare(
    dataset: Annotated[
        str, typer.Argument(help="tiny-imagenet, cub200, or folder: your own images, --data-root with train and test.")
    ],
    size: Annotated[int, typer.Option(help="Height and width; 0: the data set's own.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Threads that decode; 0: one per core.")] = 0,
    skip_bad: SkipBad = False,
    data_root: DataRoot = None,
    plugin: Plugins = None,
) -> None:
    """Decode and resize a data set's images into one file, or check the one that is there. A run does it by itself."""
    from ipll.data.sources import default_data_root, image_source
    from ipll.plugins import load_plugins

    load_plugins(plugin or ())
    found = image_source(dataset, size).prepare(data_root or default_data_root(), jobs, skip_bad=skip_bad)
    height, width = found.images.shape[2:]
    say(f"{dataset}: {len(found.images):,} images of {height} x {width} are whole in {found.place}")
    if found.skipped:
        say("\n".join([f"Skipped {len(found.skipped):,} that cannot be read:", *(f"  {one}" for one in found.skipped)]))
