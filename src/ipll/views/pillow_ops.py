"""Pillow's operations on a batch: each sample has an operation and a magnitude of its own; nothing here is random.

Images are float tensors [n, channels, height, width] of whole grey levels 0 to 255, before and after each operation, as
Pillow's are; `image_ops` has operations without that rounding. An operation is a column [n, 1] of places in OPERATIONS,
a magnitude is a column [n, 1] in Pillow's terms:

- rotate: degrees, counter-clockwise, about the centre; shear-x, shear-y: pixels per pixel, about the upper left corner;
  translate-x, translate-y: shares of the width and height, a positive one moves the picture to the left or up;
- brightness, contrast, colour, sharpness: the factor of `ImageEnhance`, 1 is as it was;
- posterize: bits to keep, cut off to a whole number; solarize: the lowest grey level that is inverted;
- identity, autocontrast, equalize, invert: none.

A few passes serve all operations: every sample goes through each pass, with neutral numbers in all but its own. Only
arithmetic, reductions, gathers and one scatter: it can be compiled and captured in a CUDA graph. Results are Pillow's,
save for one level in less than .5 % of the pixels, where float arithmetic cuts off the other way.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ipll.views.image_ops import LUMA, WHITE

OPERATIONS = (
    *("identity", "rotate", "shear-x", "shear-y", "translate-x", "translate-y", "brightness", "contrast", "colour"),
    *("sharpness", "autocontrast", "equalize", "posterize", "solarize", "invert"),
)
LEVELS = 256
_TINY = 1e-4  # what float arithmetic may lose below a whole level before it is cut off
_LUMA = [round(weight * 65536) for weight in LUMA]  # Pillow's fixed point; all sums stay exact in float32


def operate(images: Tensor, operation: Tensor, magnitude: Tensor, fill: float = 0, cubic: bool = False) -> Tensor:
    """Each sample's operation. What a moved picture uncovers is `fill`; pixels are the nearest ones, or with `cubic`
    those of shears are interpolated as by Pillow's BICUBIC."""
    moved = _move(images, operation, magnitude, fill, cubic)
    return _look_up(_enhance(moved, operation, magnitude), operation, magnitude)


def whole(images: Tensor) -> Tensor:
    """Cuts off to whole grey levels 0 to 255, as Pillow does."""
    return torch.floor(images.clamp(0, WHITE) + _TINY)


def luma(images: Tensor) -> Tensor:
    """-> [n, 1, height, width], the whole grey levels of Pillow's mode "L"; the mean where there are not 3 channels."""
    if images.shape[1] != 3:
        return torch.floor(images.mean(1, keepdim=True) + 0.5)
    red, green, blue = (weight * images[:, c : c + 1] for c, weight in enumerate(_LUMA))
    return torch.floor((red + green + blue + 32768) / 65536)


def hole(images: Tensor, left: Tensor, top: Tensor, side: Tensor, fill: tuple[float, float, float]) -> Tensor:
    """Fills a square of `side` pixels, as far as it is in the image; without 3 channels with the luma of `fill`."""
    height, width = images.shape[-2:]
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    in_rows, in_columns = (rows >= top) & (rows < top + side), (columns >= left) & (columns < left + side)
    inside = in_rows[:, :, None] & in_columns[:, None, :]
    grey = round(sum(weight * level for weight, level in zip(LUMA, fill, strict=True)))
    levels = fill if images.shape[1] == 3 else (grey,) * images.shape[1]
    return torch.stack([torch.where(inside, level, images[:, c]) for c, level in enumerate(levels)], 1)


def _is(operation: Tensor, *names: str) -> Tensor:
    """-> [n, 1] bool: is the sample's operation one of these?"""
    found = operation == OPERATIONS.index(names[0])
    for name in names[1:]:
        found = found | (operation == OPERATIONS.index(name))
    return found


def _only(operation: Tensor, value: Tensor, otherwise: float, *names: str) -> Tensor:
    """-> [n, 1]: `value` for these operations."""
    return torch.where(_is(operation, *names), value, otherwise)


def _move(images: Tensor, operation: Tensor, magnitude: Tensor, fill: float, cubic: bool) -> Tensor:
    """Rotate, shear, translate. Coordinates are pixels, centres of pixels lie at halves."""
    n, channels, height, width = images.shape
    angle = _only(operation, magnitude, 0.0, "rotate")[..., None] * (math.pi / 180)
    shear_x, shear_y = (_only(operation, magnitude, 0.0, f"shear-{axis}")[..., None] for axis in "xy")
    right, down = (_only(operation, magnitude, 0.0, f"translate-{axis}")[..., None] for axis in "xy")
    to_x = torch.arange(width, device=images.device) + 0.5
    to_y = (torch.arange(height, device=images.device) + 0.5)[:, None]
    cos, sin = torch.cos(angle), torch.sin(angle)
    x = cos * (to_x - width / 2) - sin * (to_y - height / 2) + width / 2 + shear_x * to_y + right * width
    y = sin * (to_x - width / 2) + cos * (to_y - height / 2) + height / 2 + shear_y * to_x + down * height
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    flat = images.flatten(2)

    def pixel(column: Tensor, row: Tensor) -> Tensor:
        index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return flat.gather(2, index.long().view(n, 1, -1).expand(-1, channels, -1)).view_as(images)

    if not cubic:
        out = pixel(torch.floor(x), torch.floor(y))
    else:
        # A shear leaves the other coordinate at the pixels' centres, so that four neighbours in a line are enough.
        along_x, along_y = (_is(operation, f"shear-{axis}")[..., None] for axis in "xy")
        x, y = (torch.where(along_x | along_y, at - 0.5, torch.floor(at)) for at in (x, y))
        column, row = torch.floor(x), torch.floor(y)
        d = (x - column + y - row)[:, None]
        before, here, after, beyond = (pixel(column + k * along_x, row + k * along_y) for k in (-1, 0, 1, 2))
        curve = 2 * (before - here) + after - beyond + d * (here - before - after + beyond)
        out = whole(here + d * (after - before + d * curve))
    return torch.where(inside[:, None], out, fill)


def _enhance(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Brightness, contrast, colour, sharpness: a blend with black, the mean grey level, the grey, the smooth image."""
    factor = _only(operation, magnitude, 1.0, "brightness", "contrast", "colour", "sharpness")[..., None, None]
    grey = luma(images)
    mean = torch.floor(grey.mean((2, 3)) + 0.5)
    flat = _only(operation, mean, 0.0, "contrast")[..., None, None]
    other = torch.where(_is(operation, "colour")[..., None, None], grey if images.shape[1] == 3 else images, flat)
    other = torch.where(_is(operation, "sharpness")[..., None, None], smooth(images), other)
    return whole(other + factor * (images - other))


def smooth(images: Tensor) -> Tensor:
    """Pillow's filter SMOOTH: [1 1 1, 1 5 1, 1 1 1] / 13, rounded; border pixels stay."""
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    centre = images[:, :, 1:-1, 1:-1]
    inner = torch.floor((box + 4 * centre + 6.5) / 13)
    return images + F.pad(inner - centre, (1, 1, 1, 1))


def _look_up(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Autocontrast, equalize, posterize, solarize, invert: a table [n, channels, 256] of new grey levels."""
    index = images.long().flatten(2)
    levels = torch.arange(LEVELS, device=images.device)
    dropped = 8 - _only(operation, magnitude, 8.0, "posterize").long()
    table = ((levels >> dropped) << dropped).float()
    threshold = _only(operation, torch.zeros_like(magnitude), math.inf, "invert")
    threshold = torch.where(_is(operation, "solarize"), magnitude, threshold)
    table = torch.where(levels >= threshold, WHITE - table, table)[:, None]
    low, high = (extreme.unsqueeze(2) for extreme in (images.amin((2, 3)), images.amax((2, 3))))
    stretched = whole((levels - low) * (WHITE / (high - low).clamp(min=1)))
    table = torch.where(_is(operation, "autocontrast")[..., None] & (high > low), stretched, table)
    table = torch.where(_is(operation, "equalize")[..., None], _equalized(index), table)
    return table.gather(2, index).view_as(images)


def _equalized(index: Tensor) -> Tensor:
    """-> [n, channels, 256], the table that spreads the grey levels `index` [n, channels, pixels] evenly.

    Counts are whole numbers: a sum of floats in no fixed order is refused where a deterministic run is asked for.
    """
    n, channels, pixels = index.shape
    counts = torch.zeros((n, channels, LEVELS), dtype=torch.int32, device=index.device)
    counts = counts.scatter_add(2, index, torch.ones_like(index, dtype=torch.int32))
    below = counts.cumsum(2, dtype=torch.int32) - counts
    below_highest = torch.where(below < pixels, below, 0).amax(2, keepdim=True)
    step = torch.div(below_highest, LEVELS - 1, rounding_mode="floor")
    table = torch.div(below + torch.div(step, 2, rounding_mode="floor"), step.clamp(min=1), rounding_mode="floor")
    spread = table.clamp(max=LEVELS - 1).float()
    return torch.where(step > 0, spread, torch.arange(LEVELS, device=index.device).float())
