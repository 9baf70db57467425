"""Augmentation: two random views of each image, made for a whole batch at once.

A view is a pure function of the images and of uniform random numbers, some per sample. The numbers are drawn first, in
one call, from the generator that is given; so the pure part, `Views.render`, can be compiled and captured, and a
sample's view depends only on its own row of numbers, not on how a batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.data import image_ops as ops
from ipll.data.random_ops import (
    CROP,
    JITTER,
    OPERATIONS,
    between,
    mild_colour,
    mild_geometry,
    random_crop,
    random_grey,
    random_jitter,
    random_mirror,
)
from ipll.errors import DataError
from ipll.registry import Registry
from ipll.settings import check, check_choice, setting

ROUNDS = 3  # operations of the mild view
BLOCK = 2**18  # values rendered at a time on a CPU: a few MB stay in its cache, which is several times faster


@dataclass(frozen=True)
class AugmentConfig:
    """How the two views are made."""

    weak: str = setting("sim", "the weak view, by name", "paper")
    strong: str = setting("mild", "the strong view, by name; the paper cites RandAugment and gives no strengths")
    flip: bool = setting(True, "mirror half of the images (never in 'shift' and 'warp')", "official code")
    min_scale: float = setting(0.2, "smallest area of a random resized crop, as a share", "official code")

    def __post_init__(self) -> None:
        check_choice("augment.weak", self.weak, tuple(VIEWS))
        check_choice("augment.strong", self.strong, tuple(VIEWS))
        check(0 < self.min_scale <= 1, "augment.min_scale", "be in (0, 1]", self.min_scale)


@dataclass(frozen=True)
class View:
    """`apply(images, *numbers)`: images are float grey levels 0 to 255, [n, channels, height, width], in and out.

    `numbers` are one tensor [n, k] of uniform random numbers in [0, 1) for each k in `draws`.
    """

    draws: tuple[int, ...]
    apply: Callable[..., Tensor]


VIEWS: Registry[Callable[[AugmentConfig], View]] = Registry("view")


@VIEWS.register("sim")
def sim(config: AugmentConfig) -> View:
    """SimAugment (Khosla et al. 2020): resized crop, mirror, colour jitter, grey."""

    def apply(images: Tensor, crop: Tensor, mirror: Tensor, jitter: Tensor, grey: Tensor) -> Tensor:
        box = random_crop(crop, config.min_scale, *images.shape[-2:])
        images = ops.resample(images, random_mirror(box, mirror, config.flip))
        return random_grey(random_jitter(images, jitter), grey)

    return View((CROP, 1, JITTER, 1), apply)


@VIEWS.register("mild")
def mild(config: AugmentConfig) -> View:
    """Resized crop, mirror, then three operations of fixed, mild strength, drawn with replacement (RandAugment).

    The geometric ones are folded into the crop, and pixels are sampled once. Brightness, colour, posterize and solarize
    act on each pixel alone, so they may as well come after; contrast, autocontrast and sharpness only nearly so. What a
    turned or shifted crop uncovers is shown where the image has it, and is black beyond the image.
    """

    def apply(images: Tensor, crop: Tensor, mirror: Tensor, which: Tensor, side: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        operations = torch.split((which * len(OPERATIONS)).int(), 1, 1)
        signs = torch.split(torch.where(side < 0.5, -1.0, 1.0), 1, 1)
        matrix = random_mirror(random_crop(crop, config.min_scale, height, width), mirror, config.flip)
        for operation, sign in zip(operations, signs, strict=True):
            matrix = ops.compose(matrix, mild_geometry(operation, sign, height, width))
        images = ops.resample(images, matrix, black=True)
        for operation, sign in zip(operations, signs, strict=True):
            images = mild_colour(images, operation, sign)
        return images

    return View((CROP, 1, ROUNDS, ROUNDS), apply)


@VIEWS.register("pad-crop")
def pad_crop(config: AugmentConfig) -> View:
    """Pads by an eighth of the size, reflected, crops back to the size, mirrors."""

    def apply(images: Tensor, places: Tensor, mirror: Tensor) -> Tensor:
        pads = [size // 8 for size in images.shape[-2:]]
        down, right = ((places[:, k : k + 1] * (2 * pad + 1)).long() - pad for k, pad in enumerate(pads))
        return ops.reflect_shift(images, right, down, (mirror < 0.5) & config.flip)

    return View((2, 1), apply)


@VIEWS.register("shift")
def shift(config: AugmentConfig) -> View:
    """Weak view of digits and the like: a resized crop, nothing else."""

    def apply(images: Tensor, crop: Tensor) -> Tensor:
        return ops.resample(images, random_crop(crop, config.min_scale, *images.shape[-2:]))

    return View((CROP,), apply)


@VIEWS.register("warp")
def warp(config: AugmentConfig) -> View:
    """Strong view of digits and the like: turned, scaled, moved, brightness and contrast by 20 %, a small cutout."""

    def apply(images: Tensor, pose: Tensor, light: Tensor, hole: Tensor) -> Tensor:
        turn, zoom, *moves = torch.split(pose, 1, 1)
        right, down = (between(move, -0.1, 0.1) for move in moves)
        angle, zoom, zero = between(turn, -1, 1) * math.radians(15), between(zoom, 0.8, 1.1), torch.zeros_like(zoom)
        matrix = ops.affine(images.shape[-2], images.shape[-1], angle, zero, zero, right, down)
        images = ops.resample(images, matrix / zoom[..., None], black=True)
        bright, contrast = torch.split(between(light, 0.8, 1.2), 1, 1)
        offset = bright * ops.contrast_offset(images, contrast)
        images = ops.recolour(images, bright * contrast, offset, zero + 1, zero)
        return ops.cutout(images, hole[:, :1], hole[:, 1:], side=0.25)

    return View((4, 2, 2), apply)


@VIEWS.register("identity")
def identity(config: AugmentConfig) -> View:
    """The image as it is."""
    return View((), lambda images: images)


class Views:
    """The weak, strong and plain view of uint8 images [n, channels, height, width] -> float32, normalised.

    `mean` and `std` are per channel, of samples scaled to [0, 1]. `render` is the pure part, for a compiler to wrap.
    """

    def __init__(
        self, config: AugmentConfig, mean: Sequence[float], std: Sequence[float], device: torch.device | str
    ) -> None:
        self.weak_view = VIEWS[config.weak](config)
        self.strong_view = VIEWS[config.strong](config)
        self.plain_view = VIEWS["identity"](config)
        std_levels = torch.tensor(std, device=device).view(-1, 1, 1) * ops.WHITE
        self.scale = 1 / std_levels
        self.offset = -torch.tensor(mean, device=device).view(-1, 1, 1) * ops.WHITE / std_levels

    def weak(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return self._see(self.weak_view, samples, generator)

    def strong(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return self._see(self.strong_view, samples, generator)

    def plain(self, samples: Tensor) -> Tensor:
        """No augmentation: what is shown to the model at test."""
        return self._see(self.plain_view, samples, None)

    def render(self, view: View, samples: Tensor, numbers: Tensor) -> Tensor:
        """The view of `samples` that `numbers` [n, sum of the view's draws] stand for."""
        images = view.apply(samples.float(), *torch.split(numbers, list(view.draws), 1))
        return torch.addcmul(self.offset, images, self.scale)

    def _see(self, view: View, samples: Tensor, generator: torch.Generator | None) -> Tensor:
        if samples.dtype != torch.uint8 or samples.ndim != 4 or samples.shape[1] != len(self.scale):
            raise DataError(
                f"samples are {samples.dtype} {list(samples.shape)}: views are made of uint8 images "
                f"[n, {len(self.scale)}, height, width]."
            )
        numbers = torch.rand((len(samples), sum(view.draws)), generator=generator, device=samples.device)
        if samples.device.type != "cpu":
            return self.render(view, samples, numbers)
        block = max(1, BLOCK // math.prod(samples.shape[1:]))
        parts = zip(torch.split(samples, block), torch.split(numbers, block), strict=True)
        return torch.cat([self.render(view, *part) for part in parts])
