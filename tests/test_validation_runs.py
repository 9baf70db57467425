"""Runs that are scored on validation samples: what their results say, resumed too, and that no test sample counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipll
from ipll.config import Config
from ipll.data.source import Source
from ipll.results.schema import CURVES
from outcomes import check_equal

SHARE = {"data.validation": 0.2}
HELD_OUT = 287  # a fifth of each class of the digits' 1437 training samples, as near as can be


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory, quick: dict[str, Any]) -> Path:
    """The folder of a finished run with a checkpoint after every step; not to be changed."""
    folder = tmp_path_factory.mktemp("validation") / "run"
    ipll.run("digits", out=folder, **quick | SHARE | {"train.checkpoint_seconds": 0})
    return folder


def test_the_result_says_what_was_scored(held_out: Path, finished_run: Path) -> None:
    result = ipll.Result.load(held_out)
    assert result["scored_on"] == "validation"
    assert result["config"]["data"]["validation"] == 0.2
    assert np.sum(result["confusion"]) == HELD_OUT
    assert ipll.Stream.load(held_out / "stream.npz").task.shape == (1437 - HELD_OUT,)
    assert "on validation samples" in (held_out / "report.html").read_text()
    plain = ipll.Result.load(finished_run)
    assert plain["scored_on"] == "test"
    assert np.sum(plain["confusion"]) == 360


def test_stopped_and_resumed(held_out: Path, tmp_path: Path, quick: dict[str, Any], stop_at: Any) -> None:
    settings = quick | SHARE | {"train.checkpoint_seconds": 0}
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=tmp_path / "run", reporter=stop_at(14), **settings)
    assert Config.load(tmp_path / "run" / "config.toml").data.validation == 0.2
    assert ipll.resume(tmp_path / "run")["scored_on"] == "validation"
    check_equal(tmp_path / "run", held_out)


def test_test_samples_change_nothing(quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test set holds, a run on validation samples ends the same."""
    expected = ipll.run("digits", **quick | SHARE)
    validating = Source.validating

    def spoilt(source: Source, share: float) -> Source:
        source.test_samples[:], source.test_labels[:] = 0, 0  # type: ignore[index]
        return validating(source, share)

    monkeypatch.setattr(Source, "validating", spoilt)
    found = ipll.run("digits", **quick | SHARE)
    assert found["confusion"] == expected["confusion"]
    assert found["accuracy_per_task"] == expected["accuracy_per_task"]


def test_every_seed_and_method_is_scored_on_the_same_samples(quick: dict[str, Any]) -> None:
    counts = []
    for seed, method in ((0, "pgdr"), (3, "proden")):
        result = ipll.run("digits", method, seed=seed, **quick | SHARE)
        by_name = dict(zip(result["class_names"], np.sum(result["confusion"], axis=1).tolist(), strict=True))
        counts.append([by_name[name] for name in "0123456789"])
    assert counts[0] == counts[1]
    assert sum(counts[0]) == HELD_OUT


def test_the_commands(main: Any, quick_options: list[str], tmp_path: Path) -> None:
    options = (*quick_options, "--set", "data.validation=0.2")
    status, out, err = main("run", "digits", "--out", tmp_path / "run", "--tensorboard", *options)
    assert status == 0, err
    assert "digits: validation accuracy on all classes" in " ".join(out.split())
    assert ", validation accuracy " in err
    status, out, _ = main("stream", "digits", *options)
    assert status == 0
    assert f"{HELD_OUT} samples held out for validation" in " ".join(out.split())
    assert "held out" not in main("stream", "digits", *quick_options).out


def test_curves_of_tensorboard_are_not_drawn_over_those_of_the_test_set(tmp_path: Path, quick: dict[str, Any]) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    ipll.run("digits", out=tmp_path / "run", tensorboard=True, **quick | SHARE)
    events = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"validation accuracy/all", "validation accuracy/linear head", "pseudo-labels/accuracy"} <= tags
    assert not {name for name in CURVES.values() if name.startswith("accuracy/")} & tags


def test_a_share_that_leaves_nothing_is_refused_before_anything_is_written(tmp_path: Path, main: Any) -> None:
    status, _, err = main("run", "digits", "--set", "data.validation=0.999", "--out", tmp_path / "run")
    assert status == 2
    assert "data.validation=0.999 takes 142 of the 142 training samples of class '0' of 'digits'" in err
    assert not (tmp_path / "run").exists()


def test_a_bench_scored_on_validation_samples(main: Any, quick_options: list[str], tmp_path: Path) -> None:
    words = ("--preset", "digits", "--only", "pgdr", "--seeds", 1, "--out", tmp_path, "--jobs", 1)
    options = (*words, "--set", "data.validation=0.2", *quick_options)
    status, out, err = main("bench", "prior", *options)
    assert status == 0, err
    assert "validation accuracy" in err
    assert "average incremental accuracy in %; scored on validation samples" in out
    (folder,) = tmp_path.glob("digits/pgdr/*/seed0")
    assert "data.validation=0.2" in folder.parent.name  # so that runs on the test set lie elsewhere
    assert json.loads((folder / "result.json").read_text())["scored_on"] == "validation"
