"""Image operations on a batch, each sample with parameters of its own; nothing here is random.

Images are float tensors [n, channels, height, width] of grey levels 0 to 255, parameters are columns [n, 1] unless
stated otherwise. Where Pillow has the operation, this is Pillow's, less its rounding to whole grey levels after every
step. All of it is pointwise arithmetic, reductions and one `grid_sample`: no loop over samples, no shape that depends
on the data, no constant that has to be copied to the device, so that it can be compiled and captured in a CUDA graph.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

WHITE = 255.0
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's mode "L"
_YIQ = np.array([LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
# A quarter turn of the chroma (I, Q) with the luma Y taken away, seen from RGB. Red turns towards yellow.
_QUARTER: list[list[float]] = (np.linalg.inv(_YIQ) @ [[0, 0, 0], [0, 0, 1], [0, -1, 0]] @ _YIQ).tolist()


def affine(
    height: int, width: int, angle: Tensor, shear_x: Tensor, shear_y: Tensor, shift_x: Tensor, shift_y: Tensor
) -> Tensor:
    """-> [n, 2, 3], where each output point comes from, about the centre, in coordinates from -1 to 1.

    Angles are in radians and counter-clockwise; shears are pixels per pixel; shifts are shares of the width and height,
    and a positive one moves the picture to the left or up (as the numbers of Pillow's `Image.transform` do).
    """
    cos, sin = torch.cos(angle), torch.sin(angle)
    x = torch.cat((cos, (shear_x - sin) * (height / width), 2 * shift_x), 1)
    y = torch.cat(((shear_y + sin) * (width / height), cos, 2 * shift_y), 1)
    return torch.stack((x, y), 1)


def compose(first: Tensor, then: Tensor) -> Tensor:
    """-> [n, 2, 3]: resampling with it is resampling with `first` and then with `then`.

    Written out, not a matrix product: a product would run in TF32 or bf16 where the surroundings ask for those.
    """
    linear = (first[:, :, :2, None] * then[:, None, :, :]).sum(2)
    return linear + F.pad(first[:, :, 2:], (2, 0))


def resample(images: Tensor, matrix: Tensor, black: bool = False) -> Tensor:
    """Bilinear: the output at p is the image at `matrix` [n, 2, 3] times (p, 1).

    Points outside the image take its nearest edge pixel, or are black as in Pillow's `Image.transform`.
    """
    height, width = images.shape[-2:]
    y = ((torch.arange(height, device=images.device) * 2 + 1) / height - 1)[:, None]
    x = (torch.arange(width, device=images.device) * 2 + 1) / width - 1
    m = matrix[..., None, None]
    grid_x = m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]
    grid_y = m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]
    grid = torch.stack((grid_x, grid_y), -1)
    out = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    if not black:
        return out
    inside = torch.maximum(grid_x.abs(), grid_y.abs()) <= 1
    return out * inside[:, None]


def resize(images: Tensor, side: int) -> Tensor:
    """Square images, bilinear, at another size; smoothed first where they shrink."""
    return F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False, antialias=True)


def reflect_shift(images: Tensor, right: Tensor, down: Tensor, mirror: Tensor) -> Tensor:
    """Reads `right`, `down` pixels (whole numbers) away, beyond the border reflected; mirrors where `mirror` (bool)."""
    n, channels, height, width = images.shape

    def reflected(size: int, shift: Tensor) -> Tensor:
        at = (torch.arange(size, device=images.device) + shift).abs()
        return size - 1 - (size - 1 - at).abs()

    x, y = reflected(width, right), reflected(height, down)
    x = torch.where(mirror, x.flip(1), x)
    index = (y[:, :, None] * width + x[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images)


def mean_luma(images: Tensor) -> Tensor:
    """-> [n, 1], the mean grey level; where there are not three channels, the mean over all of them."""
    means = images.mean((2, 3))
    if images.shape[1] != 3:
        return means.mean(1, keepdim=True)
    return LUMA[0] * means[:, 0:1] + LUMA[1] * means[:, 1:2] + LUMA[2] * means[:, 2:3]


def recolour(images: Tensor, gain: Tensor, offset: Tensor, chroma: Tensor, hue: Tensor) -> Tensor:
    """gain * (luma + turned and scaled chroma) + offset, clamped; `gain` and `offset` may be [n, channels].

    The colour difference to the luma is scaled by `chroma` (0 is grey, 1 as it was) and turned by `hue` radians in the
    YIQ plane. Turning in YIQ keeps the luma and is linear; HSV's hue turns by sectors. Without three channels there is
    no colour, and only gain and offset act.
    """
    gain, offset = gain[..., None, None], offset[..., None, None]
    if images.shape[1] != 3:
        return torch.addcmul(offset, gain, images).clamp(0, WHITE)
    direct, turned = chroma * torch.cos(hue), chroma * torch.sin(hue)
    out = offset
    for source, weight in enumerate(LUMA):
        grey = weight - weight * direct
        column = [grey + turned * _QUARTER[c][source] + (direct if c == source else 0.0) for c in range(3)]
        out = torch.addcmul(out, gain * torch.cat(column, 1)[..., None, None], images[:, source : source + 1])
    return out.clamp(0, WHITE)


def contrast_offset(images: Tensor, contrast: Tensor) -> Tensor:
    """-> [n, 1], the offset that goes with the gain `contrast`: the image's mean grey level stays."""
    return (1 - contrast) * mean_luma(images)


def stretch(images: Tensor) -> tuple[Tensor, Tensor]:
    """-> gain and offset, both [n, channels], that spread each channel over 0 to 255; a flat channel stays."""
    low, high = images.amin((2, 3)), images.amax((2, 3))
    flat = high <= low
    gain = torch.where(flat, 1.0, WHITE / (high - low).clamp(min=1e-6))
    return gain, torch.where(flat, 0.0, -low * gain)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with the image smoothed by [1 1 1, 1 5 1, 1 1 1] / 13; 1 is as it was. Border pixels stay."""
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    difference = (box - 9 * images[:, :, 1:-1, 1:-1]) * ((1 - factor) / 13)[..., None, None]
    return (images + F.pad(difference, (1, 1, 1, 1))).clamp(0, WHITE)


def posterize(images: Tensor, bits: int) -> Tensor:
    """Keeps the `bits` highest bits of the nearest whole grey level."""
    step = 1 << (8 - bits)
    return torch.floor((images + 0.5) / step) * step


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Inverts what is at or above the sample's `threshold` (a grey level)."""
    return torch.where(images >= threshold[..., None, None], WHITE - images, images)


def cutout(images: Tensor, x: Tensor, y: Tensor, side: float) -> Tensor:
    """Blackens a rectangle about (x, y); places and side are shares of the image's size."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) + 0.5) / height
    columns = (torch.arange(width, device=images.device) + 0.5) / width
    in_rows = (rows - y).abs() < side / 2
    in_columns = (columns - x).abs() < side / 2
    return images * ~(in_rows[:, :, None] & in_columns[:, None, :])[:, None]
