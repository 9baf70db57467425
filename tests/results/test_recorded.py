"""What the observer records for the report: how pseudo-labels moved, and what old and new were taken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipll
from ipll.benchmark.observer import Observer


@pytest.fixture(scope="module", params=["pgdr", "proden+ancl"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ipll.Result:
    out = tmp_path_factory.mktemp("recorded") / "run"
    return ipll.run("digits", request.param, out=out, **{"train.epochs": 3, "stream.tasks": 3})


def test_moves_lead_from_the_first_epoch_to_the_end(result: ipll.Result) -> None:
    first, last = result["pseudo_label_first_accuracy_per_task"], result["pseudo_label_accuracy_per_task"]
    to_right, to_wrong = result["pseudo_label_to_right_per_task"], result["pseudo_label_to_wrong_per_task"]
    assert np.array(first) + to_right - to_wrong == pytest.approx(last)
    assert sum(to_right) > 0
    assert all(0 < chance < 100 for chance in result["pseudo_label_chance_per_task"])
    assert result["pseudo_label_chance_per_task"] == sorted(result["pseudo_label_chance_per_task"], reverse=True)


def test_chance_is_the_mean_share_of_a_candidate(result: ipll.Result) -> None:
    assert result.folder is not None
    stream = ipll.Stream.load(result.folder / "stream.npz")
    sizes = [stream.candidates[stream.task == t].sum(axis=1) for t in range(len(stream))]
    assert result["pseudo_label_chance_per_task"] == pytest.approx([float(100 * (1 / s).mean()) for s in sizes])


def test_old_and_new_agree_with_the_confusion(result: ipll.Result) -> None:
    confusion, old = np.array(result["confusion"]), result["seen_classes_per_task"][-2]
    expected = [100 * confusion[:old, old:].sum() / confusion[:old].sum()]
    expected += [100 * confusion[old:, :old].sum() / confusion[old:].sum()]
    assert [result["old_as_new_per_task"][-1], result["new_as_old_per_task"][-1]] == pytest.approx(expected)
    assert result["old_as_new_per_task"][0] is result["new_as_old_per_task"][0] is None


def test_a_run_resumed_from_an_earlier_versions_checkpoint_lacks_only_the_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Observer.after_epoch

    def forgetful(self: Observer, *arguments: Any) -> Any:
        record = whole(self, *arguments)
        self.state.pop("first_right", None)  # such a checkpoint does not hold it
        return record

    monkeypatch.setattr(Observer, "after_epoch", forgetful)
    result = ipll.run("digits", out=tmp_path / "run", **{"train.epochs": 1, "stream.tasks": 2})
    assert result["pseudo_label_to_right_per_task"] == [None, None]
    assert None not in result["pseudo_label_accuracy_per_task"]
    assert "Not recorded" in (tmp_path / "run" / "report.html").read_text()
