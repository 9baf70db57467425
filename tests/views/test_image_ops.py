"""Image operations against Pillow's, on photographs and handwritten digits."""

from __future__ import annotations

import colorsys
import math

import pytest
import torch
from pictures import DIGITS, LEVELS, PHOTOS, crops, seeded, with_pillow
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from ipll.views import image_ops
from ipll.views.random_ops import CROP, random_crop


def turn_off(n: int) -> dict[str, Tensor]:
    return {name: torch.zeros(n, 1) for name in ("angle", "shear_x", "shear_y", "shift_x", "shift_y")}


@pytest.mark.parametrize("degrees", [5.0, -5.0, 15.0])
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_rotation_is_pillows(size: tuple[int, int], degrees: float) -> None:
    images = crops(*size)
    values = turn_off(len(images)) | {"angle": torch.full((len(images), 1), math.radians(degrees))}
    out = image_ops.resample(images.float(), image_ops.affine(*size, **values), black=True)
    expected = with_pillow(images, lambda image: image.rotate(degrees, Image.Resampling.BILINEAR))
    assert (out - expected).abs().max() <= LEVELS


@pytest.mark.parametrize(
    ("name", "value", "numbers"),
    [
        ("shear_x", 0.05, (1, 0.05, -0.05 * 12, 0, 1, 0)),  # Pillow shears about the corner, we about the centre
        ("shear_y", -0.3, (1, 0, 0, -0.3, 1, 0.3 * 20)),
        ("shift_x", 0.075, (1, 0, 0.075 * 40, 0, 1, 0)),
        ("shift_y", -0.075, (1, 0, 0, 0, 1, -0.075 * 24)),
    ],
)
def test_shear_and_translation_are_pillows(name: str, value: float, numbers: tuple[float, ...]) -> None:
    images = crops(24, 40)
    values = turn_off(len(images)) | {name: torch.full((len(images), 1), value)}
    out = image_ops.resample(images.float(), image_ops.affine(24, 40, **values), black=True)
    expected = with_pillow(
        images, lambda i: i.transform(i.size, Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR)
    )
    assert (out - expected).abs().max() <= LEVELS


def test_composed_maps_act_one_after_the_other() -> None:
    quarter = turn_off(24) | {"angle": torch.full((24, 1), math.pi / 2)}
    aside = turn_off(24) | {"shift_x": torch.full((24, 1), 4 / 32)}
    first, then = image_ops.affine(32, 32, **aside), image_ops.affine(32, 32, **quarter)
    out = image_ops.resample(PHOTOS.float(), image_ops.compose(first, then))
    expected = PHOTOS[..., 4:].rot90(1, (2, 3)).float()  # moved 4 to the left, then turned: its right edge is on top
    assert torch.allclose(out[:, :, 4:], expected, atol=0.01)


def test_resized_crop_is_pillows_inside() -> None:
    matrices = random_crop(torch.rand(24, CROP, generator=seeded()), 0.2, 32, 32)
    out = image_ops.resample(PHOTOS.float(), matrices)
    for image, (row_x, row_y), view in zip(PHOTOS, matrices.tolist(), out, strict=True):
        centre_x, centre_y, half_w, half_h = 16 + 16 * row_x[2], 16 + 16 * row_y[2], 16 * row_x[0], 16 * row_y[1]
        box = (centre_x - half_w, centre_y - half_h, centre_x + half_w, centre_y + half_h)
        box = tuple(min(max(edge, 0.0), 32.0) for edge in box)
        expected = with_pillow(image[None], lambda i, box=box: i.resize((32, 32), Image.Resampling.BILINEAR, box))[0]
        assert (view - expected)[:, 3:-3, 3:-3].abs().max() <= LEVELS


@pytest.mark.parametrize("factor", [0.0, 0.6, 0.85, 1.15, 1.4])
@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color", "Sharpness"])
def test_enhancements_are_pillows(name: str, factor: float) -> None:
    images, f = PHOTOS.float(), torch.full((24, 1), factor)
    one, zero = torch.ones(24, 1), torch.zeros(24, 1)
    out = {
        "Brightness": lambda: image_ops.recolour(images, f, zero, one, zero),
        "Contrast": lambda: image_ops.recolour(images, f, image_ops.contrast_offset(images, f), one, zero),
        "Color": lambda: image_ops.recolour(images, one, zero, f, zero),
        "Sharpness": lambda: image_ops.sharpen(images, f),
    }[name]()
    expected = with_pillow(PHOTOS, lambda image: getattr(ImageEnhance, name)(image).enhance(factor))
    assert (out - expected).abs().max() <= LEVELS


def test_smoothing_kernel_is_pillows() -> None:
    expected = with_pillow(DIGITS, lambda image: image.filter(ImageFilter.SMOOTH))
    assert (image_ops.sharpen(DIGITS.float(), torch.zeros(64, 1)) - expected).abs().max() <= LEVELS


@pytest.mark.parametrize("samples", [PHOTOS, DIGITS], ids=["photos", "digits"])
def test_point_operations_are_pillows(samples: Tensor) -> None:
    images, n = samples.float(), len(samples)
    gain, offset = image_ops.stretch(images)
    stretched = image_ops.recolour(images, gain, offset, torch.ones(n, 1), torch.zeros(n, 1))
    assert (stretched - with_pillow(samples, ImageOps.autocontrast)).abs().max() <= LEVELS
    assert torch.equal(image_ops.posterize(images, 5), with_pillow(samples, lambda i: ImageOps.posterize(i, 5)))
    inverted = image_ops.solarize(images, torch.full((n, 1), 212.0))
    assert torch.equal(inverted, with_pillow(samples, lambda i: ImageOps.solarize(i, 212)))


def test_a_flat_image_survives_stretching() -> None:
    gain, offset = image_ops.stretch(torch.full((2, 3, 8, 8), 77.0))
    assert torch.equal(gain, torch.ones(2, 3))
    assert torch.equal(offset, torch.zeros(2, 3))


@pytest.mark.parametrize("turns", [-0.1, 0.05, 0.1, 0.5])
def test_hue_turns_in_the_yiq_plane(turns: float) -> None:
    angle = turns * math.tau

    def turned(red: float, green: float, blue: float) -> tuple[float, float, float]:
        y, i, q = colorsys.rgb_to_yiq(red / 255, green / 255, blue / 255)
        chroma = complex(i, q) * complex(math.cos(angle), -math.sin(angle))
        return colorsys.yiq_to_rgb(y, chroma.real, chroma.imag)

    images = PHOTOS[::6, :, ::4, ::4].float()
    one, zero = torch.ones(len(images), 1), torch.zeros(len(images), 1)
    out = image_ops.recolour(images, one, zero, one, zero + angle)
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 3)
    expected = torch.tensor([turned(*pixel) for pixel in pixels.tolist()]) * 255
    difference = (out.permute(0, 2, 3, 1).reshape(-1, 3) - expected).abs()
    assert difference.max() <= 4  # colorsys has the luma weights to two digits


def test_hue_turns_the_way_pillows_hsv_does() -> None:
    red = torch.tensor([200.0, 60.0, 60.0]).view(1, 3, 1, 1)
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    out = image_ops.recolour(red, one, zero, one, zero + 0.1 * math.tau).flatten()
    assert out[1] > out[2] + 20  # towards yellow, as a positive shift of the hue in HSV
