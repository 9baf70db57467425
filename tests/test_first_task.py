"""benchmarks/first_task.py judges by training samples that come later, never by test samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "first_task.py"


@pytest.mark.slow
def test_tries_are_judged_by_what_comes_later(tmp_path: Path) -> None:
    tries = ("pgdr", "pico+pgdr,auxiliary.contrastive.key_momentum=0.9")
    command = [sys.executable, str(SCRIPT), "digits", "--set", "train.epochs=3", "--set", "stream.blurry=30"]
    command += [word for text in tries for word in ("--try", text)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--out", str(tmp_path / "x.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "x.json").read_text())["runs"]
    assert [run["method"] for run in runs] == ["pgdr", "pico+pgdr"]
    assert runs[1]["settings"]["auxiliary.contrastive.key_momentum"] == 0.9
    for run in runs:
        assert 60 < run["judged_by"] < 120  # 30 % of two classes of 143 or so
        assert run["accuracy"] > 60
        assert 0 <= run["linear_accuracy"] <= 100
