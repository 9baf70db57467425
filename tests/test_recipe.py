"""benchmarks/recipe.py: trials never see the test set, share what they have in common, and are told in one table."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts import FOLDER, load_script

QUICK = ["--preset", "digits", "--method", "pgdr", "--tasks", "2"]
QUICK += [word for item in ("train.epochs=1", "train.steps_per_epoch=2", "stream.tasks=3") for word in ("--set", item)]

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the benchmarks are not in the source distribution")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("recipe")


@pytest.fixture(scope="module")
def trials(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """-> a folder with three trials that differ in later tasks alone, and with what they share in `first`."""
    folder = tmp_path_factory.mktemp("recipe")
    for name, options in (
        ("base", []),
        ("kd-3", ["--set", "retention.weight=3"]),
        ("boosted", ["--set", "retention.kind=boost"]),
    ):
        script.main(["run", name, *QUICK, *options, "--first", str(folder / "first"), "--out", str(folder)])
    return folder


def read(folder: Path, name: str) -> dict[str, Any]:
    trial: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return trial


def test_a_trial_is_scored_on_validation_samples(trials: Path) -> None:
    trial = read(trials, "kd-3")
    assert trial["scored_on"] == "validation"
    assert trial["config"]["data"]["validation"] == 0.1
    assert (trial["seed"], trial["tasks"], len(trial["rows"])) == (100, 2, 2)
    assert trial["config"]["retention"]["weight"] == 3
    assert trial["set"]["retention.weight"] == 3
    accuracies = [row["accuracy"] for row in trial["rows"]]
    assert trial["mean"] == pytest.approx(sum(accuracies) / 2)
    assert all(0 <= accuracy <= 100 for accuracy in (*accuracies, *trial["mean_by"].values()))


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--seed", "99"], "seed 100 or more"), (["--set", "data.validation=0"], "never scored on the test set")],
)
def test_what_would_spoil_a_published_number_is_refused(
    script: ModuleType, tmp_path: Path, options: list[str], says: str
) -> None:
    with pytest.raises(SystemExit, match=says):
        script.main(["run", "bad", *QUICK, *options, "--out", str(tmp_path / "out")])
    assert not list(tmp_path.iterdir())


def test_trials_that_differ_in_later_tasks_share_the_first(trials: Path) -> None:
    """It is learnt once, whatever retention comes later; the second task is each trial's own."""
    assert len(list((trials / "first").iterdir())) == 1
    base, *others = (read(trials, name) for name in ("base", "kd-3", "boosted"))
    for other in others:
        assert other["rows"][0] == base["rows"][0]  # how long it took included
        assert other["rows"][1]["losses"] != base["rows"][1]["losses"]


def test_what_does_something_in_the_first_task_is_not_shared(script: ModuleType, trials: Path) -> None:
    same, other = (
        script.first_task_of(script.resolve("digits", "pgdr", seed=100, overrides=overrides))
        for overrides in ({}, {"augment.cutmix": 1.0})
    )
    assert same != other
    later = {"train.later_epochs": 7, "separation.alpha": 0.5, "retention.views": "all"}
    assert same == script.first_task_of(script.resolve("digits", "pgdr", seed=100, overrides=later))


def test_the_summary_has_a_row_for_each_trial(
    script: ModuleType, trials: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    script.main(["summary", str(trials)])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| trial | changed |")
    cells = {row.split("|")[1].strip(): row.split("|") for row in rows}
    assert set(cells) == {"base", "kd-3", "boosted"}
    assert "retention.weight=3" in cells["kd-3"][2]
    assert "retention.kind=boost" in cells["boosted"][2]
    for name, row in cells.items():
        assert f"{read(trials, name)['mean']:.2f}" in row[5]
