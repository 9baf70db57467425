"""Bad folders of runs: one short message that says what to do, exit status 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ipll
from ipll.errors import RunError
from ipll.results.folder import RunFolder, check_free

Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_out_holds_a_finished_run(refused: Refused, finished: Path) -> None:
    message = refused("run", "digits", "--out", finished)
    assert str(finished) in message
    assert "finished run" in message
    assert "--overwrite" in message


def test_out_holds_an_unfinished_run(refused: Refused, stopped: Path) -> None:
    message = refused("run", "digits", "--out", stopped)
    assert f"ipll resume {stopped}" in message
    assert "--overwrite" in message


def test_out_holds_other_things(refused: Refused, tmp_path: Path, finished: Path) -> None:
    """A run among them would be hard to tell apart, and to remove."""
    shutil.copytree(finished, tmp_path / "runs" / "first")
    message = refused("run", "digits", "--out", "runs")
    assert "runs holds other files, such as first. Choose a new folder with --out." in message


def test_out_is_free(tmp_path: Path, finished: Path) -> None:
    """An empty folder, one with its log, and what a run leaves that was killed before it had begun."""
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    (tmp_path / "empty" / "slurm-17.out").touch()
    check_free(tmp_path / "empty")
    for name in ("config.toml", "result.json"):
        (finished / name).unlink()
    (finished / "tensorboard").mkdir()
    (finished / f".config.toml.{os.getpid()}.tmp").touch()
    check_free(finished)
    (finished / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"holds other files, such as thesis\.tex"):
        check_free(finished)
    check_free(finished, overwrite=True)


@pytest.mark.parametrize("out", ["taken", "taken/below"])
@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_out_is_a_file(refused: Refused, tmp_path: Path, out: str, overwrite: list[str]) -> None:
    (tmp_path / "taken").write_text("mine")
    message = refused("run", "digits", "--out", out, *overwrite)
    assert "taken" in message
    assert "--out" in message


@pytest.mark.parametrize(
    "mistake",
    [
        ["--set", "separation.kind=none"],
        ["--set", "memory.size=3"],
        ["--set", "stream.tasks=11"],
        ["--set", "train.epochs=0"],
        ["--method", "pgrd"],
    ],
)
def test_a_mistake_with_overwrite_costs_nothing(refused: Refused, finished: Path, mistake: list[str]) -> None:
    refused("run", "digits", "--out", finished, "--overwrite", *mistake)
    assert ipll.Result.load(finished)["method"] == "pgdr"


def test_the_demo_does_not_replace_an_earlier_one(refused: Refused, tmp_path: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp_path / "demo" / "pgdr")
    assert "--overwrite" in refused("demo", "--out", "demo")


@pytest.mark.parametrize("how", ["resume", "run"])
def test_a_second_process_on_a_run(refused: Refused, stopped: Path, how: str) -> None:
    first = RunFolder(stopped)
    try:
        arguments = ["resume", stopped] if how == "resume" else ["run", "digits", "--overwrite", "--out", stopped]
        message = refused(*arguments)
    finally:
        first.close()
    assert str(stopped) in message
    assert f"process {os.getpid()} is working on this run" in message


def test_a_second_process_on_a_run_that_has_just_begun(refused: Refused, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "new")
    try:
        assert "is working on this run" in refused("run", "digits", "--out", "new")
    finally:
        folder.close()


# Resumption and reports


@pytest.mark.parametrize("folder", ["nowhere", "data", "file"])
def test_resume_without_a_run(refused: Refused, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("mine")
    message = refused("resume", folder)
    assert folder in message
    assert "no run" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[train]", "[train"),
        ("[train]", "[trian]"),
        ("epochs = 2", "epochs = 'two'"),
        ("epochs = 2", "epochs = 0"),
        ('preset = "digits"\n', ""),
        ("seed = 0\n", ""),
        ("seed = 0\n", "seed = 'x'\n"),
        ('kind = "pgdr"', 'kind = "nonsense"'),
    ],
)
def test_resume_with_a_damaged_configuration(refused: Refused, stopped: Path, old: str, new: str) -> None:
    (stopped / "manifest.json").unlink()  # as of an older version: else the change itself is refused
    file = stopped / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    refused("resume", stopped)


def test_resume_with_a_configuration_cut_short(refused: Refused, stopped: Path) -> None:
    """What is missing must not be filled with defaults: that would be another run."""
    (stopped / "manifest.json").unlink()
    file = stopped / "config.toml"
    file.write_text(file.read_text().partition("[train]")[0])
    refused("resume", stopped)


def test_resume_with_an_empty_configuration(refused: Refused, stopped: Path) -> None:
    (stopped / "config.toml").write_text("")
    assert "config.toml" in refused("resume", stopped)


@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "garbage", "changed"])
def test_resume_with_a_damaged_stream(refused: Refused, stopped: Path, damage: str) -> None:
    file = stopped / "stream.npz"
    content = file.read_bytes()
    middle = len(content) // 2
    if damage == "gone":
        file.unlink()
    else:
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"cut": content[:middle], "empty": b"", "garbage": b"x" * 99, "changed": changed}[damage])
    assert "stream.npz" in refused("resume", stopped)


@pytest.mark.parametrize("setting", ["stream.q=0.3", "seed=1"])
def test_resume_with_the_stream_of_another_run(refused: Refused, main: Any, stopped: Path, setting: str) -> None:
    """The result would name settings that it was not made with."""
    (stopped / "manifest.json").unlink()
    key, _, value = setting.partition("=")
    options = ["--seed", value] if key == "seed" else ["--set", setting]
    stream = ["stream", "digits", "--set", "stream.tasks=3", *options, "--out", stopped / "stream.npz"]
    assert main(*stream).status == 0
    assert "stream.npz" in refused("resume", stopped)


def test_report_without_a_run(refused: Refused, stopped: Path, finished: Path) -> None:
    assert "nowhere" in refused("report", "nowhere")
    assert f"ipll resume {stopped}" in refused("report", stopped)
    assert f"ipll resume {stopped}" in refused("report", finished, stopped)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"method": "pgdr"})])
def test_report_of_a_damaged_result(refused: Refused, finished: Path, content: str) -> None:
    (finished / "result.json").write_text(content)
    assert "result.json" in refused("report", finished)


def test_a_stream_is_not_called_a_table(refused: Refused) -> None:
    for out in ("mine.csv", "mine", "data"):
        assert f"--out must end in .npz, got '{out}'" in refused("stream", "digits", "--out", out)


@pytest.mark.parametrize("out", ["nowhere/file.npz", "data"])
@pytest.mark.parametrize("command", ["stream", "report"])
def test_files_written_to_impossible_places(main: Any, tmp_path: Path, finished: Path, command: str, out: str) -> None:
    """Either the folder is made and the file is there, or it is refused."""
    status, _, err = main(command, finished if command == "report" else "digits", "--out", out)
    assert "Traceback" not in err
    if out == "data" or not (tmp_path / out).is_file():
        assert status == 2
        assert out in err
        assert len(err.strip().splitlines()) == 1
        assert not list((tmp_path / "data").iterdir())
    else:
        assert status == 0
