"""Tables of one's own: what is read from them."""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ipll.errors import DataError
from ipll.own import Samples, read_given, read_table, read_votes

Write = Callable[..., Path]

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="|", exclude_categories=("C", "Z")), min_size=1, max_size=8
).filter(lambda name: name != "*")  # which stands for all
SETS = st.lists(
    st.lists(NAMES | st.sampled_from(['"Robin", European', "a,b", "雀", "naïve"]), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


def sets_of(samples: Samples) -> list[set[str]]:
    return [{samples.names[k] for k in np.flatnonzero(row)} for row in samples.candidates]


def test_csv_with_features(write: Write) -> None:
    samples = read_table(
        write(
            "birds.csv",
            "id,features.width,features.height,candidates,label,split\n"
            "007,1,2.5, robin | sparrow |,robin,train\n"
            "008,-3,4e2,robin|crow|robin,jay,test\n",
        )
    )
    assert samples.ids == ["007", "008"]
    assert samples.names == ("robin", "sparrow", "crow")
    assert samples.candidates.tolist() == [[True, True, False], [True, False, True]]
    assert samples.features is not None
    assert samples.features.dtype == np.float32
    assert samples.features.tolist() == [[1, 2.5], [-3, 400]]
    assert samples.feature_names == ("width", "height")
    assert samples.split == ["train", "test"]
    assert samples.rows.tolist() == [2, 3]
    assert samples.images is None
    assert samples.votes is None
    assert samples.labels.tolist() == [0, -1]
    assert samples.label_names == ["robin", "jay"]
    assert samples.foreign_labels == {"jay": 1}
    assert any("'jay' (1)" in warning for warning in samples.warnings)


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "parquet"])
def test_lists_of_features_and_candidates(write: Write, ending: str) -> None:
    rows = [
        {"id": 5, "features": [1.0, 2.0], "candidates": ["2024-01-01", " b|c "]},
        {"id": 6, "features": [3.0, 4.5], "candidates": ["2024-01-01", "2024-01-01"]},
    ]
    samples = read_table(write(f"t.{ending}", rows))
    assert samples.ids == ["5", "6"]
    assert samples.names == ("2024-01-01", "b|c")
    assert samples.candidates.tolist() == [[True, True], [True, False]]
    assert samples.features is not None
    assert samples.features.tolist() == [[1, 2], [3, 4.5]]
    assert samples.rows.tolist() == [1, 2]


def test_json_objects_of_features_and_numbers_as_classes(write: Write) -> None:
    samples = read_table(
        write(
            "t.jsonl",
            '{"features": {"w": 1, "h": 2}, "candidates": [1, 2]}\n{"features": {"w": 3, "h": 4}, "candidates": [3]}\n',
        )
    )
    assert samples.feature_names == ("w", "h")
    assert samples.names == ("1", "2", "3")


def test_pandas_like_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "candidates": pa.array(["b|a", "a", "b|a"]).dictionary_encode(),
            "label": pa.array([1.0, None, 2.0]),
            "features.x": pa.array([1, 2, 3], pa.int8()),
            "features.y": pa.array([True, False, True]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    samples = read_table(tmp_path / "t.parquet")
    assert samples.names == ("b", "a")
    assert samples.label_names == ["1", "", "2"]
    assert samples.features is not None
    assert samples.features.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert samples.ids == ["1", "2", "3"]


@given(SETS)
@example([[","]])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_candidate_sets_survive(write: Write, ending: str, sets: list[list[str]]) -> None:
    """Any names, commas and quotes among them, come back from every format, in the order of first appearance."""
    content: Any = [{"features": [1.0], "candidates": one} for one in sets]
    if ending in ("csv", "tsv"):
        text = io.StringIO()
        writer = csv.writer(text, delimiter="," if ending == "csv" else "\t")
        writer.writerow(["features.x", "candidates"])
        writer.writerows([1.0, "|".join(one)] for one in sets)
        content = text.getvalue()
    samples = read_table(write(f"t.{ending}", content), allow_one_class=True)
    assert sets_of(samples) == [set(one) for one in sets]
    assert list(samples.names) == list(dict.fromkeys(name for one in sets for name in one))


def test_utf8_with_a_mark_and_class_names_that_look_empty(write: Write) -> None:
    samples = read_table(write("t.csv", "\ufefffeatures.x,candidates\r\n1,NA|Blaumeise\r\n2,null|Grünfink\r\n"))
    assert samples.names == ("NA", "Blaumeise", "null", "Grünfink")
    samples = read_table(write("t.jsonl", '\ufeff{"features": [1], "candidates": ["ä", "ö"]}\n'))
    assert samples.names == ("ä", "ö")


def test_spaces_and_empty_columns_of_a_spreadsheet(write: Write) -> None:
    text = "\ufeff id, features.x ,candidates ,label ,, \r\n007,1,a|b,b,,\r\n008,2,b,b,,\r\n"
    samples = read_table(write("t.csv", text))
    assert samples.ids == ["007", "008"]
    assert samples.feature_names == ("x",)
    assert samples.names == ("a", "b")
    assert samples.label_names == ["b", "b"]


EUROPE = (
    "\ufeffid;candidates;features.x;features.n;features.y;features.w\r\na;r|s;1,5;7;;wood\r\n\r\nb;s;-2,75;8;1;rock\r\n"
)


@pytest.mark.parametrize(("mark", "name"), [(";", "a semicolon (;)"), ("\t", "a tab")])
def test_tables_of_european_spreadsheets(write: Write, mark: str, name: str) -> None:
    path = write("t.csv", EUROPE.replace(";", mark))
    samples = read_table(path)
    assert samples.feature_names == ("x", "n", "y", "w=rock", "w=wood")
    np.testing.assert_array_equal(samples.features, [[1.5, 7, np.nan, 0, 1], [-2.75, 8, 1, 1, 0]])
    assert sets_of(samples) == [{"r", "s"}, {"s"}]
    assert samples.rows.tolist() == [2, 4]
    assert samples.warnings[0] == f"{path}: read with columns separated by {name} and decimal commas."
    plain = read_table(write("t.csv", EUROPE.replace(";", mark).replace("1,5", "1.5").replace("-2,75", "1000")))
    assert plain.warnings[0].endswith(f"read with columns separated by {name}.")
    assert plain.features[:, 0].tolist() == [1.5, 1000]  # type: ignore[index]


def test_a_decimal_comma_makes_all_commas_decimal(write: Write) -> None:
    samples = read_table(write("t.tsv", "features.x\tfeatures.y\tcandidates\n1,500\t1,5\ta\n2,25e3\t NA \tb\n"))
    np.testing.assert_array_equal(samples.features, [[1.5, 1.5], [2250, np.nan]])


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_packed_tables(write: Write, tmp_path: Path, ending: str) -> None:
    rows = [{"features": [k, k / 2], "candidates": ["a", "b"][: k + 1]} for k in range(3)]
    cells = "".join(f"{k},{k / 2},{'a|b' if k else 'a'}\n" for k in range(3)).replace(
        ",", "\t" if ending == "tsv" else ","
    )
    header = "features.0,features.1,candidates\n".replace(",", "\t" if ending == "tsv" else ",")
    plain = write(f"t.{ending}", rows if ending == "jsonl" else header + cells)
    packed = tmp_path / f"t.{ending}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read_table(plain), read_table(packed)
    np.testing.assert_array_equal(one.features, other.features)
    assert (one.names, one.ids, one.word) == (other.names, other.ids, other.word)
    assert one.candidates.tolist() == other.candidates.tolist()


def test_what_unpacks_to_more_than_fits(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("t.csv.gz", gzip.compress(b"features.x,candidates\n" + b"1,a\n" * 10**6))
    assert path.stat().st_size < 10**5
    monkeypatch.setattr("ipll.engine.machine.memory", lambda: 2 * 10**6)
    with pytest.raises(DataError, match=r"t\.csv\.gz would unpack to more"):
        read_table(path)


def test_rows_are_counted_as_a_spreadsheet_shows_them(write: Write) -> None:
    text = "features.x,candidates\n1,a|b\n\n2,c\n3,b\n\n"
    assert read_table(write("t.csv", text)).rows.tolist() == [2, 4, 5]
    assert read_table(
        write("t.jsonl", '\n{"features": [1], "candidates": "a|b"}\n\n{"features": [1], "candidates": "a"}')
    ).rows.tolist() == [2, 4]


def test_look_alike_names_are_warned_of(write: Write) -> None:
    text = "features.x,candidates,label\n1,Robin|ro bin|House  Sparrow,robin\n2,crow|house sparrow,crow\n"
    warnings = read_table(write("t.csv", text)).warnings
    assert any("'Robin', 'robin' differ" in warning for warning in warnings)
    assert any("'House  Sparrow', 'house sparrow' differ" in warning for warning in warnings)
    assert not any("ro bin" in warning or "crow" in warning for warning in warnings)


ANYTHING = """features.x,candidates,split
1,a|b,
2,*,train
3, * ,
4,b,
5,c,test
"""


def test_a_star_stands_for_all_classes_that_are_learnt(write: Write) -> None:
    train = read_given(write("t.csv", ANYTHING)).train
    assert (train.names, train.candidates[:3].tolist()) == (("a", "b"), [[True, True]] * 3)
    assert train.warnings == []
    more = read_given(write("t.csv", ANYTHING), update=True, classes=("b", "z")).train
    assert more.names == ("a", "b", "z")
    assert more.candidates.tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 1, 0]]
    lists = [{"features": [1.0], "candidates": ["a", "b"]}, {"features": [2.0], "candidates": ["*"]}]
    assert read_table(write("t.parquet", lists)).candidates.all()


def test_stars_alone_are_no_candidates(write: Write, refused: Callable[..., str]) -> None:
    assert "row 2: no candidates" in refused(read_table, write("t.csv", "features.x,candidates\n1,*\n2,*\n"))


def test_who_does_not_know_is_no_class(write: Write) -> None:
    rows = "1,a|b\n2,Don't  know\n3,don’t know\n4,?\n5,b|Unsure\n6,a|Unsure\n7,unknown island\n"
    warnings = read_table(write("t.csv", "features.x,candidates\n" + rows)).warnings
    found = next(warning for warning in warnings if "taken for classes like any other" in warning)
    assert "\"Don't  know\" (1 time), 'don’t know' (1 time), '?' (1 time), 'Unsure' (2 times)." in found
    assert "in a table '*'" in found
    votes = write("v.csv", "sample,annotator,label\nx,ann,a\nx,ben,b\ny,ann,unsure\ny,ben,a\n")
    warnings = read_votes(votes, samples=write("s.csv", "id,features.x\nx,1\ny,2\n")).warnings
    assert [w for w in warnings if "'unsure' (1 time)" in w and "leave these votes out" in w]


def test_lists_in_words_are_told_where_bars_are_known(write: Write) -> None:
    table = write("t.csv", "features.x,candidates\n1,a|b\n2,a or b\n3,b?\n4,salt and pepper\n")
    told = "\n".join(read_table(table).warnings)
    assert "taken for classes of their own: 'a or b', 'b?'. Candidates" in told
    with pytest.raises(DataError, match="'b or c' would be a class of its own beside 'b' and 'c'"):
        read_given(write("t.csv", "features.x,candidates\n1,b or c\n2,b\n"), update=True, classes=["c"])
    votes = write("v.csv", "sample,annotator,label\nx,ann,a\nx,ben,b\ny,ann,a/b\n")
    warnings = read_votes(votes, samples=write("s.csv", "id,features.x\nx,1\ny,2\n")).warnings
    assert [w for w in warnings if "taken for classes of their own: 'a/b'" in w]


def test_another_mark_between_candidates_is_warned_of(write: Write) -> None:
    samples = read_table(write("t.csv", "features.x,candidates\n1,a;b\n2,b;c\n"))
    assert samples.names == ("a;b", "b;c")
    assert any("';'" in warning and "'|'" in warning for warning in samples.warnings)


def test_tables_without_candidates(write: Write) -> None:
    """To predict and to evaluate, none are needed; the labels are there by name."""
    samples = read_table(write("t.csv", "features.x,label\n1,a\n2,\n"), unlabelled=True)
    assert samples.candidates.shape == (2, 0)
    assert samples.label_names == ["a", ""]
    assert samples.warnings == []
    samples = read_table(write("t.csv", "features.x,candidates\n1,a|b\n2,\n"), unlabelled=True)
    assert samples.candidates.tolist() == [[True, True], [False, False]]


def test_take_drops_the_classes_nobody_has(write: Write) -> None:
    samples = read_table(write("t.csv", "features.x,candidates,label,split\n1,a|b,a,train\n2,c|d,d,test\n3,d,x,test\n"))
    assert samples.split is not None
    part = samples.take(np.flatnonzero(np.array(samples.split) == "test"))
    assert part.names == ("c", "d")
    assert part.candidates.tolist() == [[True, True], [False, True]]
    assert part.labels.tolist() == [1, -1]
    assert part.rows.tolist() == [3, 4]
    assert part.features is not None
    assert part.features.tolist() == [[2], [3]]


def test_one_class_where_it_is_allowed(write: Write) -> None:
    assert read_table(write("t.csv", "features.x,candidates\n1,a\n"), allow_one_class=True).names == ("a",)


def test_a_large_table_is_read_in_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {f"features.{k}": rng.normal(size=100_000) for k in range(20)}
    names = np.array([f"class {k}" for k in range(50)])
    columns["candidates"] = ["|".join(row) for row in names[rng.integers(0, 50, (100_000, 3))]]
    pa_csv = pytest.importorskip("pyarrow.csv")
    pa_csv.write_csv(pa.table(columns), tmp_path / "t.csv")
    start = time.perf_counter()
    samples = read_table(tmp_path / "t.csv")
    assert time.perf_counter() - start < 5  # 0.5 s on two idle cores
    assert samples.candidates.shape == (100_000, 50)
    assert samples.features is not None
    np.testing.assert_array_equal(samples.features[:, 3], columns["features.3"].astype(np.float32))


def test_arrow_is_imported_only_for_tables() -> None:
    code = "import sys, ipll.own; ipll.own.from_arrays([[1.0], [2.0]], ['a', 'b']); sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
