"""Random parts of views: what uniform random numbers in [0, 1), tensors [n, k], stand for.

Images are float grey levels 0 to 255 [n, channels, height, width], as in `image_ops`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ipll.views import image_ops as ops

ATTEMPTS = 10  # tries for a crop that fits into the image, as in torchvision
CROP = 2 * ATTEMPTS + 2  # random numbers a crop takes
JITTER = 9
OPERATIONS = (
    *("identity", "rotate", "shear-x", "shear-y", "translate-x", "translate-y", "brightness", "contrast", "colour"),
    *("sharpness", "autocontrast", "posterize", "solarize"),
)


def between(numbers: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers in [0, 1) -> uniform in [low, high)."""
    return low + (high - low) * numbers


def random_crop(numbers: Tensor, min_scale: float, height: int, width: int) -> Tensor:
    """RandomResizedCrop(min_scale to 1, ratio 3/4 to 4/3) of `numbers` [n, CROP] -> [n, 2, 3] for `resample`.

    Area and ratio are drawn until the box fits, as in torchvision, from ATTEMPTS pairs; the last resort is the largest
    box of an allowed ratio. Boxes are not rounded to whole pixels: tiny images would have few distinct ones.
    """
    scales, ratios, places = torch.split(numbers, [ATTEMPTS, ATTEMPTS, 2], 1)
    areas = between(scales, min_scale, 1)
    ratios = torch.exp(between(ratios, -1, 1) * math.log(4 / 3)) * (height / width)
    widths = F.pad(torch.sqrt(areas * ratios), (0, 1), value=min(1, 4 / 3 * height / width))
    heights = F.pad(torch.sqrt(areas / ratios), (0, 1), value=min(1, 4 / 3 * width / height))
    fits = (widths <= 1) & (heights <= 1)
    first = fits.int().argmax(1, keepdim=True)
    w, h = widths.gather(1, first), heights.gather(1, first)
    x, y = torch.split(between(places, -1, 1), 1, 1)
    zero = torch.zeros_like(w)
    return torch.stack((torch.cat((w, zero, (1 - w) * x), 1), torch.cat((zero, h, (1 - h) * y), 1)), 1)


def random_mirror(matrix: Tensor, numbers: Tensor, flip: bool) -> Tensor:
    """Mirrors half of the views ([n, 2, 3]) left to right, by `numbers` [n, 1]."""
    if not flip:
        return matrix
    sign = torch.where(numbers < 0.5, -1.0, 1.0)
    return torch.cat((matrix[:, :, :1] * sign[:, None], matrix[:, :, 1:]), 2)


def random_jitter(images: Tensor, numbers: Tensor) -> Tensor:
    """ColorJitter(.4, .4, .4, .1) with probability .8, the four steps in a random order per sample; [n, JITTER]."""
    applied = numbers[:, :1] < 0.8
    bright, contrast, chroma = torch.split(torch.where(applied, between(numbers[:, 1:4], 0.6, 1.4), 1.0), 1, 1)
    hue = torch.where(applied, between(numbers[:, 4:5], -0.1, 0.1) * math.tau, 0.0)
    for step in torch.split(torch.argsort(numbers[:, 5:], 1), 1, 1):
        now = torch.where(step == 1, contrast, 1.0)
        gain, offset = torch.where(step == 0, bright, now), ops.contrast_offset(images, now)
        colour, turn = torch.where(step == 2, chroma, 1.0), torch.where(step == 3, hue, 0.0)
        images = ops.recolour(images, gain, offset, colour, turn)
    return images


def random_grey(images: Tensor, numbers: Tensor) -> Tensor:
    """Takes the colour away with probability .2, by `numbers` [n, 1]."""
    one, zero = torch.ones_like(numbers), torch.zeros_like(numbers)
    return ops.recolour(images, one, zero, torch.where(numbers < 0.2, zero, one), zero)


def only(operation: Tensor, name: str, value: Tensor | float, otherwise: Tensor | float) -> Tensor:
    """`value` where the sample's operation (its place in OPERATIONS, [n, 1]) is `name`."""
    return torch.where(operation == OPERATIONS.index(name), value, otherwise)


def mild_geometry(operation: Tensor, sign: Tensor, height: int, width: int) -> Tensor:
    """-> [n, 2, 3]: rotate 5 degrees, shear .05, translate 7.5 %; nothing for the other operations."""
    angle = only(operation, "rotate", sign * math.radians(5), 0.0)
    shears = (only(operation, name, sign * 0.05, 0.0) for name in ("shear-x", "shear-y"))
    shifts = (only(operation, name, sign * 0.075, 0.0) for name in ("translate-x", "translate-y"))
    return ops.affine(height, width, angle, *shears, *shifts)


def mild_colour(images: Tensor, operation: Tensor, sign: Tensor) -> Tensor:
    """Brightness, contrast, colour, sharpness by 15 %, autocontrast, posterize to 5 bits, solarize above .83."""
    factor = 1 + 0.15 * sign
    contrast = only(operation, "contrast", factor, 1.0)
    gain = only(operation, "brightness", factor, 1.0) * contrast
    offset = ops.contrast_offset(images, contrast)
    full_gain, full_offset = ops.stretch(images)
    gain = only(operation, "autocontrast", full_gain, gain)
    offset = only(operation, "autocontrast", full_offset, offset)
    images = ops.recolour(images, gain, offset, only(operation, "colour", factor, 1.0), torch.zeros_like(factor))
    images = ops.sharpen(images, only(operation, "sharpness", factor, 1.0))
    images = only(operation[..., None, None], "posterize", ops.posterize(images, 5), images)
    return ops.solarize(images, only(operation, "solarize", 0.83 * ops.WHITE, math.inf))
