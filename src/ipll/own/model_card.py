"""A model card (Mitchell et al., 2019): what a model learnt from, how good it is as far as that is known, what it is
not good for. Only what the model keeps is told, and what a table with labels shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipll.errors import DataError
from ipll.messages import batches, counted
from ipll.own.certainty import FLAGGED
from ipll.own.decisions import told
from ipll.own.markdown import plain_text, table
from ipll.own.model import Model
from ipll.own.prediction import Bin, Evaluation, calibration, calibration_error
from ipll.own.reading.samples import Samples

FEW = 20  # samples settled on a class: fewer are told
DOUBTFUL = 0.2  # share of a class's labels that are expected to be wrong: more is told
CONFUSED = 10  # pairs of classes
Z = 1.959964  # of a 95 % interval


def card(
    model: Model, *, name: str = "", saved: str = "", evaluation: Evaluation | None = None, source: str = ""
) -> str:
    """-> the card as Markdown. `evaluation` is on samples of `source`, which were not learnt from."""
    parts = (
        _what(model, name, saved), _data(model), _classes(model), _settings(model), _scores(model, evaluation, source),
        _calibration(model, evaluation), _not_for(model, evaluation), _decisions(model),
    )  # fmt: skip
    return "\n".join(line for part in parts for line in part) + "\n"


def saved_when(folder: Path) -> str:
    """-> the day on which a model's folder was written last, in UTC."""
    return f"{datetime.fromtimestamp((folder / 'model.json').stat().st_mtime, UTC):%Y-%m-%d}"


def held_out(model: Model, samples: Samples) -> Samples:
    """-> the samples that were not learnt from, by their ids; a DataError where there is none."""
    rows = unlearnt(model, samples)
    if not rows:
        raise DataError(
            f"{samples.source}: all of these samples were learnt from, which says nothing of others. Name other ones."
        )
    return samples.take(np.array(rows, np.int64))


def unlearnt(model: Model, samples: Samples) -> list[int]:
    """-> which of the samples were not learnt from, by their ids."""
    learnt = set(model.records.ids)
    return [i for i, name in enumerate(model.records.ids_of(samples, 0)) if name not in learnt]


def wilson(hits: int, n: int) -> tuple[float, float]:
    """-> the 95 % interval of a share, by Wilson: right also where n is small, or the share near 0 or 1."""
    share, z2 = hits / n, Z * Z
    middle, half = share + z2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))


def _what(model: Model, name: str, saved: str) -> Iterator[str]:
    yield f"# Model card: {plain_text(name or 'a model')}"
    yield ""
    kind = f"{model.shape[0]:,} features"
    if model.kind == "images":
        kind = f"{'grey' if model.shape[0] == 1 else 'colour'} images of {model.shape[1]} x {model.shape[2]} pixels"
    if through := model.through:
        kind = f"photos, seen through the pretrained network {plain_text(through.name)}"
    config = model.config
    saved = plain_text(model.history[-1].when[:10]) if model.history else saved
    yield (
        f"Says which of {len(model.names):,} classes a sample is of ({kind}). Learnt with the method "
        f"{plain_text(config.method)} of ipll, seed {config.seed}, from {counted(len(model.records), 'sample')} in "
        f"{batches(model.updates)}, each with a set of labels that it may have."
        + f" Last changed on {saved}, written up on {datetime.now(UTC):%Y-%m-%d}."
        * bool(saved)
    )


def _data(model: Model) -> Iterator[str]:
    records, sizes = model.records, np.diff(model.records.offsets)
    when = {one.update: one.when for one in reversed(model.history)}  # the first of each number brought its samples
    rows = []
    for update in np.unique(records.update).tolist():
        here = np.flatnonzero(records.update == update)
        sources = Counter(records.source[i] for i in here.tolist())
        names = ", ".join(Path(source).name or source for source in sources)
        one = int((sizes[here] == 1).sum())
        rows.append((
            update, _told(when.get(update)), names, f"{len(here):,}", f"{sizes[here].mean():.2f}", f"{one:,}"
        ))  # fmt: skip
    yield from ("", "## Data", "")
    yield from table(("batch", "learnt (UTC)", "source", "samples", "candidates per sample", "with only one"), rows)
    said = [one for one in model.history if one.decided]
    if said:
        files = (f"{plain_text(one.decisions)} ({one.decided:,}) on {plain_text(_told(one.when))}" for one in said)
        yield from ("", f"Decisions of people came in {', '.join(files)}.")
    kept = int(records.in_memory.sum())
    yield from ("", f"The model's folder keeps {counted(kept, 'sample')} to go on learning, and all ids and labels.")


def _classes(model: Model) -> Iterator[str]:
    records, n = model.records, len(model.names)
    settled, candidate = np.bincount(records.label, minlength=n), np.bincount(records.codes, minlength=n)
    wrong = _expected_wrong(model)
    rows = [
        (
            model.names[c],
            f"{candidate[c]:,}",
            f"{settled[c]:,}",
            f"{wrong[c]:,.1f}" if model.config.model.folds else "not judged",
            "yes" if model.known[c] else "not yet",
        )
        for c in np.argsort(-settled, kind="stable").tolist()
    ]
    yield from ("", "## Classes", "")
    yield from table(("class", "candidate of", "settled on", "of these expected to be wrong", "known"), rows)


def _settings(model: Model) -> Iterator[str]:
    yield from ("", "## Settings, and why", "")
    yield from table(("setting", "value", "why"), model.choices())
    if model.given:
        given = ", ".join(f"{key}={value}" for key, value in model.given.items())
        yield from ("", f"Set by hand: {plain_text(given)}.")


def _scores(model: Model, evaluation: Evaluation | None, source: str) -> Iterator[str]:
    yield from ("", "## How good it is", "")
    records = model.records
    if evaluation is not None:
        hits = round(evaluation.accuracy * evaluation.samples)
        yield (
            f"- Accuracy {_share(hits, evaluation.samples)} on {evaluation.samples:,} samples of "
            f"{plain_text(Path(source).name)} that were not learnt from; balanced over classes "
            f"{100 * evaluation.balanced_accuracy:.1f} %."
        )
        low = [row for row in evaluation.per_class if row.samples and row.recall is not None]
        yield from ("", *table(
            ("class", "samples", "recall", "predicted", "most often taken for"),
            [
                (row.name, f"{row.samples:,}", _share(round((row.recall or 0) * row.samples), row.samples),
                 f"{row.predicted:,}", row.taken_for)
                for row in low
            ],
        ), "")  # fmt: skip
    else:
        yield "- Predictions were not evaluated for this card: name a table with labels that were not learnt from."
    yield from _earlier_scores(model)
    if model.config.model.folds:
        wrong, n = float((1 - records.confidence).sum()), len(records)
        spread = math.sqrt(float((records.confidence * (1 - records.confidence)).sum()))
        yield (
            f"- Labels that were settled on: {wrong:,.0f} of {n:,} ({100 * wrong / max(n, 1):.1f} %) are expected "
            f"to be wrong, give or take {Z * spread:,.0f} (95 %, if they err independently), judged by networks that "
            "had not learnt from the sample. No true label was used."
        )
        if model.missed:
            yield (
                f"- Of the last batch, the candidates of about {100 * model.missed:.2g} % of the samples seem to miss "
                "the true label: networks that had not learnt from them expect another class."
            )
    else:
        yield "- How many of the labels settled on are wrong was not checked on held-out samples."
    right = _given_right(model)
    if len(right):
        yield (
            f"- True labels came with {counted(len(right), 'sample')} that were learnt from, and were not used: "
            f"{_share(int(right.sum()), len(right))} are what was settled on."
        )


def _earlier_scores(model: Model) -> Iterator[str]:
    """What was measured as the model learnt, on rows that its tables kept for testing."""
    for one in model.history:
        if one.score is not None:
            score, when = one.score, "the fit" if one.update == 1 else f"update {one.update - 1}"
            since = f" ({counted(ago, 'update')} ago)" if (ago := model.updates - one.update) else ""
            yield (
                f"- Measured after {when}{since}, on {plain_text(_told(one.when))}: accuracy "
                f"{_share(score.right, score.samples)} on {counted(score.samples, 'test row')} of "
                f"{plain_text(one.source)}, balanced over classes {100 * score.balanced_accuracy:.1f} %, calibration "
                f"error {100 * score.calibration_error:.1f} %."
            )


def _told(when: str | None) -> str:
    """-> '2026-01-31 12:00' of a time in UTC; models of older versions do not have it."""
    return when[:16].replace("T", " ") if when else "not kept"


def _calibration(model: Model, evaluation: Evaluation | None) -> Iterator[str]:
    yield from ("", "## Calibration", "")
    if model.config.model.folds:
        yield f"- The temperature ({model.temperature:.3g}) makes the candidate sets of held-out samples most likely."
    else:
        yield (
            f"- The temperature ({model.temperature:.3g}) was fitted on labels that the model itself settled on: "
            "probabilities are too high for samples that it has not seen."
        )
    if evaluation is not None:
        yield f"- Expected calibration error of predictions {100 * evaluation.calibration_error:.1f} % (15 bins)."
        yield from ("", *_bins(evaluation.bins))
        return
    rows = [i for i, given in enumerate(model.records.given) if given]
    if rows:
        confidence, right = model.records.confidence[rows], _given_right(model)
        yield f"- Of settled labels, expected calibration error {100 * calibration_error(confidence, right):.1f} %."
        yield from ("", *_bins(calibration(confidence, right)))
    else:
        yield "- Not measured: there are no true labels to compare with."


def _bins(bins: tuple[Bin, ...]) -> list[str]:
    rows = [
        (f"{100 * b.low:.0f} to {100 * b.high:.0f}", f"{b.samples:,}", f"{100 * b.confidence:.1f}",
         f"{100 * b.accuracy:.1f}")
        for b in bins
    ]  # fmt: skip
    return table(("confidence in %", "samples", "mean confidence in %", "right in %"), rows)


def _not_for(model: Model, evaluation: Evaluation | None) -> Iterator[str]:
    """What the model should not be asked, each with its reason."""
    records, n, names = model.records, len(model.names), [plain_text(name) for name in model.names]
    settled, candidate = np.bincount(records.label, minlength=n), np.bincount(records.codes, minlength=n)
    wrong = _expected_wrong(model) / np.maximum(settled, 1)
    remarks = [
        ("never predicted, since no sample settled on it (a candidate so many times)",
         [f"{names[c]} ({candidate[c]:,})" for c in np.flatnonzero((settled == 0) & (candidate > 0))]),
        ("not known yet, since too few samples settled on it",
         [names[c] for c in np.flatnonzero(~model.known & (settled > 0))]),
        (f"few samples (fewer than {FEW})",
         [f"{names[c]} ({settled[c]:,})" for c in np.flatnonzero((settled > 0) & (settled < FEW) & model.known)]),
        ("no sample tells them apart, since they are always candidates together",
         [" and ".join(map(plain_text, group)) for group in model.twins()]),
        ("often confused", list(_confused(model, evaluation))),
    ]  # fmt: skip
    if model.config.model.folds:
        doubtful = np.flatnonzero((wrong > DOUBTFUL) & (settled > 0))
        remarks.append((f"more than {100 * DOUBTFUL:.0f} % of its labels are expected to be wrong",
                     [f"{names[c]} ({100 * wrong[c]:.0f} %)" for c in doubtful]))  # fmt: skip
    yield from ("", "## What it is not good for", "")
    for reason, which in remarks:
        if which:
            yield f"- {reason[0].upper()}{reason[1:]}: {', '.join(which)}."
    share = f"{100 * FLAGGED:.0f} %" if model.config.model.folds else "1 %"
    yield (
        f"- Classes that are not listed above: it names one of those that it knows. What is far from all of them is "
        f"called unlike anything seen, as are about {share} of known kinds."
    )


def _confused(model: Model, evaluation: Evaluation | None) -> Iterator[str]:
    """-> pairs of classes: of the evaluation, or else of settled labels and the true ones that came with samples."""
    if evaluation is not None:
        for row in evaluation.per_class:
            if row.taken_for and row.recall is not None and row.recall < 1 - DOUBTFUL:
                yield f"{plain_text(row.name)} for {plain_text(row.taken_for)} (recall {100 * row.recall:.0f} %)"
        return
    labels = model.records.labels(model.names)
    pairs = Counter(
        (given, said) for given, said in zip(model.records.given, labels, strict=True) if given != said and given
    )
    for (given, said), count in pairs.most_common(CONFUSED):
        if count > 1:
            yield f"{plain_text(given)} for {plain_text(said)} ({count:,} samples)"


def _decisions(model: Model) -> Iterator[str]:
    """How decisions of people changed it, where there are any."""
    if not model.decisions:
        return
    found = told(model.decisions)
    people = ", ".join(f"{plain_text(who or 'somebody')} ({n:,})" for who, n in found.by.items())
    what = found.words()
    yield from ("", "## Decided by people", "")
    yield f"- {counted(found.samples, 'sample')}, by {people}{': ' if what else ''}{what}."
    if found.missed:
        yield f"- Of these, the class was not among the candidates: {found.missed:,}."


def _expected_wrong(model: Model) -> npt.NDArray[np.float64]:
    """-> how many of the samples that settled on each class are expected to be of another [classes]."""
    records = model.records
    wrong = np.zeros(len(model.names))
    np.add.at(wrong, records.label, 1.0 - records.confidence)
    return wrong


def _given_right(model: Model) -> npt.NDArray[np.bool_]:
    """-> of the samples that came with a true label, whether that was settled on."""
    pairs = zip(model.records.given, model.records.labels(model.names), strict=True)
    return np.array([given == label for given, label in pairs if given], np.bool_)


def _share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{100 * hits / n:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})"
