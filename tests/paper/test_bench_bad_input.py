"""`ipll bench` with words that it cannot obey, and what it lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tab33"], "no table or figure 'tab33'. Did you mean 'tab3'?"),
        (["tab3", "--seeds", "x"], "--seeds takes how many (3) or which (0,1,2; '2,' for one alone), got 'x'."),
        (["tab3", "--jobs", "0"], "--jobs must be at least 1, got 0."),
        (["tab3", "--executor", "slurm"], "--executor is 'local' or 'ray', got 'slurm'."),
        (["tab3", "--address", "here:1"], "--address is for --executor ray."),
        (["tab3", "--preset", "digit"], "unknown preset 'digit'. Did you mean 'digits'?"),
        (["tab3", "--set", "train.epoch=2"], "Did you mean 'train.epochs'?"),
        (["tab3", "--set", "train.epochs"], "--set takes KEY=VALUE"),
        (["tab3", "--preset", "digits", "--set", "stream.blurry=50", "--only", "pgdr"], "itself varies stream.blurry"),
        (["tab3", "--set", "train.epochs=2020-01-01"], "train.epochs takes a value of type int"),
        (["tab3", "--set", "train.epochs=[[1]]"], "train.epochs takes a value of type int"),
        (["tab3", "--set", "train.epochs={a=1}"], "train.epochs takes a value of type int"),
        (["tab3", "--set", "stream.q={a=1}"], "tab3 is of stream.q=0.2"),
        (["tab3", "--only", "resnet"], "--only resnet: no cell of tab3"),
        (["tab3", "--plugin", "missing.py"], "cannot read the plugin"),
        (["tab3", "--preset", "digits", "--device", "tpu"], "tpu"),
    ],
)
def test_bad_input(main: Any, words: list[str], message: str, tmp_path: Path) -> None:
    status, out, err = main("bench", *words, "--out", tmp_path / "out")
    assert status == 2
    assert message in err
    assert out == ""
    assert not (tmp_path / "out").exists()


def test_out_is_a_file(main: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, err = main("bench", "tab3", "--out", tmp_path / "file" / "out")
    assert status == 2
    assert f"--out: {tmp_path / 'file'} is a file, not a folder." in err


def test_patience_that_is_no_number(main: Any, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPLL_STALE", "soon")
    status, _, err = main(*command("prior"))
    assert status == 2
    assert "IPLL_STALE takes seconds, more than 0, got 'soon'" in err


@pytest.mark.usefixtures("fewer_presets")
def test_data_sets_that_come_later(main: Any, tmp_path: Path) -> None:
    status, out, err = main("bench", "disambiguation", "--out", tmp_path / "out")
    assert (status, out) == (0, "")
    assert "not available here: 9 cells on tiny-imagenet; this version has no preset of that name." in err


def test_the_list(main: Any) -> None:
    status, out, _ = main("bench", "--list")
    assert status == 0
    for name in ("tab1", "proden", "running-time", "memory-size", "separation-accuracy"):
        assert f" {name} " in out
