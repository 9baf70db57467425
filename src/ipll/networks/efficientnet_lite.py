"""EfficientNet-Lite0 (Tan and Le, 2019; its Lite variant, Google 2020), trained on ImageNet: a photo -> 1,280 values.

It is small enough for a CPU, and its weights come as a package of their own, without any code that we would run. Where
photos are only seen through it, batch norm is folded into the convolutions once, when the weights are read; the
backbone of the same name, which a run trains on, has it behind each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipll.errors import ConfigError
from ipll.networks.backbones import BACKBONES, Backbone, initialise
from ipll.networks.norm import BatchNorm

NAME = "efficientnet-lite0"
DIM = 1280
EPSILON = 1e-3  # of batch norm, as TensorFlow has it
SHOWN = ((127 / 255,) * 3, (128 / 255,) * 3)  # mean and standard deviation of colours when it was trained
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # and those that data sets of photographs have here
# Of each stage: repeats, kernel, stride of the first block, expansion, channels in, channels out.
STAGES = (
    (1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80), (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320),
)  # fmt: skip


class Convolution(nn.Conv2d):
    """A convolution with its batch norm in it. At stride 2 an image is padded as TensorFlow does: an even one by one
    more on the right and below."""

    folded: ClassVar[bool] = True

    def __init__(self, fan_in: int, fan_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        around = kernel // 2 if stride == 1 else 0
        super().__init__(fan_in, fan_out, kernel, stride, padding=around, groups=groups, bias=self.folded)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] == 2:
            (above, below), (left, right) = (self._around(side) for side in x.shape[-2:])
            x = F.pad(x, (left, right, above, below))
        return super().forward(x)

    def _around(self, side: int) -> tuple[int, int]:
        total = self.kernel_size[0] - 2 + side % 2
        return total // 2, total - total // 2

    def take(self, weight: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> None:
        """A convolution without a bias, then batch norm: w x -> g (w x - m) / s + b = (g / s w) x + (b - g m / s)."""
        scale = scale / (variance + EPSILON).sqrt()
        self.weight.copy_(weight * scale[:, None, None, None])
        assert self.bias is not None
        self.bias.copy_(shift - mean * scale)


class Normed(Convolution):
    """A convolution with its batch norm behind it, to be trained."""

    folded = False

    def __init__(self, fan_in: int, fan_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(fan_in, fan_out, kernel, stride, groups)
        self.norm = BatchNorm(fan_out, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(super().forward(x))
        return out

    def take(self, weight: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> None:
        names = (self.weight, self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var)
        for own, given in zip(names, (weight, scale, shift, mean, variance), strict=True):
            assert own is not None
            own.copy_(given)


class Block(nn.Module):
    """Expand, filter each channel by itself, project; and what came in is added where it has the same shape."""

    def __init__(
        self, layer: type[Convolution], kernel: int, stride: int, expansion: int, fan_in: int, fan_out: int
    ) -> None:
        super().__init__()
        wide = expansion * fan_in
        self.expand = layer(fan_in, wide) if expansion > 1 else None
        self.depthwise = layer(wide, wide, kernel, stride, groups=wide)
        self.project = layer(wide, fan_out)
        self.same = stride == 1 and fan_in == fan_out

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out: Tensor = self.project(F.relu6(self.depthwise(wide), inplace=True))
        return out.add_(x) if self.same else out


class EfficientNetLite0(nn.Module):
    """Images [n, 3, 224, 224] -> features [n, 1280], the means over the image of what the last convolution gives."""

    def __init__(self, layer: type[Convolution] = Convolution) -> None:
        super().__init__()
        self.stem = layer(3, 32, kernel=3, stride=2)
        blocks: list[Block] = []
        for repeats, kernel, stride, expansion, fan_in, fan_out in STAGES:
            blocks.append(Block(layer, kernel, stride, expansion, fan_in, fan_out))
            blocks += [Block(layer, kernel, 1, expansion, fan_out, fan_out) for _ in range(repeats - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.top = layer(STAGES[-1][-1], DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu6(self.stem(x), inplace=True))
        return F.relu6(self.top(x), inplace=True).mean((2, 3))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes the weights by the names of the package; an error where they are of another network."""
        for convolution, weight, norm in self._named():
            values = (state[f"{norm}.{name}"] for name in ("weight", "bias", "running_mean", "running_var"))
            convolution.take(state[f"{weight}.weight"], *values)

    def _named(self) -> Iterator[tuple[Convolution, str, str]]:
        """-> every convolution, its name and its batch norm's in the package."""
        yield self.stem, "_conv_stem", "_bn0"
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            names = (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2"))
            for name, norm in names:
                if (convolution := getattr(block, name)) is not None:
                    yield convolution, f"_blocks.{index}._{name}_conv", f"_blocks.{index}.{norm}"
        yield self.top, "_conv_head", "_bn1"


class Lite0(Backbone):
    """The network as a backbone to be trained, of images normalised by ImageNet's constants, as photographs are."""

    scale: Tensor  # [3, 1, 1]
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.slow_on_cpu = DIM, True
        self.layers = EfficientNetLite0(Normed)
        initialise(self)
        (mean, std), (own_mean, own_std) = (torch.tensor(values)[..., None, None] for values in (IMAGENET, SHOWN))
        self.register_buffer("scale", std / own_std, persistent=False)
        self.register_buffer("shift", (mean - own_mean) / own_std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(torch.addcmul(self.shift, x, self.scale))
        return features


@BACKBONES.register(NAME)
def lite0(channels: int) -> Backbone:
    if channels != 3:
        raise ConfigError(f"model.backbone={NAME} takes images of three channels, and these have {channels}.")
    return Lite0()
