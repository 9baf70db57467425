"""The command line: what each command prints and writes, and how a run shows its progress."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import ipll
from ipll import progress
from ipll.benchmark.checks import slow_notices
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.learner import Position
from ipll.messages import batches, counted
from ipll.method import method_table
from ipll.networks.network import Network
from ipll.progress import LiveProgress

COMMANDS = ("run", "resume", "demo", "stream", "augment", "methods", "datasets", "prepare", "report", "bench", "figure")
OWN_DATA = ("fit", "update", "predict", "evaluate", "audit", "info")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPLL_DATA", str(tmp_path / "data"))


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def cells(table: str) -> list[list[str]]:
    """The rows of a printed table, its head left out."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in plain(table).splitlines()
        if line.startswith("│")
    ]


# Help


def test_help_names_every_command(main: Any) -> None:
    status, out, _ = main("--help")
    assert status == 0
    for command in (*COMMANDS, *OWN_DATA):
        assert re.search(rf"\b{command}\b", plain(out)), command


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        (
            "run",
            [
                "PRESET",
                "--method",
                "--set",
                "--config",
                "--seed",
                "--out",
                "--device",
                "--data-root",
                "--overwrite",
                "--plugin",
            ],
        ),
        ("resume", ["FOLDER", "--device", "--data-root", "--plugin"]),
        ("demo", ["--out", "--overwrite"]),
        ("stream", ["PRESET", "--set", "--seed", "--out", "--config", "--data-root", "--plugin"]),
        ("methods", ["NAME", "--preset", "--plugin"]),
        ("datasets", ["--data-root", "--plugin"]),
        ("report", ["FOLDERS", "--out"]),
        (
            "fit",
            ["TABLE", "--out", "--votes", "--min-votes", "--method", "--seed", "--set", "--skip-bad", "--overwrite"],
        ),
        ("fit", ["--image-size", "--min-class-samples", "--miss-rate", "--device", "--plugin"]),
        ("update", ["MODEL", "TABLE", "--votes", "--min-votes", "--skip-bad", "--device"]),
        ("predict", ["MODEL", "TABLE|FOLDER", "--top", "--out", "--skip-bad", "--device"]),
        ("evaluate", ["MODEL", "TABLE", "--split", "--out", "--skip-bad", "--device"]),
        ("audit", ["MODEL", "--out"]),
        ("info", ["MODEL"]),
    ],
)
def test_help_of_every_command(main: Any, command: str, mentions: list[str]) -> None:
    status, out, _ = main(command, "--help")
    assert status == 0
    for word in mentions:
        assert word in plain(out) or word.lower() in plain(out), word


def test_without_a_command_there_is_help(main: Any) -> None:
    _, out, err = main()
    assert "Usage" in plain(out + err)
    assert "run" in out + err


def test_unknown_command(main: Any) -> None:
    status, _, err = main("rnu")
    assert status == 2
    assert "rnu" in err
    assert "Traceback" not in err


def test_version(main: Any) -> None:
    assert main("--version") == (0, f"ipll {ipll.__version__}\n", "")


# Streams


def test_stream_prints_its_table(main: Any) -> None:
    status, out, err = main("stream", "digits", "--seed", "3", "--set", "stream.tasks=4", "--set", "stream.blurry=30")
    assert (status, err) == (0, "")
    digits = load_source("digits")
    config = ipll.StreamConfig(tasks=4, blurry=30.0, q=0.2)
    stream = ipll.Stream.build(digits, config, 3)
    expected = []
    for t in range(4):
        here = stream.task == t
        old = np.isin(digits.train_labels[here], stream.class_order[: stream.seen(t - 1)]).sum()
        sizes = stream.candidates[here].sum(1)
        n = int(here.sum())
        expected.append([str(t + 1), str(n), str(n - old), str(old), f"{sizes.mean():.2f}", str((sizes == 1).sum())])
    rows = cells(out)
    assert [[row[0], *row[2:]] for row in rows] == expected
    for word in ("task", "samples", "new", "old", "mean candidates", "singletons"):
        assert word in out


def test_stream_writes_the_arrays_and_nothing_else(main: Any, tmp_path: Path, snapshot: Any) -> None:
    options = ["--set", "stream.q=0.4", "--set", "stream.candidates=uniform"]
    assert main("stream", "digits", "--seed", "7", *options).status == 0
    assert snapshot(tmp_path) == {}  # no --out
    status, out, _ = main("stream", "digits", "--seed", "7", *options, "--out", "mine.npz")
    assert status == 0
    assert "mine.npz" in out
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]

    digits = load_source("digits")
    with zipfile.ZipFile("mine.npz") as archive:
        assert all(item.compress_type == zipfile.ZIP_STORED for item in archive.infolist())
    with np.load("mine.npz", allow_pickle=False) as file:
        assert set(file) == {"class_order", "task", "candidates", "seed", "config"}
        n, classes = len(digits.train_labels), 10
        assert file["class_order"].shape == (classes,)
        assert sorted(file["class_order"]) == list(range(classes))
        assert file["task"].shape == (n,)
        assert set(file["task"]) == set(range(5))
        assert file["candidates"].shape == (n, classes)
        assert file["candidates"].dtype == bool
        assert file["candidates"][np.arange(n), digits.train_labels].all()
        assert int(file["seed"]) == 7
        config = json.loads(file["config"].item())
        stream = ipll.Stream.build(digits, ipll.StreamConfig(tasks=5, blurry=10.0, q=0.4), 7)
        for name in ("class_order", "task", "candidates"):
            np.testing.assert_array_equal(file[name], getattr(stream, name))
    wanted = {"tasks": 5, "blurry": 10.0, "q": 0.4, "candidates": "uniform", "source": "digits"}
    assert {key: config[key] for key in wanted} == wanted
    assert ipll.Stream.load(Path("mine.npz")).sha256() == stream.sha256()


def test_stream_is_the_one_that_a_run_learns(main: Any, finished: Path) -> None:
    assert main("stream", "digits", "--set", "stream.tasks=3", "--out", "mine.npz").status == 0
    with np.load("mine.npz") as mine, np.load(finished / "stream.npz") as learnt:
        for name in ("class_order", "task", "candidates", "seed", "config"):
            np.testing.assert_array_equal(mine[name], learnt[name])


def test_stream_from_a_file_of_settings(main: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[stream]\ntasks = 2\nlast_leftover = "drop"\n')
    assert main("stream", "digits", "--config", "mine.toml", "--out", "mine.npz").status == 0
    stream = ipll.Stream.load(Path("mine.npz"))
    assert len(stream) == 2
    assert (stream.task == -1).any()


# Lists


def test_methods_lists_all_of_them(main: Any) -> None:
    status, out, _ = main("methods")
    assert status == 0
    rows = {row[0]: row[1:] for row in cells(out)}
    assert set(rows) == set(method_table())
    assert {"pgdr", "proden", "pgdr/no-memory", "pgdr/random-memory", "proden+pgdr"} <= set(rows)
    assert "prototype-distance" in rows["pgdr"][0]
    assert all(row[0] for row in rows.values())


def test_methods_shows_the_settings_of_one(main: Any) -> None:
    status, out, _ = main("methods", "pgdr")
    assert status == 0
    rows = {row[0]: row[1:] for row in cells(out) if row[0]}
    assert rows["separation.alpha"][:2] == ["0.8", "paper"]
    assert rows["memory.neighbours"][:2] == ["10", "paper"]
    for key in ("stream.tasks", "train.epochs", "auxiliary.consistency.weight", "disambiguation.beta_start"):
        assert all(rows[key]), key  # a default, its origin and its meaning
    assert "memory.neighbours" not in main("methods", "pgdr/random-memory").out


def test_datasets(main: Any, tmp_path: Path) -> None:
    status, out, _ = main("datasets")
    assert status == 0
    rows = {row[0]: row[1:] for row in cells(out)}
    assert rows["digits"][:2] == ["yes", "digits"]
    assert rows["cifar100"][:2] == ["no", "cifar100, cifar100-fast"]
    assert rows["cifar100-h"][:2] == ["no", "cifar100-h"]
    assert str(tmp_path / "data") in out.replace("\n", "")
    assert str(tmp_path / "else") in main("datasets", "--data-root", tmp_path / "else").out.replace("\n", "")
    assert list(tmp_path.iterdir()) == []


# Reports


def test_report(main: Any, finished: Path, tmp_path: Path) -> None:
    (finished / "report.html").unlink()
    status, out, _ = main("report", finished)
    assert status == 0
    assert str(finished / "report.html") in out
    assert "<html" in (finished / "report.html").read_text()


def test_report_of_several_runs(main: Any, finished: Path, tmp_path: Path, quick: dict[str, Any]) -> None:
    ipll.run("digits", "proden", out=tmp_path / "other", **quick | {"train.epochs": 1})
    status, out, _ = main("report", finished, "other", "--out", "both.html")
    assert status == 0
    assert "both.html" in out
    text = (tmp_path / "both.html").read_text()
    assert "pgdr" in text
    assert "proden" in text


# Runs


def test_run_of_the_real_program(cli: Any, tmp_path: Path, quick_options: list[str], finished_run: Path) -> None:
    """`python -m ipll run`, its progress on a stream that is no terminal, its table, its folder."""
    status, out, err = cli("run", "digits", "--method", "pgdr/random-memory", "--seed", "2", *quick_options)
    assert status == 0, err
    folder = tmp_path / "runs" / "digits-pgdr-random-memory-seed2"
    result = ipll.Result.load(folder)
    assert (result["method"], result["seed"]) == ("pgdr/random-memory", 2)
    assert (folder / "report.html").is_file()
    assert str(folder.relative_to(tmp_path)) in out
    rows = [row for row in cells(out) if row[0].isdigit()]
    assert [(int(row[0]), row[2]) for row in rows] == [
        (t + 1, f"{a:.1f}") for t, a in enumerate(result.accuracy_per_task)
    ]
    assert any(row[0] == "average" and row[2] == f"{result.average_incremental_accuracy:.1f}" for row in cells(out))
    lines = err.strip().splitlines()
    assert len(lines) == 3
    for t, line in enumerate(lines):
        assert f"task {t + 1}/3" in line
        assert f"accuracy {result.accuracy_per_task[t]:.1f}" in line
    assert "\x1b" not in out + err


def test_run_and_resume(main: Any, stopped: Path, finished: Path) -> None:
    status, out, err = main("resume", stopped, "--device", "cpu")
    assert status == 0
    assert str(stopped) in out
    assert [re.search(r"task (\d)/3", line)[1] for line in err.splitlines()] == ["2", "3"]  # type: ignore[index]
    assert ipll.Result.load(stopped).accuracy_per_task == ipll.Result.load(finished).accuracy_per_task


def test_settings_of_all_three_kinds(main: Any, tmp_path: Path, quick_options: list[str]) -> None:
    (tmp_path / "mine.toml").write_text("[memory]\nsize = 44\nneighbours = 3\n")
    more = ["--config", "mine.toml", "-s", "memory.size=33", "-s", "train.epochs=1", "--device", "cpu", "--out", "here"]
    assert main("run", "digits", "-m", "pgdr", *quick_options, *more).status == 0
    config = ipll.Result.load("here")["config"]
    assert (config["memory"]["size"], config["memory"]["neighbours"]) == (33, 3)
    assert config["train"]["epochs"] == 1


def test_data_root_from_an_option_and_the_environment(main: Any, tmp_path: Path) -> None:
    """Both are looked at: a damaged archive lies in one, and then in the other."""
    for name in ("data", "else"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cifar-100-python.tar.gz").write_bytes(b"no archive")
    assert str(tmp_path / "data") in main("stream", "cifar100").err
    assert str(tmp_path / "else") in main("stream", "cifar100", "--data-root", tmp_path / "else").err


def test_demo(main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> None:
    """The demo's course, with quick runs in it; its numbers are checked elsewhere."""
    monkeypatch.setattr("ipll.demo.run", lambda *args, **options: ipll.run(*args, **options | quick))
    status, out, err = main("demo", "--out", "there")
    assert status == 0
    assert {"pgdr", "pgdr-no-memory", "report.html"} <= {path.name for path in (tmp_path / "there").iterdir()}
    head = next(line for line in plain(out).splitlines() if "after task" in line)
    assert "pgdr" in head
    assert "pgdr/no-memory" in head
    assert "there/report.html" in out
    assert len(err.splitlines()) == 6
    assert main("demo", "--out", "there", "--overwrite").status == 0


# Progress


def test_progress_on_a_terminal(quick: dict[str, Any]) -> None:
    screen = io.StringIO()
    result = ipll.run("digits", reporter=LiveProgress(Console(file=screen, force_terminal=True, width=120)), **quick)
    last = [line for line in re.split(r"[\r\n]", plain(screen.getvalue())) if "task" in line][-1]
    assert "pgdr · task 3/3 · prototypes, memory and test" in last
    so_far = sum(result.accuracy_per_task[:2]) / 2  # when the last epoch was over, two tasks had been measured
    assert f"accuracy {so_far:.1f}" in last
    assert "100 %" in last
    assert re.search(r"\d+:\d\d left", last)


def test_progress_without_a_terminal_is_not_silent_for_long(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0)
    log = io.StringIO()
    ipll.run("digits", reporter=LiveProgress(Console(file=log, width=60)), **quick)
    lines = log.getvalue().splitlines()
    assert any(re.fullmatch(r"pgdr: task 1/3, epoch 2/2, \d+ %, \d+:\d\d left", line) for line in lines)
    assert lines[-2] == "pgdr: task 3/3, prototypes, memory and test, 100 %, 0:00 left"
    assert lines[-1].startswith("pgdr: task 3/3, 10 classes seen, accuracy ")


def test_progress_without_a_terminal_is_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an hour's fit with a step a second: a line after 5 seconds, 10, 20, 40, and then one a minute."""
    log, now = io.StringIO(), 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    live = LiveProgress(Console(file=log, width=200))
    live.begin(progress.Plan("fit", [100], [3600]), Position(0))
    for second in range(1, 3600):
        now = float(second)
        live.step(Position(0, epoch=second), 1, 1)
    lines = log.getvalue().splitlines()
    assert lines[0] == "fit: epoch 7/3600, 0 %, 59:54 left"
    assert 60 < len(lines) < 66


def test_numbers_and_their_words() -> None:
    assert (counted(1, "epoch"), counted(0, "epoch"), counted(1000, "epoch")) == ("1 epoch", "0 epochs", "1,000 epochs")
    assert (batches(1), batches(2), batches(3)) == ("one fit", "one fit and 1 update", "one fit and 2 updates")


def test_a_large_network_on_a_cpu_says_how_to_look_quickly(quick: dict[str, Any]) -> None:
    """And what it says is no secret to a run: the notes reach whoever follows it."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    large, small = (Network(resolve(preset).model, 3, 10, seed=0) for preset in ("cifar100", "digits"))
    assert "--set data.per_class=2" in slow_notices(resolve("cifar100"), large, cpu)[0]
    assert slow_notices(resolve("cifar100"), large, gpu) == []
    assert slow_notices(resolve("digits"), small, cpu) == []
    assert slow_notices(resolve("cifar100", overrides={"data.per_class": 5}), large, cpu) == []
    log, settings = io.StringIO(), {"model.backbone": "resnet18", "stream.tasks": 1, "train.steps_per_epoch": 1}
    with pytest.raises(ipll.IpllError):  # diverges, but not before it has begun
        ipll.run("digits", reporter=LiveProgress(Console(file=log)), **(quick | settings | {"train.lr": 1e30}))
    assert log.getvalue().startswith("Note: resnet18 on a CPU takes days.")


def test_a_long_line_of_progress_is_one_line(quick: dict[str, Any]) -> None:
    """Logs are read line by line, whatever the width of a screen that is not there."""
    log = io.StringIO()
    ipll.run("digits", "pgdr/linear-classifier", reporter=LiveProgress(Console(file=log, width=60)), **quick)
    lines = log.getvalue().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("pgdr/linear-classifier: task") for line in lines)


def test_resume_of_a_finished_run_shows_its_result(main: Any, finished: Path, snapshot: Any) -> None:
    """And is a success, so that a loop which tries again until it is one ends."""
    before = snapshot(finished)
    status, out, err = main("resume", finished)
    assert status == 0
    assert "this run is finished" in err
    assert "after task" in out
    assert str(finished) in out
    assert snapshot(finished) == before
