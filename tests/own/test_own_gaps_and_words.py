"""Tables as people have them: numbers are missing, and columns hold words."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from irises import QUICK, rows_of, write_csv
from sklearn.datasets import load_iris

from ipll import IncrementalClassifier
from ipll.errors import DataError
from ipll.own import Model, Samples, from_arrays, read_table
from ipll.own.inputs import matched, statistics
from ipll.own.reading.features import MOST_WORDS

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
SETTINGS: dict[str, Any] = {"train.epochs": 6, "model.width": 16, "train.threads": 1}
MEADOW = ("wet", "dry", "alpine")


def gappy() -> np.ndarray[Any, np.dtype[np.float32]]:
    x = X.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    x[np.isnan(x).all(1), 0] = 5
    return x


@cache
def fitted() -> Model:
    return Model.fit(from_arrays(gappy(), Y), device="cpu", settings=SETTINGS)


def flowers(path: Path, rows: range, words: tuple[str, ...] = MEADOW, label: bool = True) -> Path:
    """Two numbers, some missing, and where the flower grows, of which nothing else tells."""
    told = [
        {"id": f"f{i}", "features.a": "" if i % 7 == 0 else X[i, 0], "features.place": words[Y[i]] if i % 5 else "",
         "features.b": "NA" if i % 11 == 3 else X[i, 1]}
        | ({"candidates": f"{Y[i]}|{(Y[i] + 1) % 3}" if i % 2 else str(Y[i])} if label else {})
        for i in rows
    ]  # fmt: skip
    return write_csv(path, told)


# Gaps


def test_a_missing_number_counts_as_the_mean_of_the_first_table() -> None:
    x, model = gappy(), fitted()
    mean = np.nanmean(x.astype(np.float64), axis=0)
    np.testing.assert_allclose(model.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(model.std, np.nanstd(x.astype(np.float64), axis=0), rtol=1e-6)
    full = Model.fit(from_arrays(np.where(np.isnan(x), mean.astype(np.float32), x), Y), device="cpu", settings=SETTINGS)
    other = X[:3].copy()
    other[0, 1] = other[1, 2] = np.nan
    said = model.predict(from_arrays(other), device="cpu").probabilities
    there = np.where(np.isnan(other), np.array(model.mean, np.float32), other)
    assert np.array_equal(said, model.predict(from_arrays(there), device="cpu").probabilities)
    assert full.records.label.tolist() == model.records.label.tolist()
    later = from_arrays(np.where(np.isnan(x), np.nan, x)[::3] + 0.1, Y[::3], ids=[f"later {i}" for i in range(50)])
    assert np.isfinite(model.update(later, device="cpu").predict(from_arrays(X), device="cpu").probabilities).all()


def test_statistics_without_gaps_are_what_they_were() -> None:
    mean, std = statistics(X)
    assert mean == tuple(X.astype(np.float64).sum(0) / len(X))
    np.testing.assert_allclose(std, X.astype(np.float64).std(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.__setitem__((3, 1), np.inf), "sample 3: an infinite"),
        (lambda x: x.__setitem__(3, np.nan), "sample 3: no number at all"),
    ],
)
def test_numbers_that_are_none(change: Any, said: str) -> None:
    x = X.copy()
    change(x)
    with pytest.raises(DataError, match=said):
        from_arrays(x, Y)


def test_a_feature_of_which_all_numbers_are_missing() -> None:
    x = X.copy()
    x[:, 2] = np.nan
    with pytest.raises(DataError, match=r"has a number for '2'\. Remove the column"):
        Model.fit(from_arrays(x, Y), device="cpu", settings=SETTINGS)
    assert np.isfinite(fitted().predict(from_arrays(x), device="cpu").probabilities).all()


def test_the_estimator_takes_gaps() -> None:
    model = IncrementalClassifier(epochs=6, random_state=0).fit(gappy(), Y)
    assert (model.predict(gappy()) == Y).mean() > 0.8
    with pytest.raises(ValueError, match="infinity"):
        model.predict(np.full((1, 4), np.inf))


# Words


def test_each_word_of_a_column_is_a_feature(tmp_path: Path) -> None:
    samples = read_table(flowers(tmp_path / "t.csv", range(150)))
    assert samples.feature_names == ("a", "place=alpine", "place=dry", "place=wet", "b")
    assert samples.words == ("place",)
    assert samples.features is not None
    for i, row in enumerate(rows_of(tmp_path / "t.csv")):
        place = row["features.place"]
        assert samples.features[i, 1:4].tolist() == [place == word for word in sorted(MEADOW)]
        assert np.isnan(samples.features[i, 0]) == (row["features.a"] == "")
        assert np.isnan(samples.features[i, 4]) == (row["features.b"] == "NA")
    words, gaps = samples.warnings
    assert "columns of words, and how many words: 'place' (3). Each word becomes a feature." in words
    missing = int(np.isnan(samples.features).sum())
    assert f"{missing} of 300 numbers are missing, 22 of them in 'a'. Each counts as the mean" in gaps


def test_parquet_with_categories(tmp_path: Path) -> None:
    places = pa.array([MEADOW[y] for y in Y]).dictionary_encode()
    table = pa.table({"features.a": X[:, 0], "features.place": places, "candidates": [str(y) for y in Y]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").feature_names == ("a", "place=alpine", "place=dry", "place=wet")


def test_words_teach_and_later_tables_may_have_others(main: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    first, later = flowers(Path("first.csv"), range(0, 150, 2)), flowers(Path("later.csv"), range(1, 150, 2))
    status, out, err = main("fit", first, "--out", "m", *QUICK)
    assert status == 0, err
    assert "75 samples of 5 features" in out
    assert "Warning: first.csv: columns of words, and how many words: 'place' (3)" in err
    odd = flowers(Path("odd.csv"), range(1, 150, 2), words=("bog", "dry", "alpine"), label=False)
    status, out, err = main("predict", "m", odd, "--out", "p.csv", "--device", "cpu")
    assert status == 0, err
    assert "words that the model does not know are ignored: 'place=bog'." in err
    right = [row["class"] == str(Y[int(row["id"][1:])]) for row in rows_of(Path("p.csv"))]
    assert np.mean(right) > 0.7
    assert main("update", "m", later, "--device", "cpu").status == 0
    assert Model.load("m").feature_names == ("a", "place=alpine", "place=dry", "place=wet", "b")


def test_words_of_rows_that_are_not_learnt_from_are_not_known(main: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_of(flowers(Path("all.csv"), range(150)))
    write_csv(Path("t.csv"), [row | {"split": "test" if i % 3 == 0 else "", "label": str(Y[i]),
        "features.place": "desert" if i == 0 else row["features.place"]} for i, row in enumerate(rows)])  # fmt: skip
    status, out, err = main("fit", "t.csv", "--out", "m", *QUICK)
    assert status == 0, err
    assert "does not know are ignored: 'place=desert'" in err
    assert "on 50 rows of the split 'test'" in out
    assert "place=desert" not in Model.load("m").feature_names


def placed(model_names: tuple[str, ...], names: tuple[str, ...], words: tuple[str, ...], values: Any) -> Samples:
    samples = from_arrays(np.array(values, np.float32))
    given = replace(samples, feature_names=names, words=words)
    return matched(given, "features", (len(model_names),), model_names, (9.0,) * len(model_names))


def test_words_are_put_where_the_model_has_them() -> None:
    known = ("a", "p=x", "p=y")
    found = placed(known, ("p=y", "a"), ("p",), [[1, 2], [0, np.nan]])
    assert found.features is not None
    assert found.features.tolist() == [[2, 0, 1], [9, 0, 0]]
    found = placed(known, ("p", "a"), (), [[np.nan, 2]])  # a column of which all is empty
    assert found.features is not None
    assert found.features.tolist() == [[2, 0, 0]]
    with pytest.raises(DataError, match="lacks 'p=x'"):
        placed(known, ("a", "q=x"), ("q",), [[1, 2]])
    with pytest.raises(DataError, match="adds 'p'"):
        placed(known, ("a", "p"), (), [[1, 2]])


def test_what_a_model_has_words_for_is_words_in_every_table(main: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A table of one row is enough to predict: what its cells look like does not decide."""
    monkeypatch.chdir(tmp_path)
    grades = ("A", "B", "7")
    write_csv(
        Path("t.csv"), [{"features.a": X[i, 0], "features.g": grades[Y[i]], "candidates": Y[i]} for i in range(150)]
    )
    assert main("fit", "t.csv", "--out", "m", *QUICK).status == 0
    for a, grade, status in (("5.0", "7", 0), ("None", "7", 0), ("", "A", 0), ("5", "?", 0), ("red", "A", 2)):
        write_csv(Path("one.csv"), [{"features.a": a, "features.g": grade}])
        found = main("predict", "m", "one.csv", "--device", "cpu")
        assert found.status == status, (a, grade, found.err)
    assert "'features.a' is the text 'red', among numbers" in found.err
    mostly = [{"features.a": 5, "features.g": "7" if i else "A", "candidates": 1, "id": f"n{i}"} for i in range(9)]
    assert main("update", "m", write_csv(Path("mostly.csv"), mostly), "--device", "cpu").status == 0


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("12,5", "13,1", "9,0"), "numbers with a decimal comma. Save them with points"),
        (("12,5", "1,000", "9,0"), "numbers with a decimal comma. Save them with points"),
        (("0,875", "1,250", "1,125"), "numbers with a decimal comma. Save them with points"),
        (tuple(f"1,{i:03}" for i in range(60)), r"'1,000' .* separators of thousands; if they are decimal commas"),
        (("1,000,000", "-2,500", "31,415.9"), "Remove the separators of thousands"),
        (("01/02/2024", "3/2/2024", "04/02/2024"), "dates. Turn them into numbers"),
        (("12%", "9 %", "-3.5%", ""), "'-3.5%' .* numbers with a unit or sign. Write plain numbers"),
        (("$4", "-$12.50", "$1,200"), "numbers with a unit or sign"),
        (("€ 12", "€7", "NA"), "numbers with a unit or sign"),
        (("3.5 cm", "12cm", "0,7 cm", "12"), "'0,7 cm' .* numbers with a unit or sign"),
        (("1.5 kg/m2", "2 kg/m2"), "numbers with a unit or sign"),
        (
            tuple(f"seen by {i}" for i in range(20)),
            r"in column 'features\.b' each row has a text of its own.* call it 'id'",
        ),
        (tuple(f"{'ab'[i % 2]}{i}" for i in range(300)), "each row has a text of its own"),
    ],
)
def test_what_is_no_word(cells: tuple[str, ...], said: str, tmp_path: Path) -> None:
    rows = [{"features.a": i, "features.b": cell, "candidates": i % 2} for i, cell in enumerate(cells)]
    with pytest.raises(DataError, match=said):
        read_table(write_csv(tmp_path / "t.csv", rows))


@pytest.mark.parametrize(
    "cells",
    [
        ("10-19", "20-29", "30-39"),
        ("S1", "S2", "S3"),
        ("4a", "4b", "12a", "wood"),
        ("<1", "1 to 5", ">5"),
        ("4wd", "fwd", "rwd"),
        tuple(f"place {i}" for i in range(19)),
        tuple(f"place {i % 19}" for i in range(20)),
        (*(f"place {i}" for i in range(20)), ""),
    ],
)
def test_what_is_a_word(cells: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"features.a": i, "features.b": cell, "candidates": i % 2} for i, cell in enumerate(cells)]
    assert read_table(write_csv(tmp_path / "t.csv", rows)).words == ("b",)


def test_what_a_model_has_words_for_may_look_like_anything(tmp_path: Path) -> None:
    for cells in (("2wd", "4wd"), ("1,5", "1,6"), tuple(f"place {i}" for i in range(30))):
        rows = [{"features.a": i, "features.b": cell} for i, cell in enumerate(cells)]
        table = write_csv(tmp_path / "t.csv", rows)
        assert read_table(table, unlabelled=True, known=("a", "b=fwd", "b=rwd")).words == ("b",)


def test_gaps_of_words_and_of_whole_rows(tmp_path: Path) -> None:
    rows = [
        {"features.a": 1, "features.p": word, "candidates": k % 2}
        for k, word in enumerate(["x", "y", "NA", "?", "none"])
    ]
    assert read_table(write_csv(tmp_path / "t.csv", rows)).feature_names == ("a", "p=none", "p=x", "p=y")
    rows[1] |= {"features.a": "", "features.p": "n/a"}
    with pytest.raises(DataError, match="row 3: no feature has a number"):
        read_table(write_csv(tmp_path / "t.csv", rows))


def test_two_features_of_one_name(tmp_path: Path) -> None:
    rows = [{"features.x": word, "features.x=a": 1, "candidates": word} for word in "ab"]
    with pytest.raises(DataError, match="two features would be called 'x=a'"):
        read_table(write_csv(tmp_path / "t.csv", rows))


def test_a_class_that_looks_like_a_gap_is_told(tmp_path: Path) -> None:
    rows = [{"features.a": i, "candidates": name} for i, name in enumerate(("x", "NA", "x|NA"))]
    warnings = read_table(write_csv(tmp_path / "t.csv", rows)).warnings
    assert any("taken for classes like any other: 'NA' (2 times)" in w for w in warnings)


def test_too_many_words(tmp_path: Path) -> None:
    rows = [
        {"features.a": i, "features.note": f"note {i // 2}", "candidates": i % 2} for i in range(2 * MOST_WORDS + 1)
    ]
    with pytest.raises(DataError, match=r"'features\.note' holds 201 different texts, such as 'note 0'"):
        read_table(write_csv(tmp_path / "t.csv", rows))
