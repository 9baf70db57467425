"""Backbones: images [n, channels, height, width], or feature vectors [n, channels], -> features [n, dim]."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from ipll.errors import ConfigError
from ipll.networks.norm import BatchNorm, ConvNorm, Norm, conv_norm
from ipll.registry import Registry

TAKES = ("images", "features")


class Backbone(nn.Module):
    """A network without a head; `dim` is the width of its features, `takes` the kind of its samples."""

    takes: ClassVar[str] = "images"  # one of TAKES
    slow_on_cpu: bool = False  # a run of the benchmark would take days there: said when one begins
    dim: int


BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone")


def build_backbone(name: str, channels: int, generator: torch.Generator, *several: int | str) -> Backbone:
    """A fresh backbone on the CPU whose weights depend on `generator` alone; `several`: members, width, inputs.

    The factories of layers draw from the global generator. It is seeded from `generator` while the backbone is built
    and put back afterwards, so a backbone that is added from outside is reproducible without knowing of this.
    """
    factory = BACKBONES[name]
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _checked(name, _made(name, factory, channels, *several))


def _made(name: str, factory: Callable[..., Backbone], channels: int, *several: int | str) -> object:
    try:
        return factory(channels, *several)
    except (AttributeError, TypeError) as error:
        if "__init__()" not in str(error):  # of which these tell who calls it otherwise than they should
            raise
        raise ConfigError(
            f"model.backbone={name} cannot be made ({error}): its __init__ must take the number of channels alone (of "
            "features: how many there are), and begin with super().__init__()."
        ) from error


def _checked(name: str, made: object) -> Backbone:
    """Refuses what the rest of the network could not be put upon."""
    if not isinstance(made, Backbone):
        raise ConfigError(
            f"model.backbone={name} makes a {type(made).__name__}: it must be a Backbone (of ipll.networks.backbones), "
            "whose `dim` is the width of its features. Wrap it in a class Mine(Backbone)."
        )
    if not isinstance(getattr(made, "dim", None), int):
        raise ConfigError(f"model.backbone={name}: set self.dim in its __init__, the width of its features.")
    if made.takes not in TAKES:
        raise ConfigError(f"model.backbone={name}: `takes` is {made.takes!r}, must be one of {', '.join(TAKES)}.")
    return made


def conv3x3(fan_in: int, fan_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(fan_in, fan_out, kernel_size=3, stride=stride, padding=1, bias=False)


def initialise(network: nn.Module) -> None:
    """Kaiming (fan-out) for convolutions; batch norm starts as weight 1, bias 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(fan_in, fan_out, stride), Norm(fan_out)
        self.conv2, self.norm2 = conv3x3(fan_out, fan_out), Norm(fan_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            self.shortcut = ConvNorm(
                nn.Conv2d(fan_in, fan_out, kernel_size=1, stride=stride, bias=False), Norm(fan_out, relu=False)
            )

    def forward(self, x: Tensor, again: Tensor) -> tuple[Tensor, Tensor]:
        """x goes in and out twice (see Norm.twice): once for the convolution, once for the shortcut."""
        out, _ = conv_norm(self.conv1, self.norm1, x)
        return conv_norm(self.conv2, self.norm2, out, self.shortcut(again))


def small_stem(channels: int, width: int) -> ConvNorm:
    """For small images: 3x3, stride 1, no max-pool."""
    return ConvNorm(conv3x3(channels, width), Norm(width))


def imagenet_stem(channels: int, width: int) -> ConvNorm:
    """For images of 224 x 224 and the like: 7x7 of stride 2, 3x3 max-pool of stride 2."""
    conv = nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)
    return ConvNorm(conv, Norm(width), nn.MaxPool2d(kernel_size=3, stride=2, padding=1))


class ResNet18(Backbone):
    """ResNet-18, widths `width` to 8 `width`. With ImageNet's stem it computes what torchvision's resnet18 does."""

    def __init__(self, channels: int, width: int, stem: Callable[[int, int], ConvNorm] = small_stem) -> None:
        super().__init__()
        self.dim = 8 * width
        self.slow_on_cpu = width >= 64
        self.stem = stem(channels, width)
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        blocks: list[BasicBlock] = []
        for fan_in, fan_out in pairwise(widths):
            blocks += [BasicBlock(fan_in, fan_out, stride=fan_out // fan_in), BasicBlock(fan_out, fan_out, stride=1)]
        self.blocks = nn.ModuleList(blocks)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        both = self.stem.twice(x)
        for block in self.blocks:
            both = block(*both)
        return both[0].mean((2, 3))


class SmallCNN(Backbone):
    """Three 3x3 convolutions, for images of 8x8 digits and the like; trains on a CPU in seconds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dim = 64
        self.layers = nn.Sequential(
            *(conv3x3(channels, 16), BatchNorm(16), nn.ReLU()),
            *(conv3x3(16, 32, stride=2), BatchNorm(32), nn.ReLU()),
            *(conv3x3(32, self.dim), BatchNorm(self.dim), nn.ReLU()),
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features.mean((2, 3))


class MLP(Backbone):
    """Two hidden layers and a linear one, for tabular data and embeddings [n, channels].

    Layer norm, not batch norm: it treats each sample alone. A batch may then be as small as one sample, on which batch
    norm fails; the strong view's noise is no part of what the weak view is normalised by; there are no running
    statistics that follow the newest task; and an outlier in a column cannot blow up a step. The last layer
    is linear: features cut off at zero (ReLU) separate prototypes less well.
    """

    takes = "features"

    def __init__(self, channels: int, width: int = 256) -> None:
        super().__init__()
        self.dim = width
        self.layers = nn.Sequential(
            *(nn.Linear(channels, width), nn.LayerNorm(width), nn.ReLU()),
            *(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


@BACKBONES.register("resnet18")
def resnet18(channels: int) -> Backbone:
    return ResNet18(channels, width=64)


@BACKBONES.register("resnet18-imagenet")
def resnet18_imagenet(channels: int) -> Backbone:
    return ResNet18(channels, width=64, stem=imagenet_stem)


@BACKBONES.register("resnet18-thin")
def resnet18_thin(channels: int) -> Backbone:
    return ResNet18(channels, width=16)


@BACKBONES.register("small-cnn")
def small_cnn(channels: int) -> Backbone:
    return SmallCNN(channels)


@BACKBONES.register("mlp")
def mlp(channels: int) -> Backbone:
    return MLP(channels)
