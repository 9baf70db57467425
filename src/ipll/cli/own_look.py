"""What a model of people's own data says: `predict`, `evaluate`, `audit`, `info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable

from ipll.cli.console import err_console, say, show, warn, warnings_told
from ipll.cli.options import Device, ModelFolder, RecordedPlugins, SkipBad
from ipll.messages import batches, cell, counted


def predict(
    folder: ModelFolder,
    source: Annotated[
        Path, typer.Argument(metavar="TABLE|FOLDER|IMAGE", help="A table, a folder of images, or one image.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show per sample, the most probable first.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A .csv, .parquet or .jsonl file.")] = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    plugin: RecordedPlugins = None,
) -> None:
    """Predict classes: how probable, how far from the class's prototype, and whether unlike anything seen."""
    from ipll.cli.own_output import SHOWN, check_ending, first_rows, open_model, prediction_table, skipped_lines

    check_ending(out)
    from ipll.own.certainty import FLAGGED
    from ipll.own.reading.given import read_to_predict
    from ipll.own.work import readable
    from ipll.own.writing import write_table
    from ipll.progress import LiveProgress

    model = open_model(folder, plugin, out, source)
    samples = read_to_predict(source, skip_bad=skip_bad, known=model.feature_names)
    warn(f"Warning: {message}" for message in samples.warnings)
    samples = readable(samples, model, skip_bad=skip_bad, device=device, reporter=LiveProgress(err_console))
    with warnings_told():
        predictions = model.predict(samples, device=device)
    table = prediction_table(samples, predictions, top)
    if out is None:
        show(first_rows(table))
        if len(samples) > SHOWN:
            say(f"The first {SHOWN} of {len(samples):,}. All of them: --out FILE.csv")
    else:
        write_table(table, out)
        say(f"Written to {out}: {counted(len(samples), 'prediction')}")
    say(*skipped_lines(samples.skipped, samples.word))
    known = f" (so are {100 * FLAGGED:.0f} % of known kinds)" if model.config.model.folds else ""
    say(f"Unlike anything seen, so the class is a guess: {predictions.unlike.sum():,} of {len(samples):,}{known}")


def evaluate(
    folder: ModelFolder,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A table with a column 'label'.")],
    split: Annotated[
        str | None, typer.Option(help="Only rows of this split. Default: 'test' if there is one, else all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the result, as .json.")] = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    plugin: RecordedPlugins = None,
) -> None:
    """Compare a model's predictions with labels: accuracy, each class, and whether its confidence can be trusted."""
    from ipll.cli.own_output import check_ending, evaluation_lines, evaluation_tables, open_model, skipped_lines

    check_ending(out, (".json",))
    from ipll.engine.files import write_json
    from ipll.own.model_card import unlearnt
    from ipll.own.prediction import evaluate as compare
    from ipll.own.reading.given import of_split, read_to_predict
    from ipll.own.work import readable
    from ipll.progress import LiveProgress

    model = open_model(folder, plugin, out, table)
    everything = read_to_predict(table, skip_bad=skip_bad, known=model.feature_names)
    warn(f"Warning: {message}" for message in everything.warnings)
    samples = of_split(everything, split)
    what = f"rows of the split '{samples.split[0]}'" if samples.split and len(samples) < len(everything) else "rows"
    samples = readable(samples, model, skip_bad=skip_bad, device=device, reporter=LiveProgress(err_console))
    with warnings_told():
        result = compare(model.predict(samples, device=device), samples)
    for one in evaluation_tables(result):
        show(one)
    learnt = len(samples) - len(unlearnt(model, samples))
    known = [f"{learnt:,} of them were learnt from, so this does not measure how good it is on others."] * bool(learnt)
    say(*skipped_lines(samples.skipped, samples.word), *evaluation_lines(result, what), *known)
    if out is not None:
        write_json(out, result.to_dict())
        say(f"Written to {out}")


def audit(
    folder: ModelFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .csv, .parquet or .jsonl file, or a page: .html.")
    ] = None,
    plugin: RecordedPlugins = None,
) -> None:
    """List all samples learnt from, the most doubtful first: the label settled on, how surely, and when."""
    from ipll.cli.own_output import SHOWN, check_ending, open_model
    from ipll.own.audit import ENDINGS, audit_table, write_audit

    check_ending(out, ENDINGS)
    model = open_model(folder, plugin, out)
    if out is not None:
        write_audit(model, out)
        say(f"Written to {out}: {counted(len(model.records), 'sample')}")
        return
    shown = ("id", "candidates", "label", "confidence", "judged", "changed_update", "changed_epoch", "update")
    table = RichTable(*shown)
    for row in audit_table(model).select(shown).slice(0, SHOWN).to_pylist():
        row["candidates"] = "|".join(row["candidates"])
        table.add_row(*(cell(value) if isinstance(value, str) else f"{value:.4g}" for value in row.values()))
    show(table)
    if len(model.records) > SHOWN:
        say(f"The {SHOWN} most doubtful of {len(model.records):,}. To look through all of them: --out audit.html")


def info(folder: ModelFolder, plugin: RecordedPlugins = None) -> None:
    """Show a model's classes, the settings that were chosen and why, and what its folder keeps."""
    from ipll.cli.own_output import (
        class_count,
        class_lines,
        class_table,
        decision_lines,
        evidence_lines,
        kept_lines,
        network_lines,
        open_model,
        show_choices,
    )
    from ipll.cli.own_settled import missed_lines

    model = open_model(folder, plugin)
    if model.through is not None:
        what = f"photos through {model.through.name}"
    elif model.kind == "images":
        what = f"{'grey' if model.shape[0] == 1 else 'colour'} images of {model.shape[1]} x {model.shape[2]} pixels"
    else:
        what = counted(model.shape[0], "feature")
    say(f"{folder}: {model.config.method}, seed {model.config.seed}, {what}")
    days = [one.when[:10] for one in model.history]
    when = f", learnt on {days[0]}" * bool(days) + f", last changed on {days[-1]}" * (len(days) > 1)
    say(f"{counted(len(model.records), 'sample')} in {batches(model.updates)}, {class_count(len(model.names))}{when}")
    say(*network_lines(model))
    show(class_table(model))
    show_choices(model)
    say(*class_lines(model), *decision_lines(model), *evidence_lines(model), *missed_lines(model))
    say(*kept_lines(model, folder))
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        say(f"  {path.name}: {path.stat().st_size:,} bytes")
