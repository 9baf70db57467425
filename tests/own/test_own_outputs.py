"""What the commands write with --out takes the place of nobody's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from irises import QUICK, rows_of

from ipll.cli import app
from ipll.own.model import Model

INTO_A_MODEL = [
    ("predict", "first.csv", "records-000001.parquet"),
    ("predict", "first.csv", "deep/er/p.csv"),
    ("evaluate", "first.csv", "model.json"),
    ("audit", "records-000001.parquet"),
    ("card", "README.md"),
    ("export", "model.onnx"),
    ("export", "--format", "safetensors", "weights"),
]


def test_every_command_that_writes_a_file_is_looked_at() -> None:
    own = (command.callback for command in app.registered_commands if command.rich_help_panel == "Your own data")
    writing = {one.__name__ for one in own if one is not None and "out" in one.__annotations__}
    assert writing - {"fit"} == {command for command, *_ in INTO_A_MODEL}  # whose folder must be a new one


@pytest.mark.parametrize("arguments", INTO_A_MODEL, ids=" ".join)
def test_nothing_is_written_into_a_model_folder(main: Any, model: Path, snapshot: Any, arguments: list[str]) -> None:
    before = snapshot(model)
    command, *more, name = arguments
    status, out, err = main(command, model, *more, "--out", model / name)
    assert (status, out) == (2, "")
    assert "which is for a model alone. Choose another --out" in err
    assert snapshot(model) == before


def test_the_folder_is_known_by_whatever_path(main: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("link").symlink_to("model")
    Path("other").mkdir()
    for out in ("link/audit.csv", "other/../model/audit.csv"):
        assert "for a model alone" in main("audit", "model", "--out", out).err
    monkeypatch.chdir("model")
    assert "for a model alone" in main("audit", ".", "--out", "audit.csv").err


def test_other_people_call_files_model_json_too(main: Any, model: Path) -> None:
    Path("model.json").write_text("{}")
    assert main("audit", "model", "--out", "audit.csv").status == 0


def test_the_table_that_is_read_stays(main: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "predict", lambda *_, **__: pytest.fail("it predicts"))
    before = Path("second.csv").read_bytes()
    Path("link.csv").symlink_to("second.csv")
    for out in ("second.csv", "./second.csv", Path("second.csv").resolve(), "link.csv"):
        status, _, err = main("predict", model, "second.csv", "--out", out)
        assert (status, f"{Path(out)} is what is read here, and would be lost" in err) == (2, True)
    assert Path("second.csv").read_bytes() == before


def test_what_was_learnt_from_stays(main: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("said.csv").write_text("id,class\nflower0,setosa\n")
    assert main("fit", "first.csv", "--out", "model", "--decisions", "said.csv", *QUICK).status == 0
    before = {name: Path(name).read_bytes() for name in ("first.csv", "said.csv")}
    for out in before:
        for command in (("audit", "model"), ("predict", "model", "second.csv")):
            status, _, err = main(*command, "--out", out)
            assert (status, f"{out} is there, and the model learnt from {out}" in err) == (2, True)
    Path("results").mkdir()
    monkeypatch.chdir("results")  # from here, it is known by its name alone
    assert "the model learnt from first.csv" in main("audit", "../model", "--out", "../first.csv").err
    monkeypatch.chdir(here)
    assert {name: Path(name).read_bytes() for name in before} == before
    Path("results/first.csv").write_text("of an earlier command")
    assert main("audit", "model", "--out", "results/first.csv").status == 0  # first.csv itself is another file


def test_earlier_outputs_are_replaced(main: Any, model: Path) -> None:
    for table in ("first.csv", "second.csv"):
        assert main("predict", model, table, "--out", "p.csv").status == 0
        assert len(rows_of(Path("p.csv"))) == len(rows_of(Path(table)))
    assert not [name for name in os.listdir() if name.endswith(".tmp")]
