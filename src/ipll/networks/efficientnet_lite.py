"""EfficientNet-Lite0 (Tan and Le, 2019; its Lite variant, Google 2020), trained on ImageNet: a photo -> 1,280 values.

It is small enough for a CPU, and its weights come as a package of their own, without any code that we would run. They
are never trained here, so batch norm is folded into the convolutions once, when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM = 1280
EPSILON = 1e-3  # of batch norm, as TensorFlow has it
# Of each stage: repeats, kernel, stride of the first block, expansion, channels in, channels out.
STAGES = (
    (1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80), (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320),
)  # fmt: skip


class Convolution(nn.Conv2d):
    """A convolution with its batch norm in it. At stride 2 an even image is padded as TensorFlow does, by one more on
    the right and below."""

    def __init__(self, fan_in: int, fan_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        around = kernel // 2 if stride == 1 else 0
        super().__init__(fan_in, fan_out, kernel, stride, padding=around, groups=groups)
        less, more = (kernel - 2) // 2, (kernel - 1) // 2
        self.uneven = (less, more, less, more) if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, self.uneven) if self.uneven else x)


class Block(nn.Module):
    """Expand, filter each channel by itself, project; and what came in is added where it has the same shape."""

    def __init__(self, kernel: int, stride: int, expansion: int, fan_in: int, fan_out: int) -> None:
        super().__init__()
        wide = expansion * fan_in
        self.expand = Convolution(fan_in, wide) if expansion > 1 else None
        self.depthwise = Convolution(wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(wide, fan_out)
        self.same = stride == 1 and fan_in == fan_out

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out: Tensor = self.project(F.relu6(self.depthwise(wide), inplace=True))
        return out.add_(x) if self.same else out


class EfficientNetLite0(nn.Module):
    """Images [n, 3, 224, 224] -> features [n, 1280], the means over the image of what the last convolution gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, 32, kernel=3, stride=2)
        blocks: list[Block] = []
        for repeats, kernel, stride, expansion, fan_in, fan_out in STAGES:
            blocks.append(Block(kernel, stride, expansion, fan_in, fan_out))
            blocks += [Block(kernel, 1, expansion, fan_out, fan_out) for _ in range(repeats - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.top = Convolution(STAGES[-1][-1], DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu6(self.stem(x), inplace=True))
        return F.relu6(self.top(x), inplace=True).mean((2, 3))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes the weights by the names of the package; a KeyError or RuntimeError where they are of another network.

        A convolution without a bias, then batch norm: w x -> g (w x - m) / s + b = (g / s w) x + (b - g m / s).
        """
        for convolution, weight, norm in self._named():
            scale, shift, mean, variance = (
                state[f"{norm}.{name}"] for name in ("weight", "bias", "running_mean", "running_var")
            )
            scale = scale / (variance + EPSILON).sqrt()
            convolution.weight.copy_(state[f"{weight}.weight"] * scale[:, None, None, None])
            assert convolution.bias is not None
            convolution.bias.copy_(shift - mean * scale)

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
