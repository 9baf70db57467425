"""PyCIL beside ours: it runs on a CPU where its folder is at hand ($PYCIL), and what stands in for what it needs."""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(autouse=True)
def _scripts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "benchmarks")


def test_the_transforms_do_what_their_names_say() -> None:
    needs = importlib.import_module("pycil_needs")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    plain = needs.Compose([needs.ToTensor(), needs.Normalize((0.5,) * 3, (0.25,) * 3)])(Image.fromarray(pixels))
    assert torch.allclose(plain, (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - 0.5) / 0.25, atol=1e-5)
    flipped = needs.RandomHorizontalFlip(p=1.0)(Image.fromarray(pixels))
    assert (np.asarray(flipped) == pixels[:, ::-1]).all()
    cut = np.asarray(needs.RandomCrop(32, padding=4)(Image.fromarray(pixels)))
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)))
    assert any((cut == padded[y : y + 32, x : x + 32]).all() for y in range(9) for x in range(9))
    assert (np.asarray(needs.ColorJitter(brightness=0.0)(Image.fromarray(pixels))) == pixels).all()


def test_stand_ins_are_gone_afterwards() -> None:
    needs = importlib.import_module("pycil_needs")
    before = [name for name in needs.MAKE if find_spec(name) is None]
    with needs.stand_ins() as missing:
        assert missing == before
        assert all(name in sys.modules for name in missing)
    assert [name for name in needs.MAKE if find_spec(name) is None] == before


def test_another_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        importlib.import_module("peers").main()
    assert "git clone https://github.com/G-U-N/PyCIL" in capsys.readouterr().err


@pytest.mark.skipif("PYCIL" not in os.environ, reason="needs PyCIL's folder in $PYCIL")
def test_both_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "peers.json"
    words = [os.environ["PYCIL"], "--device", "cpu", "--epochs", "1", "--workers", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["peers.py", *words])
    importlib.import_module("peers").main()
    report = json.loads(out.read_text())
    assert [row["method"] for row in report["rows"]] == ["proden+icarl", *["iCaRL"] * 2, "proden+wa", *["WA"] * 2]
    assert len({(row["steps"], row["batch"]) for row in report["rows"]}) == 1
    assert set(report["ratios"]) == {"iCaRL", "WA"}
