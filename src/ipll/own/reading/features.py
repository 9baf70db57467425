"""The features of a table: numbers, of which some may be missing, and words, of which each value is a feature."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ipll.errors import DataError
from ipll.own.reading.columns import as_text, coded, is_list, is_text
from ipll.own.reading.problems import GAPS, NO_NUMBERS, Problems
from ipll.own.reading.samples import of_words
from ipll.own.reading.tables import Table

PREFIX = "features."
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
COMMA = re.compile(rf"[+-]?\d+,\d+|{THOUSANDS.pattern}")
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*")
UNIT = re.compile(r"(?![\d.,+-]+$)[+-]?([^\w\s.,+-]{0,2})\s*[+-]?\.?\d[\d.,]*+\s*([^\d\s]{1,8}\d?)?")
NOT_WORDS = {  # most words have one shape, and the same groups: the unit
    COMMA: "numbers with a decimal comma. Save them with points",
    DATE: "dates. Turn them into numbers, such as days, or remove the column",
    UNIT: "numbers with a unit or sign. Write plain numbers; where they are names, write a letter before them",
}
EITHER = "numbers. Remove the separators of thousands; if they are decimal commas, write points"
MOST_WORDS = 200  # different ones of a column
SEVERAL_ROWS = 20  # in so many, some words are there twice
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)


class Features(NamedTuple):
    matrix: npt.NDArray[np.float32] | None  # [n, d], NaN where a number is missing
    names: tuple[str, ...]
    words: tuple[str, ...]  # columns that hold words: of 'habitat' there are the features 'habitat=wood', ...
    notes: list[str]  # what becomes of words and gaps


def feature_matrix(table: Table, problems: Problems, known: Iterable[str] = ()) -> Features:
    """-> the features of all rows. Cells that are neither numbers nor words, and rows of gaps alone, are `problems`.

    `known` are the features of a model: its columns of words are of words here, too, and its numbers are numbers.
    """
    single = [name for name in table.columns if name.startswith(PREFIX)]
    known = frozenset(known)
    worded = {name.partition("=")[0] for name in known if "=" in name}
    decided = known | worded
    names: list[str] = []
    parts: list[npt.NDArray[np.float32]] = []
    words: list[str] = []
    for column in single:
        name = column.removeprefix(PREFIX)
        numbers, found = _read(table, column, problems, None if name not in decided else name not in known)
        words += [] if found is None else [name]
        names += [name] if found is None else [f"{name}={word}" for word in found]
        parts.append(numbers)
    matrix = np.concatenate(parts, axis=1) if single else _list_matrix(table, problems)
    if not single:
        names = list(map(str, range(matrix.shape[1])))
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{table.path}: two features would be called '{twice[0]}'. Rename a column.")
    _check_numbers(table, matrix, names, words, problems)
    notes = [] if known else [_told(str(table.path), words, names)] * bool(words)
    return Features(matrix, tuple(names), tuple(words), notes + gaps_told(str(table.path), matrix, names, words))


def _told(source: str, words: list[str], names: list[str]) -> str:
    counts = (f"'{word}' ({sum(name.startswith(f'{word}=') for name in names)})" for word in words)
    return f"{source}: columns of words, and how many words: {', '.join(counts)}. Each word becomes a feature."


def gaps_told(source: str, matrix: npt.NDArray[np.float32], names: list[str], words: Iterable[str] = ()) -> list[str]:
    """-> how many numbers are missing, where any are."""
    gaps = np.isnan(matrix).sum(0)
    if not gaps.any():
        return []
    most = int(gaps.argmax())
    numbers = len(matrix) * (~of_words(names, words)).sum()
    return [
        f"{source}: {gaps.sum():,} of {numbers:,} numbers are missing, {gaps[most]:,} of them in '{names[most]}'. Each "
        "counts as the mean of its feature in the first table that was learnt."
    ]


def _check_numbers(
    table: Table, matrix: npt.NDArray[np.float32], names: list[str], words: list[str], problems: Problems
) -> None:
    infinite = np.isinf(matrix)
    for row in np.flatnonzero(infinite.any(1)).tolist():
        reason = f"feature '{names[int(np.argmax(infinite[row]))]}' is infinite, or too large for a 32-bit float"
        problems.add([table.rows[row]], reason, "Correct these numbers, or leave them empty.")
    empty = (np.isnan(matrix) | (of_words(names, words) & (matrix == 0))).all(1)
    problems.add(table.rows[empty], "no feature has a number", "Fill in some, or leave these rows out.")


def _read(
    table: Table, name: str, problems: Problems, worded: bool | None
) -> tuple[npt.NDArray[np.float32], tuple[str, ...] | None]:
    """-> a column as numbers [n, 1], NaN where it is empty, and None; or 0 and 1 for each of its words [n, words], and
    these. Where it is not said, it is of words if most cells are no numbers; if not, those that are none are
    `problems`."""
    column = table.columns[name]
    if any(check(column.type) for check in NUMBERS) and not (worded and not pa.types.is_null(column.type)):
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is found later
            return column.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float32)[:, None], None
    if not (worded or is_text(column.type) or pa.types.is_dictionary(column.type)):
        raise DataError(f"{table.path}: column '{name}' holds {column.type}, not numbers. Convert it, or remove it.")
    codes, texts = coded(as_text(table, name, column))
    values = np.array([_number(text) for text in texts])
    odd = np.isnan(values) & [text.lower() not in NO_NUMBERS for text in texts]
    if worded is None and (worded := 2 * odd[codes].sum() > (odd | ~np.isnan(values))[codes].sum()):
        _check_words(table, name, codes, texts)
    if worded:
        return _one_for_each(table, name, codes, texts)
    for row in np.flatnonzero(odd[codes]).tolist():
        remedy = "Features are numbers, with a decimal point, or words; leave what is missing empty."
        problems.add([table.rows[row]], f"'{name}' is the text {texts[codes[row]]!r}, among numbers", remedy)
    with np.errstate(over="ignore"):
        return values[codes].astype(np.float32)[:, None], None


def _check_words(table: Table, name: str, codes: npt.NDArray[np.int64], texts: tuple[str, ...]) -> None:
    """A DataError where most texts are numbers or dates, or where each row has its own."""
    words = _words(texts)
    for shape, what in NOT_WORDS.items():
        found = [match for word in words if (match := shape.fullmatch(word))]
        if 2 * max(Counter(match.groups() for match in found).values(), default=0) > len(words):
            if shape is COMMA and all(THOUSANDS.fullmatch(match[0]) for match in found):
                what = EITHER
            raise DataError(f"{table.path}: column '{name}' holds {found[0][0]!r} and others like it: {what}.")
    if len(codes) >= SEVERAL_ROWS and len(words) == len(codes):
        raise DataError(
            f"{table.path}: in column '{name}' each row has a text of its own, such as {words[0]!r}, which says "
            "nothing of other rows. Remove the column, or call it 'id' if it names the rows."
        )


def _words(texts: Iterable[str]) -> list[str]:
    """In the order of the alphabet: rows may stand in any."""
    return sorted(text for text in texts if text.lower() not in GAPS)


def _one_for_each(
    table: Table, name: str, codes: npt.NDArray[np.int64], texts: tuple[str, ...]
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    words = _words(texts)
    if len(words) > MOST_WORDS:
        raise DataError(
            f"{table.path}: column '{name}' holds {len(words):,} different texts, such as {words[0]!r}. Words of a "
            f"column are features where there are up to {MOST_WORDS}: remove the column, or group them."
        )
    there = np.array([text == word for word in words for text in texts], np.float32).reshape(len(words), len(texts))
    return there.T[codes], tuple(words)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _list_matrix(table: Table, problems: Problems) -> npt.NDArray[np.float32]:
    """-> the list column 'features' as float32 [n, d]; lists of another length than most are `problems`."""
    column = table.columns["features"]
    if not is_list(column.type) or not any(check(column.type.value_type) for check in NUMBERS):
        raise DataError(
            f"{table.path}: column 'features' holds {column.type}, not lists of numbers. Lists need Parquet or JSON "
            "Lines; in a CSV, use one column per feature: 'features.width', 'features.height'."
        )
    widths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    if not widths.any():
        raise DataError(f"{table.path}: column 'features' holds empty lists only. Give each sample its numbers.")
    width = int(np.bincount(widths[widths > 0]).argmax())
    for row in np.flatnonzero(widths != width).tolist():
        reason = f"{widths[row]} features, but most have {width}"
        problems.add([table.rows[row]], reason, "Give all samples the same features.")
    if (widths != width).any():
        return np.zeros((len(widths), width), np.float32)
    values = pc.list_flatten(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        matrix: npt.NDArray[np.float32] = values.astype(np.float32).reshape(-1, width)
    return matrix
