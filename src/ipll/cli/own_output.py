"""What the commands for people's own data say and write."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from ipll.cli.console import say, show
from ipll.errors import DataError
from ipll.messages import cell, counted
from ipll.plugins import plugin_options

if TYPE_CHECKING:
    from ipll.own.model import Model
    from ipll.own.prediction import Evaluation, Predictions
    from ipll.own.reading.given import Given
    from ipll.own.reading.samples import Annotator, Samples

ENDINGS = (".csv", ".parquet", ".jsonl")
SHOWN = 20  # rows of a table on the terminal
SHOWN_PAIRS = 5  # of classes, of which one is never named without the other
SHOWN_PEOPLE, MANY_VOTES = 5, 20  # annotators who are named, and the votes that each of them has cast
DISAGREE = 0.4  # share of votes in which people seem to know the label: less is told
BANDS = (
    ("sure (up to 5 % wrong)", 0.95),
    ("likely (5 to 20 %)", 0.8),
    ("doubtful (20 to 50 %)", 0.5),
    ("poor (more)", -1.0),
)


def read_lines(given: Given) -> list[str]:
    """-> what was read, what was skipped and why, and what is not learnt from."""
    train = given.train
    sizes = train.candidates.sum(1)
    kind = counted(len(train), "sample") + f" of {counted(len(train.feature_names), 'feature')}"
    if train.images is not None:
        kind = counted(len(train), "image")
    lines = [
        f"Read {train.source}: {kind} to learn from, {class_count(len(train.names))}, "
        f"{sizes.mean():.2f} candidates per sample ({(sizes == 1).sum():,} with only one)."
    ]
    lines += skipped_lines(train.skipped, train.word) + annotator_lines(train.annotators)
    if given.test is not None:
        lines.append(f"Not learnt from: {len(given.test):,} of the split 'test', kept for the evaluation below.")
    lines += [f"Not learnt from: {n:,} of the split '{name}', not used at all." for name, n in given.others.items()]
    return lines


def class_count(n: int) -> str:
    return f"{n:,} class" if n == 1 else f"{n:,} classes"


def annotator_lines(people: Sequence[Annotator]) -> list[str]:
    """-> how reliable those seem who voted; of many, those whom it is worth to ask."""
    if len(people) == 1:
        return [f"One annotator, {people[0].name}: nothing tells how reliable, so no label is called sure."]
    if not people:
        return []
    named = [one for one in people if one.votes >= MANY_VOTES][:SHOWN_PEOPLE] if len(people) > SHOWN_PEOPLE else people
    told = ", ".join(f"{one.name} {100 * one.reliability:.0f} %" for one in named)
    cast = sum(one.votes for one in people)
    mean = sum(one.votes * one.reliability for one in people) / max(cast, 1)
    known = f"{len(people):,} annotators seem to know the label in {100 * mean:.0f} % of their votes"
    who = f" {'All' if named is people else 'The least reliable'}: {told}." if told else ""
    lines = [f"{known}; those who know it less often count for less.{who}"]
    if mean < DISAGREE:
        lines.append("They hardly agree, so votes say little about who is right. Decide some samples: ipll audit.")
    return lines


def skipped_lines(skipped: Sequence[tuple[int, str]], word: str) -> list[str]:
    """-> the images that were left out with --skip-bad (row, reason), each of them."""
    if not skipped:
        return []
    return [f"Skipped {len(skipped):,} that cannot be read:", *(f"  {word} {row}: {reason}" for row, reason in skipped)]


def decision_lines(model: Model, before: Model | None = None) -> list[str]:
    """-> what people decided, and what that changed; nothing where there is nothing new since `before`."""
    from ipll.own.decisions import told

    if not model.decisions or (before is not None and model.decisions == before.decisions):
        return []
    found = told(model.decisions)
    people = ", ".join(f"{who or 'somebody'} ({n:,})" for who, n in found.by.items())
    what = found.words()
    lines = [f"Decided by people: {counted(found.samples, 'sample')}, by {people}{': ' if what else ''}{what}."]
    if found.missed:
        lines.append(f"Of these, the class was not among the candidates: {found.missed:,}.")
    rows = sorted({one.row for one in model.decisions})
    if gone := int((~model.records.in_memory[rows]).sum()) - found.none:
        lines.append(f"No longer in the memory, so only their record changed: {gone:,}.")
    return lines


def class_lines(model: Model) -> list[str]:
    """-> classes that have not really come, that nothing settles on, and that no sample tells apart; by name."""
    records, n = model.records, len(model.names)
    settled = np.bincount(records.label, minlength=n)
    candidate, (ambiguous, chance) = np.bincount(records.codes, minlength=n), records.ambiguous(n)
    lines = []
    if few := [c for c in np.flatnonzero(~model.known) if settled[c] and settled[c] < model.min_class_samples]:
        names = ", ".join(model.names[c] for c in few)
        lines.append(f"Not yet known, since fewer than {model.min_class_samples} samples settled on them: {names}.")
    rare = np.flatnonzero(~model.known & (settled >= model.min_class_samples))
    clearly = ambiguous < chance - 2 * np.sqrt(chance)  # by more than the draw of candidates explains
    for some, what, how in (
        (rare[clearly[rare]], "Not yet known, since", "fewer"),
        (rare[~clearly[rare]], "An update will treat it as new, since it may not have arrived yet:", "hardly fewer"),
    ):
        if len(some):
            counts = ", ".join(f"{model.names[c]} ({ambiguous[c]:,}, at random {chance[c]:,.0f})" for c in some)
            lines.append(
                f"{what} {how} settled on it than if each had taken one of its candidates at random: {counts}."
            )
    gone = np.flatnonzero((settled == 0) & (candidate > 0))
    if told := [f"{model.names[c]} ({candidate[c]:,})" for c in gone[np.argsort(-candidate[gone], kind="stable")]]:
        lines.append(f"A candidate (this many times) but never settled on, and so never predicted: {', '.join(told)}.")
    if pairs := [f"{one} (with {other})" for one, other in model.companions()]:
        more = f" and {len(pairs) - SHOWN_PAIRS:,} more" if len(pairs) > SHOWN_PAIRS else ""
        told_pairs = ", ".join(pairs[:SHOWN_PAIRS])
        why = "so neither label is sure where both are candidates"
        lines.append(f"Never a candidate without another class, {why}: {told_pairs}{more}.")
    for group in model.twins():
        lines.append(f"Always candidates together, so no sample tells them apart: {', '.join(group)}.")
    return lines


def evidence_lines(model: Model) -> list[str]:
    """-> what the classifier's choice and the certainty of labels rest on."""
    if (found := model.stacking()) is None:
        return []
    evidence = "votes" if model.voted else "candidate sets"
    counts = np.histogram(1 - model.records.confidence, [0, *(1 - low for _, low in BANDS[:3]), 1 + 1e-6])[0]
    words = [f"{n:,} {name.partition(' ')[0]}" for n, (name, _) in zip(counts.tolist(), BANDS, strict=True)]
    return [
        f"Classified by {found.used}: -log of the probability of held-out {evidence} is {found.head:.3f} by the "
        f"linear head, {found.prototypes:.3f} by prototypes, {found.chosen:.3f} as it is used.",
        f"Labels of all samples: {', '.join(words)}; "
        f"{(1 - model.records.confidence).sum():,.0f} are expected to be wrong.",
    ]


def network_lines(model: Model) -> list[str]:
    """-> which network photos are seen through, and what is missing here for it."""
    from ipll.networks.photos import missing

    if model.through is None:
        return []
    name, need = model.through.name, missing(model.through.name)
    lines = [f"Photos are seen through {name}, a network trained on other images: {model.shape[0]:,} values each."]
    if need:
        lines.append(f"It is not installed here; without it, nothing can be predicted or learnt: {need}")
    return lines


def kept_lines(model: Model, folder: Path) -> list[str]:
    """-> what the model folder keeps: people care."""
    kept, seen = int(model.records.in_memory.sum()), len(model.records)
    what = "images" if model.kind == "images" else "samples with all their features"
    if model.through is not None:
        what = "photos, as features and as small pictures"
    samples = f"{kept:,} {what}, of {seen:,} seen, to go on learning" if kept else f"none of the {seen:,} samples seen"
    memory = model.config.part("memory")
    if memory.kind != "none":
        samples += f" (room for {memory.settings.size:,}; `ipll fit --memory` sets another number)"
    return [
        f"The model is in {folder}. It keeps {samples}, and the id, candidates, label and file name of every sample."
    ]


def class_table(model: Model) -> Table:
    """-> the classes, how often each was a candidate and was settled on, and whether it is known by now."""
    records, n = model.records, len(model.names)
    candidate = np.bincount(records.codes, minlength=n)
    settled = np.bincount(records.label, minlength=n)
    memory = np.bincount(records.label[records.in_memory], minlength=n)
    table = Table("class", "candidate of", "settled on", "in the memory", "known")
    for c, known in enumerate(model.known.tolist()):
        counts = (f"{count[c]:,}" for count in (candidate, settled, memory))
        table.add_row(cell(model.names[c]), *counts, "yes" if known else "not yet")
    return table


def evaluation_tables(result: Evaluation) -> list[Table]:
    """-> how each class fares, the worst recall first; and how often predictions of each confidence are right."""
    classes = Table("class", "samples", "recall in %", "predicted", "precision in %", "most often taken for")
    for row in result.per_class:
        name = cell(row.name) + (" (unknown to the model)" if row.name in result.unknown else "")
        recall, precision = ("-" if share is None else f"{100 * share:.1f}" for share in (row.recall, row.precision))
        classes.add_row(name, f"{row.samples:,}", recall, f"{row.predicted:,}", precision, cell(row.taken_for))
    bins = Table("confidence in %", "samples", "mean confidence in %", "accuracy in %")
    for one in result.bins:
        shares = (f"{100 * share:.1f}" for share in (one.confidence, one.accuracy))
        bins.add_row(f"{100 * one.low:.0f} to {100 * one.high:.0f}", f"{one.samples:,}", *shares)
    return [classes, bins]


def evaluation_lines(result: Evaluation, what: str) -> list[str]:
    """-> the accuracy on `what`, the calibration, and what does not fit the model."""
    lines = [
        f"Accuracy {100 * result.accuracy:.1f} % on {result.samples:,} {what}; balanced over classes "
        f"{100 * result.balanced_accuracy:.1f} %. Calibration error {100 * result.calibration_error:.1f} % (15 bins). "
        f"Unlike anything seen: {result.unlike:,}."
    ]
    if result.unlabelled:
        lines.append(f"{result.unlabelled:,} have no label and were left out.")
    if result.unknown:
        names = ", ".join(f"'{name}' ({n:,})" for name, n in result.unknown.items())
        lines.append(f"Labels that the model does not know, counted as wrong: {names}.")
    return lines


def prediction_table(samples: Samples, predictions: Predictions, top: int) -> Any:
    """-> an Arrow table: id, class, probability, distance, unlike; then class_2, probability_2 and so up to `top`."""
    import pyarrow as pa

    best = predictions.top(top)
    columns: dict[str, object] = {
        "id": samples.ids,
        "class": predictions.labels,
        "probability": predictions.confidence,
        "distance": predictions.distance,
        "unlike": predictions.unlike,
    }
    for k in range(1, best.shape[1]):
        columns[f"class_{k + 1}"] = [predictions.names[c] for c in best[:, k].tolist()]
        columns[f"probability_{k + 1}"] = predictions.probabilities[np.arange(len(best)), best[:, k]]
    return pa.table(columns)


def first_rows(table: Any) -> Table:
    """-> the first rows of an Arrow table, to look at."""
    shown = Table(*table.column_names)
    for row in table.slice(0, SHOWN).to_pylist():
        shown.add_row(*map(_cell, row.values()))
    return shown


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return cell(value)
    return ("yes" if value else "") if isinstance(value, bool) else f"{value:.4f}"


def check_ending(path: Path | None, endings: tuple[str, ...] = ENDINGS) -> None:
    """A DataError, before any work is done, if what a file is to hold cannot be told by its name."""
    if path is not None and path.suffix.lower() not in endings:
        raise DataError(f"cannot write {path.name!r}: its ending names no format. Use one of {', '.join(endings)}.")


def open_model(folder: Path, plugins: Sequence[Path] | None, out: Path | None = None, *inputs: Path | None) -> Model:
    """-> the model of a command that reads `inputs`, too, and writes `out`: which may cost nobody a file of theirs."""
    from ipll.own.model import Model
    from ipll.own.writing import check_harmless

    model = Model.load(folder, plugins=plugins or ())
    if out is not None:
        check_harmless(out, model, filter(None, inputs))
    return model


def show_choices(model: Model, before: Model | None = None) -> None:
    """Prints the settings that were chosen, or those that an update chose otherwise than `before`."""
    last = {} if before is None else {setting: value for setting, value, _ in before.choices()}
    rows = [(setting, value, why) for setting, value, why in model.choices() if last.get(setting) != value]
    if rows:
        table = Table("setting", "value", "why", title="Settings chosen from the data")
        for setting, value, why in rows:
            table.add_row(cell(setting), cell(value), cell(why))
        show(table)
    if model.given and before is None:
        say("Set by you: " + ", ".join(f"{key}={value}" for key, value in model.given.items()))


def next_lines(model: Model, folder: Path, *, table: bool, votes: bool) -> list[str]:
    """-> the commands that come next, to be copied."""
    name = shlex.quote(str(folder))
    more = " ".join((["NEXT_TABLE"] if table else []) + (["--votes NEXT_VOTES"] if votes else []))
    source = "FOLDER_OF_IMAGES" if model.takes == "images" else "OTHER_TABLE"
    plugins = plugin_options(model.config.plugins)
    return [
        "Next:",
        f"  ipll audit {name} --out audit.html{plugins}",
        f"  ipll predict {name} {source} --out predictions.csv{plugins}",
        f"  ipll update {name} {more}{plugins}",
    ]
