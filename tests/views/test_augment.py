"""Random views: what they do, how often, and the contract every one of them keeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pictures import DIGITS, LEVELS, PHOTOS, seeded, with_pillow
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from ipll.errors import ConfigError, DataError
from ipll.views import augment
from ipll.views.augment import VIEWS, AugmentConfig
from ipll.views.images import Views
from ipll.views.random_ops import CROP, JITTER, OPERATIONS, random_crop, random_grey, random_jitter


def views_of(channels: int, **settings: object) -> Views:
    """Views whose output is in grey levels 0 to 1: mean 0, deviation 1."""
    return Views(AugmentConfig(**settings), (0.0,) * channels, (1.0,) * channels, "cpu")  # type: ignore[arg-type]


def within(rate: float, expected: float, n: int) -> bool:
    """Is the share `rate` of n trials within 5 standard errors of the expected one?"""
    return abs(rate - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


# --- random parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_crop_boxes_follow_torchvisions_rule(size: tuple[int, int]) -> None:
    n, (height, width) = 20_000, size
    matrices = random_crop(torch.rand(n, CROP, generator=seeded()), 0.2, height, width).double()
    w, h = matrices[:, 0, 0], matrices[:, 1, 1]
    assert (matrices[:, 0, 2].abs() + w).max() <= 1 + 1e-6
    assert (matrices[:, 1, 2].abs() + h).max() <= 1 + 1e-6
    area, ratio = w * h, w * width / (h * height)
    assert area.min() >= 0.2 - 1e-6
    assert area.min() < 0.21
    assert ratio.min() >= 0.75 - 1e-6
    assert ratio.max() <= 4 / 3 + 1e-6

    generator = np.random.default_rng(0)  # draw and reject, one by one, as torchvision does
    areas = generator.uniform(0.2, 1, 10 * n)
    ratios = np.exp(generator.uniform(-math.log(4 / 3), math.log(4 / 3), 10 * n))
    fits = (areas * ratios * height / width <= 1) & (areas / ratios * width / height <= 1)
    for got, expected in ((area, areas[fits]), (ratio.log(), np.log(ratios[fits]))):
        error = math.sqrt(expected.var() * (1 / n + 1 / len(expected)))
        assert abs(got.mean().item() - expected.mean()) < 5 * error
        assert abs(got.std().item() / expected.std() - 1) < 0.03


def test_a_crop_that_cannot_fit_is_the_largest_of_an_allowed_ratio() -> None:
    whole = random_crop(torch.rand(5, CROP, generator=seeded()), 1.0, 32, 32)
    assert torch.equal(whole, torch.eye(2, 3).expand(5, 2, 3))
    wide = random_crop(torch.rand(5, CROP, generator=seeded()), 1.0, 16, 64)
    assert torch.allclose(wide[:, 0, 0], torch.tensor(16 * 4 / 3 / 64))
    assert torch.allclose(wide[:, 1, 1], torch.tensor(1.0))


def test_jitter_takes_its_steps_in_the_order_of_its_keys() -> None:
    """Every order of three steps, against Pillow, which cuts off to whole levels at each; any two orders differ."""
    factors = {"Brightness": 1.4, "Contrast": 0.6, "Color": 1.4}
    neutral_hue, hue_key = 0.5, 0.0
    results = []
    for keys in itertools.permutations((0.1, 0.2, 0.3)):
        numbers = [0.0, *((f - 0.6) / 0.8 for f in factors.values()), neutral_hue, *keys, hue_key]
        out = random_jitter(PHOTOS.float(), torch.tensor(numbers).expand(24, JITTER))
        order = sorted(factors, key=dict(zip(factors, keys, strict=True)).__getitem__)

        def enhance(image: Image.Image, order: list[str] = order) -> Image.Image:
            for name in order:
                image = getattr(ImageEnhance, name)(image).enhance(factors[name])
            return image

        assert (out - with_pillow(PHOTOS, enhance)).abs().max() <= 4
        results.append(out)
    assert all((one - other).abs().max() > 10 for one, other in itertools.combinations(results, 2))


def test_jitter_orders_are_all_drawn_evenly() -> None:
    n = 2400
    keys = torch.rand(n, JITTER, generator=seeded())
    keys[:, :5] = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    seen = random_jitter(PHOTOS[1].float().expand(n, -1, -1, -1), keys)
    _, counts = seen.flatten(1).round(decimals=2).unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert all(within(count / n, 1 / 24, n) for count in counts.tolist())


def test_rates_of_mirror_jitter_and_grey() -> None:
    n = 4000
    brightness = torch.linspace(40, 120, 32).expand(n, 3, 32, 32).byte()
    seen = views_of(3, min_scale=1.0).weak(brightness, seeded())
    mirrored = seen[..., :8].mean((1, 2, 3)) > seen[..., -8:].mean((1, 2, 3))
    assert within(mirrored.float().mean().item(), 0.5, n)

    views, flower = views_of(3, min_scale=1.0, flip=False), PHOTOS[20].expand(n, 3, 32, 32)
    seen = views.weak(flower, seeded())
    unchanged = (seen - views.plain(flower)).abs().amax((1, 2, 3)) < 1e-3
    assert within(unchanged.float().mean().item(), 0.2 * 0.8, n)
    grey = (seen.amax(1) - seen.amin(1)).amax((1, 2)) < 1e-3
    assert within(grey.float().mean().item(), 0.2, n)


def mild_references(image: Tensor) -> Tensor:
    """[operations, 2, ...]: the mild view's operations one by one, sign - and +."""
    view = VIEWS["mild"](AugmentConfig(min_scale=1.0, flip=False))
    which = torch.arange(len(OPERATIONS)).repeat_interleave(2)[:, None]
    n = len(which)
    sides = torch.tensor([0.0, 0.9]).repeat(len(OPERATIONS))[:, None]
    numbers = torch.zeros(n, CROP), torch.zeros(n, 1), (which + 0.5) / len(OPERATIONS), sides
    return view.apply(image.float().expand(n, -1, -1, -1), *numbers).view(-1, 2, *image.shape)


def test_each_mild_operation_is_the_one_named() -> None:
    image = PHOTOS[5]
    size, affine, bilinear = (32, 32), Image.Transform.AFFINE, Image.Resampling.BILINEAR

    def pillow(name: str, sign: int) -> Callable[[Image.Image], Image.Image]:
        f, s = 1 + 0.15 * sign, 0.05 * sign
        enhancers = {"brightness": "Brightness", "contrast": "Contrast", "colour": "Color", "sharpness": "Sharpness"}
        if name in enhancers:
            return lambda i: getattr(ImageEnhance, enhancers[name])(i).enhance(f)
        return {
            "identity": lambda i: i,
            "rotate": lambda i: i.rotate(5 * sign, bilinear),
            "shear-x": lambda i: i.transform(size, affine, (1, s, -s * 16, 0, 1, 0), bilinear),
            "shear-y": lambda i: i.transform(size, affine, (1, 0, 0, s, 1, -s * 16), bilinear),
            "translate-x": lambda i: i.transform(size, affine, (1, 0, sign * 2.4, 0, 1, 0), bilinear),
            "translate-y": lambda i: i.transform(size, affine, (1, 0, 0, 0, 1, sign * 2.4), bilinear),
            "autocontrast": ImageOps.autocontrast,
            "posterize": lambda i: ImageOps.posterize(i, 5),
            "solarize": lambda i: ImageOps.solarize(i, 212),
        }[name]

    for name, both in zip(OPERATIONS, mild_references(image), strict=True):
        for sign, out in zip((-1, 1), both, strict=True):
            expected = with_pillow(image[None], pillow(name, sign))[0]
            assert (out - expected).abs().max() <= LEVELS, name


def test_mild_operations_are_drawn_evenly_with_either_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "ROUNDS", 1)
    n, image = 6500, PHOTOS[5]
    references = mild_references(image).flatten(2) / 255
    assert torch.pdist(references[:, 1]).min() > 0.05  # each operation leaves its own mark on this photograph
    seen = views_of(3, min_scale=1.0, flip=False).strong(image.expand(n, -1, -1, -1), seeded())
    distances = "donot_use_mm_for_euclid_dist"  # the fast way is off by .02
    nearest = torch.cdist(seen.flatten(1), references.flatten(0, 1), compute_mode=distances)
    assert nearest.amin(1).max() < 0.01
    chosen = nearest.argmin(1)
    for k, name in enumerate(OPERATIONS):
        assert within((chosen // 2 == k).float().mean().item(), 1 / len(OPERATIONS), n), name
    signed = chosen[(chosen // 2 > 0) & (chosen // 2 < OPERATIONS.index("autocontrast"))]
    assert within((signed % 2).float().mean().item(), 0.5, len(signed))


def test_mild_takes_three_operations() -> None:
    """Brightness three times is brightness by the cube."""
    view = VIEWS["mild"](AugmentConfig(min_scale=1.0, flip=False))
    which = torch.full((24, 3), (OPERATIONS.index("brightness") + 0.5) / len(OPERATIONS))
    dark = view.apply(PHOTOS.float(), torch.zeros(24, CROP), torch.zeros(24, 1), which, torch.zeros(24, 3))
    assert torch.allclose(dark, PHOTOS.float() * 0.85**3, atol=1e-2)


# --- the other views ----------------------------------------------------------------------------------------------


def test_pad_crop_is_a_window_of_the_padded_image() -> None:
    view = VIEWS["pad-crop"](AugmentConfig())
    padded = np.pad(PHOTOS.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode="reflect").astype(np.float32)
    for down in range(9):
        for right in range(9):
            places = torch.tensor([(down + 0.5) / 9, (right + 0.5) / 9]).expand(24, 2)
            window = torch.from_numpy(padded[:, :, down : down + 32, right : right + 32])
            assert torch.equal(view.apply(PHOTOS.float(), places, torch.ones(24, 1)), window)
            assert torch.equal(view.apply(PHOTOS.float(), places, torch.zeros(24, 1)), window.flip(3))


def test_warp_turns_as_pillow_and_cuts_a_hole() -> None:
    view = VIEWS["warp"](AugmentConfig())
    pose = torch.tensor([1.0, 2 / 3, 0.5, 0.5]).expand(64, 4)  # 15 degrees, not scaled, not moved
    out = view.apply(DIGITS.float(), pose, torch.full((64, 2), 0.5), torch.tensor([0.25, 0.5]).expand(64, 2))
    expected = with_pillow(DIGITS, lambda image: image.rotate(15, Image.Resampling.BILINEAR))
    assert expected[:, :, 3:5, 1:3].amax() > 0
    expected[:, :, 3:5, 1:3] = 0
    assert (out - expected).abs().max() <= LEVELS


def test_warp_scales_and_moves_the_picture() -> None:
    square = torch.zeros(2, 1, 40, 40)
    square[:, :, 10:30, 10:30] = 200
    pose = torch.tensor([[0.5, 0.0, 0.5, 0.5], [0.5, 2 / 3, 1.0, 0.5]])  # shrunk to .8; moved 10 % to the left
    out = VIEWS["warp"](AugmentConfig()).apply(square, pose, torch.full((2, 2), 0.5), torch.zeros(2, 2))
    assert out[0].sum().item() == pytest.approx(200 * 16 * 16, rel=0.02)
    assert torch.allclose(out[1, 0, 10:30, 6:26], torch.tensor(200.0), atol=0.1)


@pytest.mark.parametrize("name", ["shift", "warp"])
def test_digits_are_never_mirrored(name: str) -> None:
    ramp = torch.linspace(0, 255, 16).expand(500, 1, 16, 16).byte()
    seen = views_of(1, weak=name, min_scale=0.6).weak(ramp, seeded())
    assert (seen[..., 3:8].mean((1, 2, 3)) < seen[..., 8:13].mean((1, 2, 3))).all()


def test_grey_images_know_no_colour() -> None:
    images = DIGITS.float()
    assert torch.equal(random_grey(images, torch.zeros(64, 1)), images)
    numbers = torch.rand(64, JITTER, generator=seeded())
    numbers[:, :3] = torch.tensor([0.0, 0.5, 0.5])  # jitter on, brightness and contrast as they are; colour and hue not
    assert torch.allclose(random_jitter(images, numbers), images, atol=1e-3)


# --- the contract of every view -----------------------------------------------------------------------------------


def test_plain_is_normalised() -> None:
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    out = Views(AugmentConfig(), mean, std, "cpu").plain(PHOTOS)
    expected = (PHOTOS.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert out.dtype == torch.float32
    assert (out - expected).abs().max() < 1e-5


@pytest.mark.parametrize("samples", [PHOTOS, DIGITS], ids=["photos", "digits"])
@pytest.mark.parametrize("name", list(VIEWS))
def test_every_view(name: str, samples: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    before, channels = samples.clone(), samples.shape[1]
    mean, std = (0.45,) * channels, (0.25,) * channels
    views = Views(AugmentConfig(weak=name, strong=name), mean, std, "cpu")
    global_state = torch.get_rng_state()
    out = views.weak(samples, seeded(1))
    assert torch.equal(out, views.strong(samples, seeded(1)))  # the same seed, the same bits
    assert torch.equal(samples, before)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert out.shape == samples.shape
    assert out.dtype == torch.float32
    low, high = -0.45 / 0.25, 0.55 / 0.25
    assert out.min() >= low - 1e-4
    assert out.max() <= high + 1e-4
    assert out.max() - out.min() > 0.5 * (high - low)

    copies = samples[10].expand(8, -1, -1, -1)
    seen = views.weak(copies, seeded(2))
    different = [not torch.equal(seen[0], seen[k]) for k in range(1, 8)]
    assert not any(different) if name == "identity" else sum(different) >= 5
    if name == "identity":
        assert torch.equal(out, views.plain(samples))
    else:
        assert not torch.equal(out, views.weak(samples, seeded(3)))

    monkeypatch.setattr("ipll.views.images.BLOCK", 5 * samples[0].numel())  # cutting a batch does not change its views
    assert torch.allclose(views.weak(samples, seeded(1)), out, atol=1e-4)


@pytest.mark.parametrize("name", list(VIEWS))
def test_every_view_is_one_graph_without_looking_at_values(name: str) -> None:
    """Meta tensors have no values: anything that waits for one (`.item()`, a mask as an index) fails on them."""
    views = Views(AugmentConfig(weak=name), (0.5,) * 3, (0.25,) * 3, "meta")
    samples = torch.empty((6, 3, 16, 24), dtype=torch.uint8, device="meta")
    numbers = torch.empty((6, sum(views.weak_view.draws)), device="meta")
    assert views.render(views.weak_view, samples, numbers).shape == (6, 3, 16, 24)
    compiled = torch.compile(views.render, fullgraph=True, backend="eager")
    assert compiled(views.weak_view, samples, numbers).shape == (6, 3, 16, 24)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(VIEWS))
def test_a_captured_view_is_the_cpus(name: str) -> None:
    config = AugmentConfig(weak=name)
    here = Views(config, (0.5,) * 3, (0.25,) * 3, "cpu")
    there = Views(config, (0.5,) * 3, (0.25,) * 3, "cuda")
    numbers = torch.rand(24, sum(here.weak_view.draws), generator=seeded())
    samples, device_numbers = PHOTOS.cuda(), numbers.cuda()
    there.render(there.weak_view, samples, device_numbers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = there.render(there.weak_view, samples, device_numbers)
    graph.replay()
    difference = (out.cpu() - here.render(here.weak_view, PHOTOS, numbers)).abs()
    assert (difference > 1e-3).float().mean() < 1e-3  # a pixel on a threshold or an edge may fall to either side


def test_no_samples_make_no_views() -> None:
    assert views_of(3).weak(torch.empty(0, 3, 32, 32, dtype=torch.uint8), seeded()).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weak": "simm"}, r"augment\.weak.*Did you mean 'sim'"),
        ({"strong": "autoaugment"}, r"augment\.strong"),
        ({"min_scale": 0.0}, r"augment\.min_scale"),
        ({"min_scale": 1.5}, r"augment\.min_scale"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [torch.rand(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.uint8)])
def test_what_is_no_image_is_refused(samples: Tensor) -> None:
    with pytest.raises(DataError, match="uint8 images"):
        views_of(3).plain(samples)
