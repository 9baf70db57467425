"""`ipll predict`, `evaluate`, `audit` and `info`, as they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from irises import NAMES, rows_of, write_csv


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_predictions_in_a_file(main: Any, model: Path, ending: str) -> None:
    file = Path(f"predictions.{ending}")
    status, out, err = main("predict", model, "first.csv", "--top", "2", "--out", file)
    assert status == 0, err
    assert f"Written to {file}: 103 predictions" in out
    rows: list[dict[str, Any]]
    if ending == "csv":
        rows = [dict(row) for row in rows_of(file)]
    elif ending == "parquet":
        rows = pq.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert list(rows[0]) == ["id", "class", "probability", "distance", "unlike", "class_2", "probability_2"]
    assert [row["id"] for row in rows] == [row["id"] for row in rows_of(Path("first.csv"))]
    for row in rows:
        assert {row["class"], row["class_2"]} == set(NAMES[:2])
        assert float(row["probability"]) + float(row["probability_2"]) == pytest.approx(1, abs=1e-5)
        assert float(row["probability"]) >= float(row["probability_2"])


def test_predictions_on_the_screen(main: Any, model: Path) -> None:
    status, out, _ = main("predict", model, "second.csv")
    assert status == 0
    assert sum("flower" in line for line in out.splitlines()) == 20
    assert "The first 20 of 37" in out


def test_what_is_unlike_anything_seen(main: Any, model: Path) -> None:
    """A flower of zero size, and one the size of a house."""
    rows = [{"features.a": k, "features.b": k, "features.c": k, "features.d": k} for k in (0, 500)]
    write_csv(Path("strange.csv"), rows)
    out = main("predict", model, "strange.csv").out
    assert "Unlike anything seen, so the class is a guess: 2 of 2" in out
    main("predict", model, "first.csv", "--out", "p.csv")
    flags = [row["unlike"] for row in rows_of(Path("p.csv"))[:80]]
    assert flags.count("true") <= 6  # of known kinds about 5 %


def test_predict_refuses(main: Any, model: Path) -> None:
    for arguments, says in (
        (["first.csv", "--out", "p.xlsx"], ".csv, .parquet, .jsonl"),
        (["nowhere"], "cannot read nowhere: there is no such file or folder"),
        (["."], "has no images in it"),
    ):
        status, _, err = main("predict", model, *arguments)
        assert status == 2
        assert says in err
        assert "Traceback" not in err


# Evaluation, audit, info


def test_evaluate(main: Any, model: Path) -> None:
    status, out, err = main("evaluate", model, "first.csv", "--out", "e.json")
    assert status == 0, err
    assert "on 20 rows of the split 'test'" in out
    result = json.loads(Path("e.json").read_text())
    assert result["samples"] == 20
    assert f"Accuracy {100 * result['accuracy']:.1f} %" in out
    assert "versicolor" in out
    assert "learnt from" not in out
    again = main("evaluate", model, "first.csv", "--split", "train").out
    assert "on 80 rows of the split 'train'" in again
    assert "80 of them were learnt from, so this does not measure" in again
    status, out, _ = main("evaluate", model, "second.csv")
    assert "Accuracy 0.0 % on 37 rows" in out
    assert "Labels that the model does not know, counted as wrong: 'virginica' (37)" in out
    status, _, err = main("evaluate", model, "first.csv", "--split", "tset")
    assert (status, "There: 'train', 'test', 'later'" in err) == (2, True)


def test_audit(main: Any, model: Path) -> None:
    status, out, _ = main("audit", model)
    assert status == 0
    assert sum("flower" in line for line in out.splitlines()) == 20
    assert "The 20 most doubtful of 80" in out
    assert main("audit", model, "--out", "audit.csv").status == 0
    rows = rows_of(Path("audit.csv"))
    assert len(rows) == 80
    confidence = [float(row["confidence"]) for row in rows]
    assert confidence == sorted(confidence)
    assert main("audit", model, "--out", "audit.html").status == 0
    assert "<html" in Path("audit.html").read_text()
    status, _, err = main("audit", model, "--out", "audit.doc")
    assert (status, ".html" in err) == (2, True)


def test_info(main: Any, model: Path) -> None:
    status, out, _ = main("info", model)
    assert status == 0
    assert "pgdr/tables, seed 0, 4 features" in out
    assert "80 samples in one fit, 2 classes" in out
    assert "train.epochs=6" in out
    assert "It keeps " in out
    for path in model.iterdir():
        assert path.name in out
