"""The operations of PiCO's and PaPi's views against Pillow's own, on photographs and handwritten digits."""

from __future__ import annotations

import pytest
import torch
from pictures import DIGITS, PHOTOS, crops, pillow, seeded, with_pillow
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from ipll.views.pillow_ops import OPERATIONS, hole, luma, operate, smooth

MAGNITUDES = {
    "rotate": (-30.0, -7.3, 0.0, 11.1, 29.9),
    "shear-x": (-0.3, -0.07, 0.0, 0.21),
    "shear-y": (-0.3, -0.07, 0.0, 0.21),
    "translate-x": (-0.45, -0.3, -0.02, 0.17),
    "translate-y": (-0.45, -0.3, -0.02, 0.17),
    **dict.fromkeys(("brightness", "contrast", "colour", "sharpness"), (0.05, 0.3, 0.51, 0.95, 1.0, 1.4, 1.9)),
    "posterize": (4.0, 4.9, 5.5, 6.0, 7.99),
    "solarize": (0.0, 0.5, 99.7, 128.0, 255.5, 256.0),
}
SHARE = 0.005  # of the pixels, which may be one grey level off
PICTURES = {"photos": PHOTOS, "wide photos": crops(24, 40), "digits": DIGITS}


def column(n: int, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((n, 1), value, dtype=dtype)


def ours(images: Tensor, name: str, value: float, **how: float) -> Tensor:
    chosen = column(len(images), OPERATIONS.index(name), torch.int64)
    return operate(images.float(), chosen, column(len(images), value), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("pictures", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_pillows(name: str, pictures: Tensor) -> None:
    """To the level, save for one level in .5 % of the pixels, where float arithmetic cuts off the other way."""
    for magnitude in MAGNITUDES.get(name, (0.0,)):
        difference = (ours(pictures, name, magnitude) - with_pillow(pictures, pillow(name, magnitude))).abs()
        assert difference.max() <= 1, magnitude
        assert (difference > 0).float().mean() <= SHARE, magnitude


@pytest.mark.parametrize("pictures", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("name", ["rotate", "shear-x", "shear-y", "translate-x", "translate-y"])
def test_grey_beyond_the_image_and_bicubic_shears_are_pillows(name: str, pictures: Tensor) -> None:
    for magnitude in MAGNITUDES[name]:
        expected = with_pillow(pictures, pillow(name, magnitude, fill=128, cubic=True))
        difference = (ours(pictures, name, magnitude, fill=128, cubic=True) - expected).abs()
        assert difference.max() <= 1, magnitude
        assert (difference > 0).float().mean() <= SHARE, magnitude


def test_every_sample_has_its_own_operation_and_magnitude() -> None:
    """What a batch of different operations does to a sample is what a batch of the same one does."""
    names = [name for name in OPERATIONS for _ in range(2)]
    magnitudes = [MAGNITUDES.get(name, (0.0, 0.0))[k % 2] for k, name in enumerate(names)]
    images = PHOTOS[:1].float().expand(len(names), -1, -1, -1)
    chosen = torch.tensor([[OPERATIONS.index(name)] for name in names])
    together = operate(images, chosen, torch.tensor(magnitudes)[:, None])
    for out, name, magnitude in zip(together, names, magnitudes, strict=True):
        assert torch.equal(out, ours(PHOTOS[:1], name, magnitude)[0]), name


def test_operations_leave_whole_levels_in_range() -> None:
    generator = seeded()
    chosen = torch.randint(len(OPERATIONS), (240, 1), generator=generator)
    strength = torch.rand(240, 1, generator=generator)
    for cubic in (False, True):
        out = operate(PHOTOS.repeat(10, 1, 1, 1).float(), chosen, strength, 128, cubic)
        assert torch.equal(out, out.round())
        assert out.min() >= 0
        assert out.max() <= 255


def test_flat_and_two_level_images() -> None:
    """Where Pillow has nothing to spread, the image stays; where one level fills the image, its counts still do."""
    flat = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    mostly = flat.clone()
    mostly[:, :, 0, :5] = 200
    half = flat.clone()
    half[:, :, :16] = 90
    for images in (flat, mostly, half):
        for name in ("equalize", "autocontrast", "contrast"):
            assert torch.equal(ours(images, name, 0.5), with_pillow(images, pillow(name, 0.5))), name


def test_luma_and_smoothing_are_pillows_to_the_level() -> None:
    expected = torch.stack([with_pillow(image[None], lambda i: i.convert("L").convert("RGB"))[0] for image in PHOTOS])
    assert torch.equal(luma(PHOTOS.float()).expand(-1, 3, -1, -1), expected)
    for pictures in (PHOTOS, DIGITS):
        assert torch.equal(smooth(pictures.float()), with_pillow(pictures, lambda i: i.filter(ImageFilter.SMOOTH)))


@pytest.mark.parametrize(("left", "top", "side"), [(0, 0, 1), (3, 7, 12), (25, 30, 16), (31, 31, 2)])
def test_a_hole_is_the_rectangle_that_pillow_draws(left: int, top: int, side: int) -> None:
    fill = (125, 123, 114)

    def draw(image: Image.Image) -> Image.Image:
        image = image.copy()
        ImageDraw.Draw(image).rectangle((left, top, left + side - 1, top + side - 1), fill)
        return image

    out = hole(PHOTOS.float(), column(24, left), column(24, top), column(24, side), fill)
    assert torch.equal(out, with_pillow(PHOTOS, draw))
    grey = hole(DIGITS.float(), column(64, 2), column(64, 3), column(64, 4), fill)
    assert (grey[:, :, 3:7, 2:6] == 123).all()
    assert torch.equal(grey[:, :, :3], DIGITS[:, :, :3].float())
