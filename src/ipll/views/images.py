"""The views of a whole chunk of samples, on whatever device they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ipll.engine import compiler
from ipll.engine.graphs import Replayed
from ipll.errors import DataError
from ipll.views import image_ops as ops
from ipll.views.augment import VIEWS, AugmentConfig, View, plain

COMPILED_BLOCK = 3 * 2**21  # values rendered at a time by compiled code: 2,048 images of 32 x 32
MOST = 2048  # and images: each call renders whole blocks
BLOCK = 2**18  # values rendered at a time on a CPU: a few MB stay in its cache, which is several times faster

OF_FEATURES = (
    "Features take another backbone and other views: --set model.backbone=mlp --set augment.weak=identity "
    "--set augment.strong=noise."
)


class Views:
    """The weak, strong and plain view of uint8 images [n, channels, height, width] -> float32, normalised.

    `mean` and `std` are per channel, of samples scaled to [0, 1]. `render` is the pure part, which can be `compiled`.
    """

    def __init__(
        self,
        config: AugmentConfig,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str,
        *,
        compiled: bool = False,
        graphs: bool = False,
    ) -> None:
        self.weak_view, self.strong_view = (VIEWS[name](config).on(device) for name in (config.weak, config.strong))
        self.plain_view = plain(config).on(device)
        self.test_size, self.test_mirror = config.test_size, config.test_mirror
        std_levels = torch.tensor(std, device=device).view(-1, 1, 1) * ops.WHITE
        self.scale = 1 / std_levels
        self.offset = -torch.tensor(mean, device=device).view(-1, 1, 1) * ops.WHITE / std_levels
        self.compiled: dict[View, Callable[[Tensor, Tensor], Tensor]] = {}
        if compiled:
            render = compiler.compiled(self.render)
            self.compiled = {view: partial(render, view) for view in (self.weak_view, self.strong_view)}
        if graphs:
            self.compiled = {view: Replayed(work, torch.device(device)) for view, work in self.compiled.items()}

    def weak(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return self._see(self.weak_view, samples, generator)

    def strong(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return self._see(self.strong_view, samples, generator)

    def plain(self, samples: Tensor) -> Tensor:
        """No augmentation: what is shown to the model at test."""
        if self.test_size and samples.shape[-2] != samples.shape[-1]:
            raise DataError(
                f"augment.test_size={self.test_size} is for square images, and these are {samples.shape[-1]} x "
                f"{samples.shape[-2]} pixels: use --set augment.test_size=0."
            )
        return self._see(self.plain_view, samples, None)

    def looks(self, samples: Tensor) -> tuple[Tensor, ...]:
        """What the model is shown of samples at test, to be averaged: the plain view, with its mirror image if set."""
        plain = self.plain(samples)
        return (plain, plain.flip(-1)) if self.test_mirror else (plain,)

    def render(self, view: View, samples: Tensor, numbers: Tensor) -> Tensor:
        """The view of `samples` that `numbers` [n, sum of the view's draws] stand for."""
        images = view.apply(samples.float(), *torch.split(numbers, list(view.draws), 1))
        return torch.addcmul(self.offset, images, self.scale)

    def _see(self, view: View, samples: Tensor, generator: torch.Generator | None) -> Tensor:
        if samples.dtype != torch.uint8 or samples.ndim != 4 or samples.shape[1] != len(self.scale):
            other = f" {OF_FEATURES}" if samples.ndim == 2 else ""
            raise DataError(
                f"samples are {samples.dtype} {list(samples.shape)}: views are made of uint8 images "
                f"[n, {len(self.scale)}, height, width].{other}"
            )
        n, values = len(samples), math.prod(samples.shape[1:])
        numbers = torch.rand((n, sum(view.draws)), generator=generator, device=samples.device)
        if view in self.compiled:
            return self._see_compiled(
                self.compiled[view], samples, numbers, min(max(1, COMPILED_BLOCK // values), MOST)
            )
        if samples.device.type != "cpu":
            return self.render(view, samples, numbers)
        block = max(1, BLOCK // values)
        parts = zip(torch.split(samples, block), torch.split(numbers, block), strict=True)
        return torch.cat([self.render(view, *part) for part in parts])

    @staticmethod
    def _see_compiled(render: Callable[..., Tensor], samples: Tensor, numbers: Tensor, block: int) -> Tensor:
        """In blocks of one length, the last one filled up: another length would be compiled anew."""
        n = len(samples)
        inputs = [_filled_up(tensor, -n % block) for tensor in (samples, numbers)]
        out = torch.empty(inputs[0].shape, device=samples.device)
        for start in range(0, n, block):
            rows = slice(start, start + block)
            out[rows] = render(*(tensor[rows] for tensor in inputs))
        return out[:n]


def _filled_up(tensor: Tensor, missing: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
