"""The audit names every training sample, the most doubtful first, and writes what it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_digits

from ipll.engine.cells import guard
from ipll.errors import DataError
from ipll.own import from_arrays
from ipll.own.audit import COLUMNS, audit_table, write_audit
from ipll.own.model import Model
from ipll.own.records import Records

NAMES = ("cat", "dog", "emu")


@pytest.fixture
def model() -> Any:
    """What an audit asks of a model, by hand: four samples, two updates; the memory keeps the third."""
    records = Records(
        ids=["a", "b", "c", "d"],
        update=np.array([1, 1, 1, 2]),
        offsets=np.array([0, 2, 3, 6, 8]),
        codes=np.array([0, 1, 0, 1, 0, 2, 2, 1]),
        label=np.array([0, 0, 1, 2]),
        confidence=np.array([0.55, 1.0, 0.99996, 0.55003], np.float32),
        judged_old=np.array([False, False, False, True]),
        changed_update=np.array([1, 1, 2, 2]),
        changed_epoch=np.array([5, 1, 2, 6]),
        in_memory=np.array([False, False, True, False]),
        given=["cat", "", "emu", "=unknown, \"it\""],
        row=np.array([2, 3, 4, 2]),
        source=["one.csv"] * 3 + ["two.csv"],
        runner_up=np.full(4, -1),
    )  # fmt: skip
    tensors = {
        "module.memory.ids": torch.tensor([2]),
        "module.memory.p": torch.tensor([[0.00001, 0.99996, 0.00003, 0.0]]),
        "module.memory.samples": torch.zeros(1, 4),
    }
    config = SimpleNamespace(method="pgdr", seed=0)
    return SimpleNamespace(
        records=records, names=NAMES, tensors=tensors, kind="features", config=config, decisions=(),
        kept_pictures=lambda: None,
        feature_names=("w", "x", "y", "z"), mean=(0.0,) * 4, std=(1.0,) * 4,
    )  # fmt: skip


def column(model: Any, name: str) -> list[Any]:
    values: list[Any] = audit_table(model)[name].to_pylist()
    return values


def test_the_least_sure_come_first_and_of_equals_the_last_to_change(model: Any) -> None:
    assert column(model, "id") == ["d", "a", "c", "b"]
    assert column(model, "confidence") == [0.55, 0.55, 1.0, 1.0]
    model.records = replace(model.records, changed_epoch=np.array([5, 1, 2, 6]), changed_update=np.ones(4, np.int64))
    assert column(model, "id") == ["d", "a", "c", "b"]
    model.records = replace(model.records, changed_epoch=np.array([7, 3, 2, 6]))
    assert column(model, "id") == ["a", "d", "b", "c"]


def test_a_row_says_all_that_is_known_of_a_sample(model: Any) -> None:
    rows = {row["id"]: row for row in audit_table(model).to_pylist()}
    assert tuple(rows["c"]) == COLUMNS
    assert rows["c"] == {
        "id": "c", "candidates": ["dog", "cat", "emu"], "label": "dog", "confidence": 1.0, "runner_up": "emu",
        "judged": "new", "changed_update": 2, "changed_epoch": 2, "changed_late": True, "update": 1, "in_memory": True,
        "given_label": "emu", "source": "one.csv", "row": 4, "decided": "",
        "decided_by": "",
    }  # fmt: skip
    assert (rows["d"]["judged"], rows["d"]["given_label"]) == ("old", '=unknown, "it"')


def test_a_runner_up_is_named_where_it_is_known(model: Any) -> None:
    known = dict(zip(column(model, "id"), column(model, "runner_up"), strict=True))
    assert known == {"a": "dog", "b": "", "c": "emu", "d": "dog"}
    model.tensors["module.memory.p"] = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    assert column(model, "runner_up")[2] == ""  # the third sample has no weight left for another
    model.records = replace(model.records, label=np.array([2, 0, 1, 2]))
    assert column(model, "runner_up")[1] == ""  # settled on neither of its two candidates
    model.records = replace(model.records, runner_up=np.array([-1, 2, 2, 2]))  # by networks that had not learnt from it
    after = dict(zip(column(model, "id"), column(model, "runner_up"), strict=True))
    assert after == {"a": "", "b": "emu", "c": "emu", "d": "dog"}  # the last is settled on that


@pytest.mark.parametrize(
    ("updates", "epochs", "late"),
    [
        ([1, 1, 2, 2], [5, 1, 2, 6], "acd"),  # a is the last of its update, c changed in a later one than its own
        ([1, 1, 1, 2], [5, 1, 10, 6], "cd"),  # a is of the first half
        ([1, 1, 1, 2], [6, 1, 10, 6], "acd"),
        ([1, 1, 1, 2], [1, 1, 1, 1], ""),  # what the first epoch settles is not late
    ],
)
def test_late_is_the_second_half_of_the_changes_or_a_later_update(
    model: Any, updates: list[int], epochs: list[int], late: str
) -> None:
    model.records = replace(model.records, changed_update=np.array(updates), changed_epoch=np.array(epochs))
    found = zip(column(model, "id"), column(model, "changed_late"), strict=True)
    assert sorted(name for name, is_late in found if is_late) == list(late)


def test_files_hold_the_table(model: Any, tmp_path: Path) -> None:
    table = audit_table(model)
    for ending in ("csv", "parquet", "jsonl", "PARQUET"):
        write_audit(model, tmp_path / f"audit.{ending}")
    assert pq.read_table(tmp_path / "audit.parquet").equals(table)
    assert pq.read_table(tmp_path / "audit.PARQUET").equals(table)
    lines = (tmp_path / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == table.to_pylist()
    texts = dict.fromkeys(("decided", "decided_by"), pyarrow.string())
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=False, column_types=texts)
    rows = pyarrow.csv.read_csv(tmp_path / "audit.csv", convert_options=options).to_pylist()
    joined = [row | {"candidates": "|".join(row["candidates"])} for row in table.to_pylist()]
    assert rows == [{k: guard(v) if isinstance(v, str) else v for k, v in row.items()} for row in joined]
    assert any(row["given_label"].startswith("'=") for row in rows)  # a spreadsheet would run it
    assert {path.stem for path in tmp_path.iterdir()} == {"audit"}  # nothing else is left there


@pytest.mark.parametrize("name", ["audit", "audit.xlsx", "audit.csv.gz"])
def test_another_ending_is_refused_and_the_known_ones_are_named(
    model: Any, tmp_path: Path, refused: Callable[..., str], name: str
) -> None:
    message = refused(write_audit, model, tmp_path / name)
    assert repr(name) in message
    assert ".csv, .parquet, .jsonl, .html" in message
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(model: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for ending in ("csv", "parquet", "jsonl", "html"):
        with pytest.raises(DataError, match=r"cannot write .*audit"):
            write_audit(model, tmp_path / "file" / f"audit.{ending}")


@pytest.mark.parametrize("kind", ["images", "features"])
def test_a_real_model_is_audited_as_it_is_and_as_it_was_saved(tmp_path: Path, kind: str) -> None:
    digits = load_digits()
    X = (digits.images * 15).astype(np.uint8) if kind == "images" else digits.data.astype(np.float32)
    rng = np.random.default_rng(0)
    sets = [sorted({int(y), int(rng.integers(4)), int(rng.integers(4))}) for y in digits.target]

    def part(rows: Any) -> Any:
        return from_arrays(X[rows], [sets[i] for i in rows], ids=[f"digit {i}" for i in rows])

    first = np.flatnonzero(digits.target < 3)[:90]
    second = np.flatnonzero(digits.target < 4)[150:210]
    settings = {"train.epochs": 2, "memory.size": 20}
    model = Model.fit(part(first), settings=settings, device="cpu").update(part(second), device="cpu")
    table = audit_table(model)
    assert sorted(table["id"].to_pylist()) == sorted(f"digit {i}" for i in (*first, *second))
    confidence = table["confidence"].to_numpy()
    assert (np.diff(confidence) >= 0).all()
    assert 0 < confidence[0] < 1
    assert sum(table["in_memory"].to_pylist()) == len(model.tensors["module.memory.ids"]) > 0
    for row in table.to_pylist():
        assert row["label"] in row["candidates"]
        assert set(row["candidates"]) == {str(c) for c in sets[int(row["id"].split()[1])]}
        assert row["runner_up"] != row["label"]
        assert row["update"] <= row["changed_update"] <= 2
        assert 1 <= row["changed_epoch"] <= 2
    model.save(tmp_path / "model")
    assert audit_table(Model.load(tmp_path / "model")).equals(table)
    write_audit(model, tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert ("iVBORw0KGgo" in page) == (kind == "images")  # how a PNG begins, in base64
