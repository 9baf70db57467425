"""Photos that a model sees through a pretrained network: the ONNX file holds both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ipll.own import Model, card, export, from_arrays

photos: Any = pytest.importorskip("ipll.networks.photos")
through: Any = pytest.importorskip("ipll.own.through")
SIZE = 24


def test_the_network_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU6(), nn.AdaptiveAvgPool2d(1))
    shown = photos.Shown(SIZE, 256 / 224, "bicubic", (0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
    network = photos.PhotoNetwork("a network", body.eval(), 8, shown, "its digest")
    rng = np.random.default_rng(0)
    colour = rng.integers(3, size=200)
    x = rng.integers(0, 120, (200, SIZE, SIZE, 3)).astype(np.uint8)
    x[np.arange(200), :, :, colour] += 100
    features = network.features(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), torch.device("cpu"))
    plain = Model.fit(from_arrays(features, [["rgb"[c]] for c in colour]), settings={"train.epochs": 3}, device="cpu")
    model: Any = replace(plain, through=through.Through("a network", "its digest"))  # type: ignore[call-arg]
    monkeypatch.setattr(through.Through, "find", lambda _: network)

    export(model, tmp_path / "photos.onnx")
    session = runtime.InferenceSession(tmp_path / "photos.onnx")
    probabilities, classes, _, _ = session.run(None, {"input": x})
    wanted = plain.predict(from_arrays(features, [["r", "g"]] * 200), device="cpu")
    np.testing.assert_allclose(probabilities, wanted.probabilities, atol=1e-4)
    np.testing.assert_array_equal(classes, wanted.classes)
    told = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert (told["kind"], told["size"], told["resampling"], told["network"]) == ("images", SIZE, "bicubic", "a network")

    export(model, tmp_path / "weights", format="safetensors")
    assert "They go through a network first" in (tmp_path / "weights" / "README.md").read_text()
    assert "seen through the pretrained network a network" in card(model)
