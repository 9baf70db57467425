"""Augmentation: two random views of each image, made for a whole batch at once.

A view is a pure function of the images and of uniform random numbers, some per sample. The numbers are drawn first, in
one call, from the generator that is given; so the pure part, `Views.render`, can be compiled and captured, and a
sample's view depends only on its own row of numbers, not on how a batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ipll.registry import Registry
from ipll.settings import Section, setting
from ipll.views import image_ops as ops
from ipll.views.pillow_ops import hole, operate, whole
from ipll.views.policies import papi_choice, papi_table, pico_choice, pico_hole, pico_table
from ipll.views.random_ops import (
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

ROUNDS = 3  # operations of the mild and of PiCO's view
NOISE = "noise"  # the strong view of features (`feature_views.py`); all other names are views of images


@dataclass(frozen=True)
class AugmentConfig(Section, name="augment"):
    """How the two views are made."""

    weak: str = setting("sim", "the weak view", "paper", choices=lambda: (*VIEWS, NOISE))
    strong: str = setting(
        "mild", "the strong view; the paper cites RandAugment and gives no strengths", choices=lambda: (*VIEWS, NOISE)
    )
    flip: bool = setting(True, "mirror half of the images (never in 'shift' and 'warp')", "official code")
    min_scale: float = setting(0.2, "smallest area of a resized crop, as a share", "official code", above=0, most=1)
    test_size: int = setting(
        0, "side of plain views (test, prototypes, separation, memory), in pixels; 0: as they are", least=0
    )
    test_mirror: bool = setting(
        False, "show the mirror image beside every plain view too; what the network says is the mean of both"
    )
    cutmix: float = setting(
        0.0, "weight of the loss on a further view, parts of two images in one (CutMix); 0: no such view", least=0
    )
    noise: float = setting(0.1, "view 'noise': Gaussian noise, in standard deviations of each feature", least=0)
    drop: float = setting(0.1, "view 'noise': probability that a feature is replaced by its mean", least=0, below=1)


@dataclass(frozen=True)
class View:
    """`apply(images, *numbers)`: images are float grey levels 0 to 255, [n, channels, height, width], in and out.

    `numbers` are one tensor [n, k] of uniform random numbers in [0, 1) for each k in `draws`. A view with `tables` is
    `apply(*tables, images, *numbers)`, until they are put on a device once and for all: nothing is copied in `apply`.
    """

    draws: tuple[int, ...]
    apply: Callable[..., Tensor]
    tables: tuple[Tensor, ...] = ()

    def on(self, device: torch.device | str) -> View:
        """-> the view whose tables are on the device and bound to `apply`."""
        return View(self.draws, partial(self.apply, *(table.to(device) for table in self.tables)))


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


@VIEWS.register("pico")
def pico(config: AugmentConfig) -> View:
    """PiCO's strong view: resized crop, mirror, three operations drawn with replacement from 14, a cutout.

    As in its code: always applied, one after the other, each on the whole grey levels that the one before has left,
    magnitudes uniform over the full range, moved by nearest pixels, black beyond the image. Only the crop differs:
    its box is not rounded to whole pixels (`random_crop`).
    """

    def apply(
        table: Tensor, images: Tensor, crop: Tensor, mirror: Tensor, which: Tensor, strength: Tensor, cut: Tensor
    ) -> Tensor:
        height, width = images.shape[-2:]
        matrix = random_mirror(random_crop(crop, config.min_scale, height, width), mirror, config.flip)
        images = whole(ops.resample(images, matrix) + 0.5)
        for numbers in zip(torch.split(which, 1, 1), torch.split(strength, 1, 1), strict=True):
            images = operate(images, *pico_choice(table, *numbers))
        return hole(images, *pico_hole(cut, height, width), fill=(125, 123, 114))

    return View((CROP, 1, ROUNDS, ROUNDS, 3), apply, (pico_table(),))


@VIEWS.register("pad-crop")
def pad_crop(config: AugmentConfig) -> View:
    """Pads by an eighth of the size, reflected, crops back to the size, mirrors. PaPi's weak view."""

    def apply(images: Tensor, places: Tensor, mirror: Tensor) -> Tensor:
        pads = [size // 8 for size in images.shape[-2:]]
        down, right = ((places[:, k : k + 1] * (2 * pad + 1)).long() - pad for k, pad in enumerate(pads))
        return ops.reflect_shift(images, right, down, (mirror < 0.5) & config.flip)

    return View((2, 1), apply)


@VIEWS.register("papi")
def papi(config: AugmentConfig) -> View:
    """PaPi's strong view: 'pad-crop', one of 97 sub-policies of two operations (AutoAugment), a black cutout.

    As in its code: grey (128) beyond the image; sheared by bicubic interpolation, turned (to the left only) and shifted
    by nearest pixels; the hole has half the image's size about any pixel.
    """
    weak = pad_crop(config)

    def apply(
        table: Tensor, images: Tensor, places: Tensor, mirror: Tensor, which: Tensor, numbers: Tensor, centre: Tensor
    ) -> Tensor:
        height, width = images.shape[-2:]
        images = weak.apply(images, places, mirror)
        for choice in papi_choice(table, which, numbers):
            images = operate(images, *choice, fill=128, cubic=True)
        x, y = (torch.floor(centre[:, k : k + 1] * size) / size for k, size in enumerate((width, height)))
        return ops.cutout(images, x, y, side=0.5)

    return View((*weak.draws, 1, 4, 2), apply, (papi_table(),))


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


def plain(config: AugmentConfig) -> View:
    """What is shown at test: the image as it is, or at the size of `test_size`.

    Random resized crops enlarge what they show; an image that is not enlarged has smaller things in it than any that
    the network was trained on (Touvron et al. 2019, the train-test resolution discrepancy).
    """
    if not config.test_size:
        return identity(config)
    return View((), partial(ops.resize, side=config.test_size))
