"""What a model of people's own data leaves behind for others: `export`, `card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipll.cli.console import say
from ipll.cli.options import Device, ModelFolder, RecordedPlugins, SkipBad

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def export(
    folder: ModelFolder,
    out: Annotated[Path, typer.Option(metavar="FILE.onnx|FOLDER", help="Where it goes.")],
    format: Annotated[
        str,
        typer.Option(help="'onnx': one file that predicts, without ipll; 'safetensors': a folder of plain weights."),
    ] = "onnx",
    overwrite: Overwrite = False,
    plugin: RecordedPlugins = None,
) -> None:
    """Write a model for other programs: one ONNX file that takes samples as they are, or plain weights."""
    from ipll.cli.own_output import open_model
    from ipll.own.exporting import check_place
    from ipll.own.exporting import export as write

    check_place(out, format, overwrite=overwrite)
    model = open_model(folder, plugin, out)
    write(model, out, format=format, overwrite=overwrite)
    files = [out] if out.is_file() else sorted(out.iterdir())
    say(f"Written: {', '.join(f'{path} ({path.stat().st_size:,} bytes)' for path in files)}")
    if format == "onnx":
        say("Checked with onnxruntime: it predicts what the model predicts. Its metadata describe input and outputs.")


def card(
    folder: ModelFolder,
    table: Annotated[
        Path | None,
        typer.Argument(metavar="[TABLE]", help="Rows with a column 'label', not learnt from, to score the model on."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write it to this file instead of printing it.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Only rows of this split. Default: 'test' if there is one, else all.")
    ] = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    plugin: RecordedPlugins = None,
) -> None:
    """Write a model card in Markdown: data, classes, settings and why, how good it is, and what it is not good for."""
    from ipll.cli.own_output import check_ending, open_model

    check_ending(out, (".md",))
    from ipll.engine.files import write_text
    from ipll.own.model_card import card as written
    from ipll.own.model_card import held_out, saved_when
    from ipll.own.prediction import evaluate as compare
    from ipll.own.reading.given import of_split, read_to_predict
    from ipll.own.work import readable

    model, result = open_model(folder, plugin, out, table), None
    if table is not None:
        samples = held_out(model, of_split(read_to_predict(table, skip_bad=skip_bad, known=model.feature_names), split))
        samples = readable(samples, model, skip_bad=skip_bad)
        result = compare(model.predict(samples, device=device), samples)
    text = written(model, name=folder.name, saved=saved_when(folder), evaluation=result, source=str(table or ""))
    if out is None:
        say(text.rstrip("\n"))
        return
    write_text(out, text)
    say(f"Written to {out}")
