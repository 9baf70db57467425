"""Models in folders, from Python: what the commands do, without them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ipll import ConfigError, Model, RunError
from ipll.own import Decisions, fit_folder, from_arrays, read_given, update_folder
from ipll.own.saved import write_model
from ipll.own.work import SAVING, check_settings
from ipll.progress import LiveProgress

QUICK: dict[str, Any] = {"device": "cpu", "settings": {"train.epochs": 2}}


def blobs(names: str, n: int = 30, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    centres = {name: np.eye(8)[ord(name) - ord("a")] * 6 for name in "abcdefgh"}
    labels = [name for name in names for _ in range(n)]
    return from_arrays(np.stack([centres[name] + rng.normal(size=8) for name in labels]), [[name] for name in labels])


def test_a_fit_goes_to_its_folder_and_an_update_takes_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    fitted = fit_folder(folder, blobs("ab"), **QUICK)
    assert Model.load(folder).names == fitted.names == ("a", "b")
    updated = update_folder(folder, blobs("cd"), device="cpu")
    assert updated.names == ("a", "b", "c", "d")
    found = Model.load(folder)
    assert (found.updates, found.names) == (2, updated.names)
    assert not (folder / ".pending").exists()


def test_the_documented_way_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands in docs/own_data_input.md: files and folders are named by text."""
    monkeypatch.chdir(tmp_path)
    row = "{}{},{:.1f},{:.1f},{}\n"
    for file, classes in (("birds.csv", "ab"), ("more.csv", "bc")):
        rows = [
            row.format(file[0], 20 * k + i, 9 * k + i % 3, i % 5, c) for k, c in enumerate(classes) for i in range(20)
        ]
        Path(file).write_text("id,features.x,features.y,candidates\n" + "".join(rows))
    page = (Path(__file__).parents[2] / "docs" / "own_data_input.md").read_text()
    snippet = next(block for block in page.split("```python\n")[1:] if "fit_folder" in block).split("```")[0]
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert names["model"].names == Model.load("birds.model").names == ("a", "b", "c")


def test_a_model_that_is_there_is_not_replaced_by_chance(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    fit_folder(folder, blobs("ab"), **QUICK)
    with pytest.raises(RunError, match="already holds a model"):
        fit_folder(folder, blobs("cd"), **QUICK)
    assert Model.load(folder).names == ("a", "b")
    assert fit_folder(folder, blobs("cd"), overwrite=True, **QUICK).names == ("c", "d")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other files"):
        fit_folder(tmp_path / "mine", blobs("ab"), **QUICK)


def test_an_update_that_fails_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    fit_folder(folder, blobs("ab"), **QUICK)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix}
    with pytest.raises(ValueError, match="feature"):
        update_folder(folder, from_arrays(np.zeros((12, 3)), [["a"], ["b"]] * 6), device="cpu")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix} == before


def test_decisions_that_were_made_before_leave_the_model(tmp_path: Path, snapshot: Any) -> None:
    folder = tmp_path / "model"
    fitted = fit_folder(folder, blobs("ab"), **QUICK)
    said = Decisions.of(fitted.records.ids[:2], ["a", "b"], who="ann")
    assert update_folder(folder, None, decisions=said, device="cpu").updates == 2
    before = snapshot(folder)
    again = update_folder(folder, None, decisions=said, device="cpu")
    assert (again.updates, len(again.history)) == (2, 2)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("pgdx", {}, "unknown method 'pgdx'"),
        ("auto", {"train.epoch": 3}, "unknown setting 'train.epoch'"),
        ("auto", {"train.epochs": 0}, "train.epochs must be at least 1"),
        ("proden", {"disambiguation.miss_rate": 0.1}, "miss_rate"),
        ("auto", {"stream.tasks": 3}, "it is for benchmarks"),
        ("auto", {"model.members": 3}, ""),  # of large tables, which have two folds
        ("auto", {"model.folds": 7}, ""),  # of small ones, which have ten members
        ("auto", {"model.backbone": "resnet18-thin", "augment.flip": False}, ""),
        ("proden", {"data.size": 12}, ""),
    ],
)
def test_settings_are_refused_that_no_data_can_be_learnt_with(method: str, settings: Any, says: str) -> None:
    if not says:
        check_settings(method, 0, settings)
        return
    with pytest.raises(ConfigError, match=says):
        check_settings(method, 0, settings)


def test_a_table_is_given_by_split(tmp_path: Path) -> None:
    rows = [
        f"{i},{i % 2},{'ab'[i % 2]},{'ab'[i % 2]},{('train', 'test', ' Train ', '', 'later')[i % 5]}" for i in range(40)
    ]
    table = tmp_path / "table.csv"
    table.write_text("id,features.x,candidates,label,split\n" + "\n".join(rows) + "\n")
    given = read_given(table)
    assert given.test is not None
    assert (len(given.train), len(given.test), given.others) == (24, 8, {"later": 8})


def test_ctrl_c_while_a_model_is_saved_is_answered_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path, fields: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write_model(folder, fields)

    monkeypatch.setattr("ipll.own.work.write_model", interrupted)
    reporter = LiveProgress(Console(stderr=True))
    fit_folder(tmp_path / "model", blobs("ab"), reporter=reporter, **QUICK)
    assert Model.load(tmp_path / "model").names == ("a", "b")
    assert SAVING in " ".join(capsys.readouterr().err.split())
