"""The campaign of kills, mutants, links and full disks, in short; the long one is run by hand (docs/reliability.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "reliability.py"


@pytest.mark.slow
def test_a_short_campaign(tmp_path: Path) -> None:
    words = ["--kills", "6", "--mutants", "90", "--others", "40", "--seed", "5", "--out", str(tmp_path / "x.json")]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "x.json").read_text())
    assert not report["failures"]
    outcomes = {name: sum(row[name] for row in report["counts"].values()) for name in ("same", "refused")}
    assert sum(outcomes.values()) == 6 + 90 + 40 + 10
    assert min(outcomes.values()) > 20  # harm was done, and not to everything
