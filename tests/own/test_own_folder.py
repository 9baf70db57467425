"""The model folder: whole or as it was, and nothing but what model.json vouches for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_iris

from ipll.engine.sealed import FORMAT, read_sealed, write_sealed
from ipll.errors import DataError, NewerVersion
from ipll.own import Model, from_arrays

X, Y = load_iris(return_X_y=True)
NAMES = ("setosa", "ä | ö", "virginica\n")  # names may hold what they like


@pytest.fixture(scope="module")
def model() -> Model:
    sets = [[NAMES[label], NAMES[(label + 1) % 3]] if i % 3 else [NAMES[label]] for i, label in enumerate(Y)]
    return Model.fit(from_arrays(X, sets), device="cpu", settings={"train.epochs": 2, "train.threads": 1})


def later(model: Model) -> Model:
    return model.update(from_arrays(X[:30], ["new", "setosa"] * 15), device="cpu")


def test_a_model_comes_back_as_it_was(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "deep" / "model")
    back = Model.load(tmp_path / "deep" / "model")
    assert back.names == model.names
    assert set(back.names) == set(NAMES)
    assert back.config == model.config
    assert back.choices() == model.choices()
    test = from_arrays(X)
    left, right = (one.predict(test, device="cpu") for one in (model, back))
    for name in ("classes", "probabilities", "distance", "unlike"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    for name, column in vars(model.records).items():
        found = getattr(back.records, name)
        assert np.array_equal(column, found), name
        assert type(found) is type(column)
        assert getattr(found, "dtype", None) == getattr(column, "dtype", None), name


def test_records_are_a_table_that_others_can_read(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    rows = pq.read_table(next(tmp_path.glob("records-*.parquet"))).to_pylist()
    assert len(rows) == len(X)
    assert rows[1]["id"] == "1:1"
    assert sorted(rows[1]["candidates"]) == sorted(NAMES[:2])
    assert rows[1]["label"] in rows[1]["candidates"]
    assert rows[1]["update"] == 1
    assert 0 < rows[1]["confidence"] <= 1


def test_the_state_holds_the_memory_s_samples(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    tensors = load_file(next(tmp_path.glob("state-*.safetensors")))
    kept = next(tensor for name, tensor in tensors.items() if name.endswith(".samples"))
    rows = np.flatnonzero(model.records.in_memory)
    assert sorted(map(tuple, kept.tolist())) == sorted(map(tuple, X[rows].astype(np.float32).tolist()))


def test_saving_again_leaves_one_generation(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    later(model).save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model.json", "state-000002.safetensors", "records-000002.parquet", "notes.txt"}
    assert Model.load(tmp_path).updates == 2


@pytest.mark.parametrize("broken", ["save_file", "pq.write_table", "write_sealed"])
def test_a_save_that_fails_leaves_the_model_as_it_was(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    model.save(tmp_path)
    before = (tmp_path / "model.json").read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"ipll.own.folder.{broken}", fail)
        with pytest.raises((DataError, OSError), match="No space left"):
            later(model).save(tmp_path)
    assert (tmp_path / "model.json").read_bytes() == before
    assert Model.load(tmp_path).updates == 1
    later(model).save(tmp_path)  # what was left over does no harm
    assert Model.load(tmp_path).updates == 2
    assert len(list(tmp_path.iterdir())) == 3


def test_a_first_save_that_failed_can_be_done_again(model: Model, tmp_path: Path) -> None:
    (tmp_path / "state-000001.safetensors").write_bytes(b"half")
    model.save(tmp_path)
    assert Model.load(tmp_path).updates == 1


def test_other_people_s_folders_are_left_alone(model: Model, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "holds other files, but no model" in refused(model.save, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_damage_is_found(model: Model, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "no model.json" in refused(Model.load, tmp_path)
    model.save(tmp_path)
    state, description = next(tmp_path.glob("state-*")), tmp_path / "model.json"
    whole, facts, text = state.read_bytes(), read_sealed(description), description.read_text()
    state.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert f"{state.name} is not the file that was written" in refused(Model.load, tmp_path)
    state.unlink()
    assert "is damaged" in refused(Model.load, tmp_path)
    state.write_bytes(whole)
    for change, message in (
        ({"names": ["one"]}, "is not in model.json"),
        ({"known": None}, "damaged"),
    ):
        write_sealed(description, facts | change)
        assert message in refused(Model.load, tmp_path)
    description.write_text(json.dumps(facts | {"format": FORMAT + 1, "seal": "0" * 64}))
    with pytest.raises(NewerVersion, match="Update ipll"):
        Model.load(tmp_path)
    description.write_text("{")
    assert "cannot read" in refused(Model.load, tmp_path)
    description.write_text(text)
    assert torch.equal(Model.load(tmp_path).centres, model.centres)


def test_a_damaged_description_does_not_stop_a_new_model(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    (tmp_path / "model.json").write_text("{")
    model.save(tmp_path)
    assert Model.load(tmp_path).names == model.names
    assert len(list(tmp_path.iterdir())) == 3


def test_all_files_can_be_read_by_the_same_people(model: Model, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    model.save(tmp_path / "model")
    assert {path.stat().st_mode for path in (tmp_path / "model").iterdir()} == {(tmp_path / "plain").stat().st_mode}
