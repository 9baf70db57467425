"""The benchmark of speed runs on a CPU too, and its ratios are the right way round."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A script of the benchmarks' folder, as a module."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module


def test_sizes_and_places_in_one_run(
    benchmark: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "sizes.json"
    words = ["--device", "cpu", "--ways", "--sizes", "32", "64", "--residence", "device", "host", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["throughput.py", *words])
    benchmark("throughput").main()
    report = json.loads(out.read_text())
    assert [(row["size"], row["residence"]) for row in report["sizes"]] == [
        (size, place) for size in (32, 64) for place in ("device", "host")
    ]
    assert [row["preset"] for row in report["sizes"][::2]] == ["cifar100", "tiny-imagenet"]
    assert all(row["samples_per_second"] > 0 and row["seconds_per_epoch"] > 0 for row in report["sizes"])
    assert len(report["ratios"]) == 4
    printed = capsys.readouterr().out
    assert printed.count(" host    small-cnn ") == 2
    assert "rate at 64, host / device" in printed


def test_ratios(benchmark: Callable[[str], ModuleType]) -> None:
    rates = {(224, "host"): 900.0, (32, "device"): 36000.0, (224, "device"): 1000.0, (32, "host"): 36000.0}
    rows = [{"size": size, "residence": place, "samples_per_second": rate} for (size, place), rate in rates.items()]
    assert benchmark("sizes").ratios(rows) == {
        "cost of a sample at 224 / at 32, device": 36.0,
        "cost of a sample at 224 / at 32, host": 40.0,
        "rate at 32, host / device": 1.0,
        "rate at 224, host / device": 0.9,
    }
