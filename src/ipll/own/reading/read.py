"""A table with one row per sample: an image or features, and the candidates."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ipll.errors import DataError
from ipll.own.reading.columns import NO_CANDIDATES, candidate_sets, text_column, with_any
from ipll.own.reading.features import Features, feature_matrix
from ipll.own.reading.images import Images, image_files, to_be_found
from ipll.own.reading.problems import Problems
from ipll.own.reading.samples import Samples, checked, duplicates, stop_at, with_candidates
from ipll.own.reading.separators import check_separator, other_separator
from ipll.own.reading.tables import Table, check_names, open_table

TEXT = ("id", "image", "candidates", "label", "split")
ADVICE = "Name feature columns 'features.NAME'; remove what is neither."


def read_table(
    path: str | Path,
    *,
    skip_bad: bool = False,
    image_size: int | None = None,
    allow_one_class: bool = False,
    unlabelled: bool = False,
    known: Iterable[str] = (),
    classes: Iterable[str] = (),
) -> Samples:
    """-> the samples of a CSV, TSV, Parquet, JSON Lines, .mat or .npz file. What is wrong with it is a DataError.

    skip_bad: samples whose image is missing or broken are left out and listed in `skipped`.
    image_size: decodes the images at once, to this size; without it, `Samples.decoded` does so later.
    allow_one_class: one class is enough (an update may bring just one).
    unlabelled: candidates may be missing (to predict, or to evaluate by `label`).
    known: the features of a model that the samples are for (`Model.feature_names`): what is a word there is one here.
    classes: its classes (`Model.names`), for which the candidate '*' stands, too.
    """
    table = open_table(Path(path), TEXT)
    problems = table.problems()
    samples, broken = gather(table, problems, unlabelled=unlabelled, known=known, classes=classes)
    if not unlabelled:
        check_separator(table, samples, classes)
    return accept(samples, broken, problems, skip_bad, image_size, allow_one_class)


def gather(
    table: Table, problems: Problems, *, unlabelled: bool, known: Iterable[str] = (), classes: Iterable[str] = ()
) -> tuple[Samples, dict[int, str]]:
    """-> all samples of a table, and the images that are missing or broken. What else is wrong goes to `problems`."""
    columns = table.columns
    if {"sample", "annotator", "label"} <= set(columns):
        raise DataError(
            f"{table.path} holds votes, by its columns. Give it as such: --votes {table.path} (read_votes)."
        )
    check_names(table, {*TEXT, "features", *(name for name in columns if name.startswith("features."))}, ADVICE)
    _check_kind(table)
    if "candidates" not in columns and not unlabelled:
        what = "array 'candidates'" if table.word == "sample" else "column 'candidates'"
        how = "a matrix of 0 and 1" if table.word == "sample" else "a list, or text such as 'robin|sparrow'"
        raise DataError(f"{table.path}: no {what}. Add one: {how}.")
    rows = table.rows
    broken: dict[int, str] = {}
    images: Images | None = None
    features = Features(None, (), (), [])
    ids = [str(row) for row in rows.tolist()]
    if "image" in columns:
        ids = text_column(table, "image")
        folder = str(table.path.parent)
        images, broken = image_files([os.path.join(folder, name) for name in ids])
        broken = {index: reason + to_be_found(folder, ids[index]) for index, reason in broken.items()}
        broken |= {index: "no image is named" for index, name in enumerate(ids) if not name}
    else:
        features = feature_matrix(table, problems, known)
    if "id" in columns:
        ids = text_column(table, "id")
        problems.add((row for row, name in zip(rows, ids, strict=True) if not name), "no id", "Give each row an id.")
    remedy = "Each sample has an id of its own." if "id" in columns else "Without a column 'id', the image is the id."
    duplicates(ids, rows, problems, remedy)
    samples = replace(
        Samples.bare(str(table.path), ids, rows, table.word),
        features=features.matrix,
        feature_names=features.names,
        words=features.words,
        images=images,
        warnings=table.notes + features.notes,
        numbered_in=None if {"id", "image"} & set(columns) else str(table.path),
        split=text_column(table, "split") if "split" in columns else None,
    )
    if "label" in columns:
        samples = replace(samples, label_names=text_column(table, "label"))
    if "candidates" in columns:
        samples = with_candidates(samples, *with_any(*candidate_sets(table), samples.learnt_from, classes))
        if not unlabelled:
            problems.add(rows[~samples.candidates.any(1)], "no candidates", NO_CANDIDATES)
        samples = replace(samples, warnings=samples.warnings + other_separator(samples))
    return samples, broken


def accept(
    samples: Samples,
    broken: dict[int, str],
    problems: Problems,
    skip_bad: bool,
    image_size: int | None,
    allow_one_class: bool,
) -> Samples:
    """-> the samples that can be used, after all that can be wrong with them was found to be right."""
    stop_at({} if skip_bad else broken, samples.rows, problems)
    samples = samples.without(broken)
    if image_size is not None:
        samples = samples.decoded(image_size, skip_bad=skip_bad)
    return checked(samples, allow_one_class)


def _check_kind(table: Table) -> None:
    """A sample is an image, or a list of features, or columns of features: one of them."""
    single = next((name for name in table.columns if name.startswith("features.")), None)
    kinds = [name for name in ("image", "features", single) if name in table.columns]
    if not kinds:
        raise DataError(
            f"{table.path}: neither images nor features. Add a column 'image' (paths from the table's folder), columns "
            "'features.NAME', or a list column 'features'."
        )
    if len(kinds) > 1:
        raise DataError(f"{table.path}: both '{kinds[0]}' and '{kinds[1]}'. Keep one of them: a sample is one thing.")
