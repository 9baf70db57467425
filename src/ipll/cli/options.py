"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Preset = Annotated[
    str,
    typer.Argument(
        help="What to run, named after its data: digits, cifar100, cifar100-fast, cifar100-h, tiny-imagenet, "
        "tiny-imagenet-fast, cub200, cub200-frozen, cub200-tuned."
    ),
]
Method = Annotated[str, typer.Option("--method", "-m", help="A named method; `ipll methods` lists them.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting: train.epochs=40.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file of settings.")]
Seed = Annotated[int, typer.Option(help="The seed of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataRoot = Annotated[
    Path | None, typer.Option(help="Where data sets are kept. Default: $IPLL_DATA, else ~/.cache/ipll.")
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file with your own parts or methods, or one that a folder was made with; repeatable.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        help="Processes that share every batch, each with a GPU of its own, or on CPUs; see docs/processes.md."
    ),
]
Precision = Annotated[str | None, typer.Option(help="float32, bf16, or auto: bf16 on a GPU that has it.")]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile networks and views. Default: on a GPU, those without kernels of our own.",
    ),
]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Give the same bits every time; slower on a GPU.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")]
RecordedPlugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file that the folder was made with: it never brings code by itself; repeatable.",
    ),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a model that `ipll fit` made.")]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out missing or broken images, and votes and samples without each other, instead of stopping.",
    ),
]
