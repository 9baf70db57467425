"""Weights as torchvision names them, for small networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ipll.errors import ConfigError
from ipll.networks.backbones import ResNet18, imagenet_stem
from ipll.networks.pretrained import load_weights

State = dict[str, Tensor]


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def torchvision_keys() -> list[str]:
    """The keys of torchvision.models.resnet18().state_dict(), in its order."""
    keys = ["conv1.weight", *(f"bn1.{name}" for name in NORM)]
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            for i in (1, 2):
                keys += [f"layer{layer}.{block}.conv{i}.weight", *(f"layer{layer}.{block}.bn{i}.{n}" for n in NORM)]
            if layer > 1 and block == 0:
                down = f"layer{layer}.0.downsample"
                keys += [f"{down}.0.weight", *(f"{down}.1.{name}" for name in NORM)]
    return [*keys, "fc.weight", "fc.bias"]


def our_key(key: str) -> str:
    """torchvision's name -> ours, written down apart from the code under test."""
    if found := re.fullmatch(r"layer(\d)\.(\d)\.(.*)", key):
        block = 2 * (int(found[1]) - 1) + int(found[2])
        inside = found[3].replace("bn", "norm").replace("downsample", "shortcut")
        return f"blocks.{block}.{inside}"
    return key.replace("conv1", "stem.0").replace("bn1", "stem.1")


def lively(backbone: nn.Module) -> nn.Module:
    """Batch norms as after training: with values that differ between channels and layers."""
    generator = torch.Generator().manual_seed(5)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
                values = low + torch.rand(module.num_features, generator=generator)
                getattr(module, name).data.copy_(values)
            assert module.num_batches_tracked is not None
            module.num_batches_tracked.fill_(7)
    return backbone.eval()


def torchvision_state(backbone: nn.Module, classes: int = 10) -> State:
    """The weights of a ResNet-18 under torchvision's names, with a head."""
    own, width = backbone.state_dict(), int(backbone.dim)
    head = {"fc.weight": torch.rand(classes, width), "fc.bias": torch.rand(classes)}
    return {key: head[key] if key in head else own[our_key(key)] for key in torchvision_keys()}


def thin(channels: int = 3, *, width: int = 4, stem: Callable[[int, int], nn.Sequential] = imagenet_stem) -> ResNet18:
    torch.manual_seed(channels)
    return ResNet18(channels, width, stem)


def save(state: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def prefixed(prefix: str, state: State) -> State:
    return {f"{prefix}{key}": tensor for key, tensor in state.items()}


def refusal(backbone: nn.Module, weights: object, sha256: str = "") -> str:
    """-> the message; the backbone must not have changed."""
    before = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    with pytest.raises(ConfigError) as caught:
        load_weights(backbone, str(weights), sha256)
    assert all(torch.equal(tensor, before[key]) for key, tensor in backbone.state_dict().items())
    return str(caught.value)
