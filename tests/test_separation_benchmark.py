"""The study of the separation: it judges as the library does, on the inputs of an undisturbed run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ipll
from ipll.config import Config
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from scripts import FOLDER, load_script

SETTINGS: dict[str, Any] = {"stream.tasks": 3, "stream.blurry": 30, "stream.q": 0.3, "train.epochs": 3}

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the benchmarks are not in the source distribution")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("separation")


@pytest.fixture(scope="module")
def kept(
    script: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    as_options: Callable[[Mapping[str, Any]], list[str]],
) -> Path:
    """The folder of a collected run; not to be changed."""
    folder = tmp_path_factory.mktemp("separation") / "kept"
    script.main(["collect", "digits", "--out", str(folder), "--device", "cpu", *as_options(SETTINGS)])
    return folder


@pytest.fixture(scope="module")
def rows(script: ModuleType, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("compared") / "separation.json"
    script.main(["compare", str(kept), "--out", str(out)])
    return {row["variant"]: row for row in json.loads(out.read_text())["rows"]}


@pytest.fixture(scope="module")
def source() -> Source:
    return load_source("digits")


@pytest.fixture(scope="module")
def tasks(script: ModuleType, kept: Path, source: Source) -> list[Any]:
    config = Config.from_table(json.loads((kept / "run.json").read_text())["config"])
    stream = Stream.build(source, config.stream, config.seed)
    return [script.load(path, stream, stream.arrival[source.train_labels]) for path in sorted(kept.glob("task*.npz"))]


def test_the_default_is_what_a_run_reports(
    script: ModuleType, kept: Path, rows: dict[str, Any], tasks: list[Any]
) -> None:
    """Of a run that nobody watched; features are kept in half precision, so that one sample a task may differ."""
    result = ipll.run("digits", device="cpu", **SETTINGS)
    collected = json.loads((kept / "run.json").read_text())
    assert len(tasks) == 2
    for name, groups in (("old", [t.truly_old for t in tasks]), ("new", [~t.truly_old for t in tasks])):
        reported = result[f"separation_{name}_recall_per_task"]
        assert collected[f"separation_{name}_recall_per_task"] == reported
        for ours, own, group in zip(rows[script.DEFAULT][f"{name}_recall_per_task"], reported[1:], groups, strict=True):
            assert 0 < own < 100
            assert abs(ours - own) <= 100 / int(group.sum()) + 1e-9


def test_every_variant_is_there(script: ModuleType, rows: dict[str, Any]) -> None:
    assert list(rows) == [variant.name for variant in (*script.VARIANTS, script.ORACLE)]
    for row in rows.values():
        assert row["mean"] == pytest.approx((row["old_recall"] + row["new_recall"]) / 2)
        assert row["old_recall"] == pytest.approx(np.mean(row["old_recall_per_task"]))
        assert 0.5 < row["auc"] <= 1


def test_certain_samples_help_old_and_leave_new(script: ModuleType, rows: dict[str, Any]) -> None:
    without, with_them = (rows[variant.name] for variant in script.VARIANTS[:2])
    assert with_them["old_recall"] > without["old_recall"]
    assert with_them["new_recall_per_task"] == without["new_recall_per_task"]
    assert with_them["auc"] == without["auc"]


@pytest.mark.parametrize("certain", [True, False])
def test_the_best_threshold_is_the_best_of_all(script: ModuleType, tasks: list[Any], certain: bool) -> None:
    for t in tasks:
        e = (10 * script.COSINE(t)).round() / 10  # many equal values
        forced = t.certain & certain
        means = []
        for threshold in [-1.0, *e[e.isfinite()].unique().tolist()]:
            judged = forced | (e <= threshold + 1e-6)
            means.append(float(judged[t.truly_old].double().mean() + (~judged[~t.truly_old]).double().mean()))
        assert script.best_mean(t, e, certain=certain) == pytest.approx(50 * max(means), abs=1e-3)


def test_samples_of_another_stream_are_refused(script: ModuleType, kept: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(kept, tmp_path / "kept")
    run = json.loads((folder / "run.json").read_text())
    run["config"]["seed"] = 1
    (folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(SystemExit, match=r"task002\.npz holds other candidate sets"):
        script.main(["compare", str(folder)])


def test_a_folder_in_use_is_refused(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(SystemExit, match="not empty"):
        script.main(["collect", "digits", "--out", str(tmp_path)])
