"""What decides a result is as it was written, or is refused by name."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_iris

import ipll
from ipll.engine import checkpoint
from ipll.engine.npz import read_npz
from ipll.engine.sealed import FORMAT, read_sealed, write_sealed
from ipll.errors import DataError, NewerVersion, RunError
from ipll.own import Model, from_arrays
from ipll.paper.campaigns.state import can_resume, read_status, set_aside
from ipll.results.folder import RunFolder, read_result

DEEP = "[" * 200_000 + "]" * 200_000
X, Y = load_iris(return_X_y=True)


def flips(content: bytes, count: int) -> Iterator[bytes]:
    """-> the content with one bit changed, in so many ways, the same ones each time."""
    for place in Random(0).sample(range(8 * len(content)), min(count, 8 * len(content))):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    settings = {"train.epochs": 1, "train.threads": 1, "memory.size": 20}
    Model.fit(from_arrays(X, [[str(y)] for y in Y]), device="cpu", settings=settings).save(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A model's folder, for this test alone."""
    return shutil.copytree(saved, tmp_path / "model")


# The mechanism


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Also one that changes no value: 1e-05 may be written 1E-05."""
    file, value = tmp_path / "a.json", {"small": 1e-05, "text": "é", "list": [1, None]}
    write_sealed(file, value)
    assert read_sealed(file) == value
    content = file.read_bytes()
    for changed in flips(content, 8 * len(content)):
        file.write_bytes(changed)
        with pytest.raises(ValueError, match=r"damaged|seal|not text|format"):
            read_sealed(file)


def test_old_files_have_no_seal(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for old in ({"a": 1}, {"format": 1, "a": 1}):
        file.write_text(json.dumps(old))
        assert read_sealed(file) == {"a": 1}
    for odd in ({"format": 2, "a": 1}, {"seal": "0" * 64, "a": 1}, {"format": 1, "seal": "0" * 64}, {"format": "2"}):
        file.write_text(json.dumps(odd))
        with pytest.raises(ValueError, match="its seal is broken"):
            read_sealed(file)
    file.write_text(json.dumps({"format": 3, "seal": ""}))
    with pytest.raises(NewerVersion, match=r"a\.json has format 3.*Update ipll"):
        read_sealed(file)


@pytest.mark.parametrize("text", [DEEP, '{"format": 2, "a": ' + "[" * 900 + "]" * 900 + "}"])
def test_brackets_without_end(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"nested too deeply|seal is broken"):
        read_sealed(tmp_path / "a.json")


# Runs


@pytest.mark.parametrize("name", ["result.json", "manifest.json", "config.toml", "stream.npz"])
def test_a_flipped_bit_in_a_run_is_refused_by_name(name: str, finished: Path) -> None:
    if name != "result.json":
        (finished / "result.json").unlink()
    file = finished / name
    for changed in flips(file.read_bytes(), 60):
        file.write_bytes(changed)
        with pytest.raises(RunError, match=rf"{name}: damaged"):
            read_result(finished) if name == "result.json" else RunFolder.reopen(finished).close()


def test_a_flipped_bit_in_a_checkpoint_is_passed_over_with_a_word(stopped: Path) -> None:
    places = sorted((stopped / "checkpoint").glob("*.json"))
    whole = json.loads(places[0].read_text())["meta"]
    for changed in flips(places[-1].read_bytes(), 60):
        places[-1].write_bytes(changed)
        found, notes = checkpoint.look(stopped / "checkpoint")
        assert found is not None
        assert found.meta == whole
        assert f"{places[-1]} is damaged" in notes[0]


def test_the_user_is_told_of_a_damaged_checkpoint(main: Any, stopped: Path) -> None:
    newest = max((stopped / "checkpoint").glob("*.json"))
    newest.write_text(DEEP)
    status, out, err = main("resume", stopped, "--device", "cpu")
    assert status == 0, err
    assert f"The checkpoint {newest} is damaged" in out + err


def newer(file: Path) -> None:
    """Makes a sealed file one of a version of ipll to come."""
    whole = {**json.loads(file.read_text()), "format": FORMAT + 1, "more": "of it"}
    whole.pop("seal")
    file.write_text(json.dumps({**whole, "seal": "0" * 64}))


def test_what_a_newer_version_wrote_is_not_called_damaged(stopped: Path, finished: Path) -> None:
    """Nor is it overwritten: neither is training begun anew, nor is a campaign's cell."""
    newest = max((stopped / "checkpoint").glob("*.json"))
    newer(newest)
    with pytest.raises(NewerVersion, match=f"{newest}.*Update ipll"):
        ipll.resume(stopped, device="cpu")
    newer(stopped / "manifest.json")
    for ask in (RunFolder.reopen, lambda folder: can_resume(folder, ipll.config.Config.load(folder / "config.toml"))):
        with pytest.raises(NewerVersion, match=r"manifest\.json"):
            ask(stopped)
    newer(finished / "result.json")
    for look in (read_result, read_status, set_aside):
        with pytest.raises(NewerVersion, match=r"result\.json"):
            look(finished)
    assert (finished / "result.json").exists()


def test_facts_of_the_caller_are_kept(stopped: Path, tmp_path: Path) -> None:
    config, stream = ipll.config.Config.load(stopped / "config.toml"), ipll.Stream.load(stopped / "stream.npz")
    folder = RunFolder.create(tmp_path / "run")
    folder.begin(config, {}, stream, {"data": {"root": "/data", "count": 3}})
    folder.close()
    again = RunFolder.reopen(tmp_path / "run")
    assert again.facts() == {"data": {"root": "/data", "count": 3}}
    again.close()


def test_runs_of_older_versions_are_still_read(stopped: Path, finished: Path) -> None:
    """They have no manifest, and no seals."""
    (stopped / "manifest.json").unlink()
    for file in [*(stopped / "checkpoint").glob("*.json"), finished / "result.json"]:
        file.write_text(json.dumps(read_sealed(file)))
    folder = RunFolder.reopen(stopped)
    assert folder.facts() == {}
    assert folder.load_checkpoint() is not None
    assert folder.notes == []
    folder.close()
    assert read_result(finished)["method"] == "pgdr"


def test_metrics_that_are_no_text(stopped: Path, stop_at: Any) -> None:
    content = (stopped / "metrics.jsonl").read_bytes()
    (stopped / "metrics.jsonl").write_bytes(b"\xff\xfe" + content)
    ipll.resume(stopped, device="cpu")
    assert (stopped / "metrics.jsonl").read_bytes().startswith(b"\xff\xfe" + content[:20])


# Models


def test_a_flipped_bit_in_a_model_is_refused(model: Path) -> None:
    for file in sorted(model.iterdir()):
        whole = file.read_bytes()
        for changed in flips(whole, 40):
            file.write_bytes(changed)
            with pytest.raises(DataError, match=file.name):
                Model.load(model)
        file.write_bytes(whole)
    Model.load(model)


def test_models_of_the_first_format_are_still_read(model: Path) -> None:
    file = model / "model.json"
    file.write_text(json.dumps({"format": 1} | read_sealed(file)))
    assert Model.load(model).updates == 1


@pytest.mark.parametrize(
    "change",
    [
        {"names": "abc"}, {"shape": ["4"]}, {"kind": 3}, {"capacity": "8"}, {"capacity": True}, {"far": None},
        {"chosen": [1]}, {"config": []}, {"mean": [None]}, {"files": []}, {"names": ["0"]},
        {"files": {"state": {"name": "../state-000001.safetensors"}}},
    ],
)  # fmt: skip
def test_wrong_types_in_a_model(model: Path, change: dict[str, Any]) -> None:
    write_sealed(model / "model.json", read_sealed(model / "model.json") | change)
    with pytest.raises(DataError, match=r"is damaged"):
        Model.load(model)


def test_records_shorter_than_the_memory(model: Path) -> None:
    """Checksums and all: the update would fail, or learn from the wrong samples."""
    facts, records = read_sealed(model / "model.json"), next(model.glob("records-*"))
    pq.write_table(pq.read_table(records).slice(0, 10), records)
    facts["files"]["records"]["sha256"] = ipll.engine.files.sha256_of(records)
    write_sealed(model / "model.json", facts)
    with pytest.raises(DataError, match="its records are not those of its memory"):
        Model.load(model)


def test_what_a_killed_save_left_is_removed_by_the_next(model: Path) -> None:
    (model / ".records-000001.parquet.99.tmp").write_bytes(b"half")
    (model / ".model.json.99.tmp").write_bytes(b"half")
    (model / ".mine.99.tmp").write_bytes(b"mine")
    Model.load(model).save(model)
    assert [path.name for path in model.glob(".*")] == [".mine.99.tmp"]


# Archives


def npy(shape: tuple[int, ...], kind: str = "|u1", data: bytes = b"") -> bytes:
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (npy((1 << 42,)), "bytes of values, but there are"),
        (npy((1 << 31, 1 << 31, 1 << 31), "<f8"), "bytes of values, but there are"),
        (npy((1,), "|O", b"cos\nsystem\n"), "is a pickle"),
        (b"cos\nsystem\n(S'true'\ntR.", "magic string"),
        (npy((-5,)), "damaged header|bytes of values"),
        (b"\x93NUMPY\x09\x00", "damaged header"),
    ],
)
def test_an_archive_that_lies(tmp_path: Path, content: bytes, says: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("task.npy", content)
    with pytest.raises(ValueError, match=says):
        read_npz(tmp_path / "a.npz", ["task"])
    with pytest.raises(DataError, match="damaged"):
        ipll.Stream.load(tmp_path / "a.npz")


def test_archives_come_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(10), "b": np.array("text"), "c": np.zeros((1000, 1000))}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz", ["a", "b", "c", "d"])
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
