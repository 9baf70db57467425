"""Pictures to test on, photographs and handwritten digits, and Pillow to test against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

LEVELS = 1.51  # Pillow cuts off to whole grey levels; blending also with an image that it rounded before


def crops(height: int, width: int) -> Tensor:
    """[24, 3, height, width] uint8: pieces of scikit-learn's two photographs."""
    pieces = [
        photo[y : y + height, x : x + width]
        for photo in load_sample_images().images
        for y in (40, 160, 280)
        for x in (60, 200, 340, 480)
    ]
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()


def with_pillow(images: Tensor, operation: Callable[[Image.Image], Image.Image]) -> Tensor:
    """The operation on each image by Pillow, as float grey levels."""

    def one(image: Tensor) -> Tensor:
        array = image.permute(1, 2, 0).numpy()
        out = np.asarray(operation(Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)))
        return torch.from_numpy(out.astype(np.float32)).reshape(array.shape).permute(2, 0, 1)

    return torch.stack([one(image) for image in images])


def pillow(name: str, v: float, fill: int = 0, cubic: bool = False) -> Callable[[Image.Image], Image.Image]:
    """One of `pillow_ops.OPERATIONS` as PiCO's code (and with `fill` and `cubic` PaPi's) calls Pillow."""
    enhancers = {"brightness": "Brightness", "contrast": "Contrast", "colour": "Color", "sharpness": "Sharpness"}

    def affine(
        image: Image.Image, *numbers: float, resample: Image.Resampling = Image.Resampling.NEAREST
    ) -> Image.Image:
        colour = (fill,) * 3 if image.mode == "RGB" else fill
        return image.transform(image.size, Image.Transform.AFFINE, numbers, resample, fillcolor=colour)

    def rotate(image: Image.Image) -> Image.Image:
        return image.rotate(v, fillcolor=(fill,) * 3 if image.mode == "RGB" else fill)

    sheared = {"resample": Image.Resampling.BICUBIC} if cubic else {}
    if name in enhancers:
        return lambda i: getattr(ImageEnhance, enhancers[name])(i).enhance(v)
    return {
        "identity": lambda i: i,
        "rotate": rotate,
        "shear-x": lambda i: affine(i, 1, v, 0, 0, 1, 0, **sheared),
        "shear-y": lambda i: affine(i, 1, 0, 0, v, 1, 0, **sheared),
        "translate-x": lambda i: affine(i, 1, 0, v * i.size[0], 0, 1, 0),
        "translate-y": lambda i: affine(i, 1, 0, 0, 0, 1, v * i.size[1]),
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "posterize": lambda i: ImageOps.posterize(i, int(v)),
        "solarize": lambda i: ImageOps.solarize(i, v),
        "invert": ImageOps.invert,
    }[name]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PHOTOS = crops(32, 32)
DIGITS = torch.from_numpy((load_digits().images[:64] * (255 / 16)).round().astype(np.uint8))[:, None]  # [64, 1, 8, 8]
