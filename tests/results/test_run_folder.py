"""What a run leaves: every field is told, its learner can be had back, and where it was made is not forgotten."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipll
from ipll.benchmark import run as running
from ipll.engine.sealed import read_sealed
from ipll.progress import Silent

PAGE = Path(__file__).parents[2] / "docs" / "run_folder.md"
QUICK: dict[str, Any] = {"train.epochs": 2, "train.steps_per_epoch": 3, "memory.size": 40, "stream.tasks": 3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "digits-pgdr-seed0"
    ipll.run("digits", "pgdr", out=folder, device="cpu", **QUICK)
    return folder


def told() -> set[str]:
    return set(re.findall(r"`(\w+)`", PAGE.read_text()))


def test_every_field_is_told(finished: Path) -> None:
    assert read_sealed(finished / "result.json").keys() <= told()
    for line in (finished / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        known = told() | {name.removesuffix("_per_task") for name in told()}
        assert record.keys() <= known
        if record["kind"] == "epoch":
            assert sum(record["terms"].values()) == pytest.approx(record["loss"], rel=1e-5)


def test_the_learner_of_a_finished_run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    learner, source, stream, tasks = ipll.load_learner(finished, device="cpu")
    predicted = stream.class_order[learner.predict(torch.from_numpy(source.test_samples)).classes.numpy()]
    result = ipll.Result.load(finished)
    assert tasks == 3
    assert 100 * (predicted == source.test_labels).mean() == pytest.approx(result.last_accuracy)
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(finished.parent)
    found: dict[str, Any] = {}
    exec(example.replace("runs/", ""), found)
    assert np.array_equal(found["predicted"], predicted)
    assert found["features"].shape == (len(source.test_labels), 64)


@pytest.mark.parametrize("method", ["proden+bic", "pico+er-ace", "pgdr/best", "proden+icarl"])
def test_learners_of_other_methods(method: str, tmp_path: Path) -> None:
    result = ipll.run("digits", method, out=tmp_path / "run", device="cpu", **QUICK)
    learner, source, stream, _ = ipll.load_learner(tmp_path / "run", device="cpu")
    truth = torch.from_numpy(stream.arrival[source.test_labels])
    right = learner.predict(torch.from_numpy(source.test_samples)).classes == truth
    assert 100 * float(right.double().mean()) == pytest.approx(result.last_accuracy)


class StopIn(Silent):
    def __init__(self, task: int) -> None:
        self.at = task

    def epoch(self, position: ipll.learner.Position, record: dict[str, Any]) -> None:
        if position.task == self.at:
            raise KeyboardInterrupt


def test_a_run_whose_learner_is_half_way(tmp_path: Path) -> None:
    settings = QUICK | {"train.checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        ipll.run("digits", out=tmp_path / "run", device="cpu", reporter=StopIn(1), **settings)
    with pytest.raises(ipll.RunError, match=r"within task 2\. Go on with: ipll resume"):
        ipll.load_learner(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(ipll.RunError, match=r"it has none\. Go on with"):
        ipll.load_learner(tmp_path / "run")
    with pytest.raises(ipll.RunError, match="there is no run here"):
        ipll.load_learner(tmp_path)


def test_where_a_run_was_before_it_was_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = running.describe(torch.device("cpu"))
    monkeypatch.setattr(running, "describe", lambda _: here | {"hardware": "a slow card"})
    with pytest.raises(KeyboardInterrupt):
        ipll.run("digits", out=tmp_path / "run", device="cpu", reporter=StopIn(1), **QUICK)
    monkeypatch.setattr(running, "describe", lambda _: here | {"hardware": "a fast card"})
    result = ipll.resume(tmp_path / "run", device="cpu")
    assert result["environment"]["hardware"] == "a fast card"
    assert [one["hardware"] for one in result["earlier_environments"]] == ["a slow card"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "hardware a slow card" in page
    assert "a slow card, a fast card" in page
