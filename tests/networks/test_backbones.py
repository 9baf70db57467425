"""Backbones: sizes, features, and initialisation that depends on the generator alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ipll.errors import ConfigError
from ipll.networks.backbones import BACKBONES, Backbone, ResNet18, build_backbone

IMAGES = [name for name in BACKBONES if name not in ("mlp", "wide-deep")]  # those that take images


def build(name: str, channels: int = 3, seed: int = 0) -> Backbone:
    return build_backbone(name, channels, torch.Generator().manual_seed(seed))


def test_resnet18_has_the_parameters_of_the_cifar_resnet18() -> None:
    assert sum(p.numel() for p in build("resnet18").parameters()) == 11_168_832


@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    [
        ("resnet18", (2, 3, 32, 32), 512),
        ("resnet18-imagenet", (2, 3, 64, 64), 512),
        ("resnet18-thin", (2, 3, 32, 32), 128),
        ("resnet18-thin", (2, 1, 28, 28), 128),
        ("small-cnn", (2, 1, 8, 8), 64),
        ("small-cnn", (2, 3, 32, 32), 64),
        ("mlp", (2, 20), 256),
    ],
)
def test_features(name: str, shape: tuple[int, ...], dim: int) -> None:
    backbone = build(name, shape[1])
    features = backbone(torch.rand(shape))
    assert backbone.dim == dim
    assert features.shape == (2, dim)
    features.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())


def test_resnet18_keeps_small_images_large() -> None:
    """Stride 1 in the stem and no max-pool: three halvings, 32 -> 4."""
    backbone = build("resnet18-thin")
    assert isinstance(backbone, ResNet18)
    assert backbone.stem(torch.rand(1, 3, 32, 32)).shape[-2:] == (32, 32)
    sides = []
    for block in backbone.blocks:
        block.register_forward_hook(lambda block, inputs, outputs: sides.append(outputs[0].shape[-1]))
    backbone(torch.rand(1, 3, 32, 32))
    assert sides == [32, 32, 16, 16, 8, 8, 4, 4]


@pytest.mark.parametrize("name", list(BACKBONES))
def test_initialisation_depends_on_the_generator_alone(name: str) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build(name).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = build(name).state_dict(), build(name, seed=1).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key, value in first.items() if value.ndim > 1]  # of convolutions and linear layers
    assert weights
    assert not any(torch.equal(first[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", IMAGES)
def test_kaiming_fan_out(name: str) -> None:
    for module in build(name).modules():
        if isinstance(module, nn.Conv2d):
            n, fan_out = module.weight.numel(), module.out_channels * math.prod(module.kernel_size)
            ratio = module.weight.std().item() / math.sqrt(2 / fan_out)
            assert abs(ratio - 1) < 5 / math.sqrt(2 * n)
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_changes_the_layout_only(name: str) -> None:
    backbone, images = build(name).eval(), torch.rand(4, 3, 16, 16)
    expected = backbone(images)
    layout = torch.channels_last
    out = backbone.to(memory_format=layout)(images.to(memory_format=layout))
    assert torch.allclose(out, expected, rtol=1e-3, atol=1e-4)


def test_an_unknown_backbone_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown backbone 'resnet81'\. Did you mean 'resnet18'"):
        build("resnet81")


class Configured(Backbone):
    def __init__(self, config: object, channels: int) -> None:
        super().__init__()
        self.dim = channels


class Unbegun(Backbone):
    def __init__(self, channels: int) -> None:
        self.layer = nn.Linear(channels, 4)


@pytest.mark.parametrize("backbone", [Configured, Unbegun])
def test_one_that_cannot_be_made_is_told_what_it_is_made_with(
    backbone: type[Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKBONES.members, "mine", backbone)
    says = r"^model\.backbone=mine cannot be made \(.*\): its __init__ must take the number of channels alone"
    with pytest.raises(ConfigError, match=says):
        build("mine")
