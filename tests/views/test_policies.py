"""PiCO's and PaPi's strong views: what is drawn, how often, and that a whole view is what Pillow makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pictures import PHOTOS, pillow, seeded, with_pillow
from PIL import Image, ImageDraw
from torch import Tensor

from ipll.views.augment import VIEWS, AugmentConfig, View
from ipll.views.pillow_ops import OPERATIONS
from ipll.views.policies import PICO, papi_choice, papi_magnitude, papi_table, pico_choice, pico_hole, pico_table
from ipll.views.random_ops import CROP

N = 28_000


def within(rate: float, expected: float, n: int) -> bool:
    """Is the share `rate` of n trials within 5 standard errors of the expected one?"""
    return abs(rate - expected) <= 5 * math.sqrt(expected * (1 - expected) / n)


def strong(name: str, **settings: object) -> View:
    return VIEWS[name](AugmentConfig(**settings)).on("cpu")  # type: ignore[arg-type]


def agree(out: Tensor, expected: Tensor) -> bool:
    """The same to one grey level in all but .5 % of the pixels: equalize makes more of a level lost before."""
    return ((out - expected).abs() > 1).float().mean().item() < 0.005


# --- PiCO ---------------------------------------------------------------------------------------------------------


def test_pico_draws_its_14_operations_evenly_over_their_full_ranges() -> None:
    assert len(PICO) == 14
    operation, magnitude = pico_choice(pico_table(), *torch.rand(2, N, 1, generator=seeded()))
    for name, (low, high) in PICO.items():
        drawn = magnitude[operation == OPERATIONS.index(name)]
        assert within(len(drawn) / N, 1 / 14, N), name
        quarters = torch.histc((drawn - low) / (high - low), 4, 0, 1)
        assert quarters.sum() == len(drawn), name
        assert all(within(q / len(drawn), 0.25, len(drawn)) for q in quarters.tolist()), name


def test_pico_cuts_holes_of_every_side_up_to_half_the_width() -> None:
    left, top, side = pico_hole(torch.rand(N, 3, generator=seeded()), 24, 32)
    for pixels in range(1, 17):
        assert within((side == pixels).float().mean().item(), 1 / 16, N), pixels
    assert side.max() == 16
    for start, size in ((left, 32), (top, 24)):
        assert start.min() == 0
        assert start.max() == size - 1
        at_edge = np.mean([(v / 2 + 1) / size for v in np.linspace(0, 16, 1001)])  # half a side and the first pixel
        assert within((start == 0).float().mean().item(), float(at_edge), N)


def pico_by_hand(image: Image.Image, which: list[float], strength: list[float], cut: list[float]) -> Image.Image:
    """RandomAugment(3, _) of PiCO's code, with its random numbers given."""
    for choice, share in zip(which, strength, strict=True):
        name, (low, high) = list(PICO.items())[int(choice * 14)]
        image = pillow(name, low + (high - low) * share)(image)
    (w, h), v = image.size, cut[0] * 0.5 * image.size[0]
    x0, y0 = int(max(0, cut[1] * w - v / 2)), int(max(0, cut[2] * h - v / 2))
    image = image.copy()
    ImageDraw.Draw(image).rectangle((x0, y0, min(w, x0 + v), min(h, y0 + v)), (125, 123, 114))
    return image


def test_picos_view_is_what_its_code_makes_with_pillow() -> None:
    n, generator = len(PHOTOS), seeded(1)
    view = strong("pico", min_scale=1.0, flip=False)
    for _ in range(8):
        numbers = [torch.rand(n, k, generator=generator) for k in (3, 3, 3)]
        out = view.apply(PHOTOS.float(), torch.zeros(n, CROP), torch.zeros(n, 1), *numbers)
        rows = zip(PHOTOS, *(tensor.tolist() for tensor in numbers), strict=True)
        made = [with_pillow(image[None], lambda i, row=row: pico_by_hand(i, *row))[0] for image, *row in rows]
        assert agree(out, torch.stack(made))


def test_picos_view_crops_and_mirrors_first() -> None:
    """With three identities and the smallest hole, it is the crop of the settings, mirrored half of the time."""
    n = 2000
    which = torch.full((n, 3), (list(PICO).index("identity") + 0.5) / 14)
    numbers = torch.rand(n, CROP, generator=seeded()), torch.rand(n, 1, generator=seeded(1))
    ramp = torch.linspace(0, 255, 32).expand(n, 3, 32, 32).round()
    out = strong("pico", min_scale=0.2).apply(ramp, *numbers, which, torch.zeros(n, 3), torch.zeros(n, 3))
    first, last = out[:, 0, 16, 0], out[:, 0, 16, -1]
    assert within((first > last).float().mean().item(), 0.5, n)
    assert (first - last).abs().min() < 255 * 0.6  # of the picture's width
    assert (first - last).abs().min() >= 255 * math.sqrt(0.2 * 3 / 4) * 0.9
    assert (out[:, :, 0, 0] == torch.tensor([125.0, 123.0, 114.0])).all()


# --- PaPi ---------------------------------------------------------------------------------------------------------


def test_papis_magnitudes_are_those_of_the_ten_levels() -> None:
    levels = {
        "shear-x": np.linspace(0, 0.3, 10),
        "translate-y": np.linspace(0, 150 / 331, 10),
        "colour": np.linspace(0, 0.9, 10),
        "rotate": np.linspace(0, 30, 10),
        "posterize": np.round(np.linspace(8, 4, 10)),
        "solarize": np.linspace(256, 0, 10),
    }
    for name, values in levels.items():
        for level, value in enumerate(values):
            middle, swing = papi_magnitude(name, level)
            signed = name in ("shear-x", "translate-y", "colour")
            assert (swing if signed else middle) == pytest.approx(value, abs=1e-9), name
            assert (middle if signed else swing) == (1.0 if name == "colour" else 0.0), name


def test_papis_table_starts_with_the_published_sub_policies() -> None:
    table = papi_table()
    assert table.shape == (97, 8)
    assert ((table[:, 1::4] >= 0) & (table[:, 1::4] <= 0.9 + 1e-6)).all()
    first = [(OPERATIONS[int(row[0])], round(row[1].item(), 1)) for row in table[:5]]
    assert first == [("invert", 0.1), ("rotate", 0.7), ("sharpness", 0.8), ("shear-y", 0.5), ("autocontrast", 0.5)]
    second = [(OPERATIONS[int(row[4])], round(row[5].item(), 1)) for row in table[20:25]]
    expected = [("autocontrast", 0.9), ("translate-y", 0.7), ("solarize", 0.8), ("invert", 0.1), ("autocontrast", 0.9)]
    assert second == expected


def test_papis_sub_policies_are_drawn_evenly_and_applied_at_their_rates() -> None:
    table = papi_table()
    marked = torch.arange(97.0)[:, None].expand(-1, 2)  # the operation and the magnitude say which row was drawn
    rows = table.clone()
    rows[:, 0::4], rows[:, 2::4], rows[:, 3::4] = marked + 100, marked, 0.25
    choices = papi_choice(rows, torch.rand(N, 1, generator=seeded()), torch.rand(N, 4, generator=seeded(1)))
    for half, (operation, magnitude) in enumerate(choices):
        row = magnitude.round().long()
        for k, probability in enumerate(table[:, 4 * half + 1].tolist()):
            drawn = operation[row == k]
            assert within(len(drawn) / N, 1 / 97, N)
            assert within((drawn == k + 100).float().mean().item(), probability, len(drawn)), k
            assert ((drawn == k + 100) | (drawn == OPERATIONS.index("identity"))).all()
        assert within((magnitude > row).float().mean().item(), 0.5, N)
    both = [operation != OPERATIONS.index("identity") for operation, _ in choices]
    chances = table[:, 1::4].prod(1).mean().item()  # the two are applied independently
    assert within((both[0] & both[1]).float().mean().item(), chances, N)


def test_papis_view_is_what_its_code_makes_with_pillow() -> None:
    n, generator, table = len(PHOTOS), seeded(2), papi_table()
    for _ in range(8):
        which, numbers, centre = (torch.rand(n, k, generator=generator) for k in (1, 4, 2))
        unmoved = torch.full((n, 2), 0.5), torch.ones(n, 1)
        out = strong("papi").apply(PHOTOS.float(), *unmoved, which, numbers, centre)
        made = []
        for image, row, chance, (x, y) in zip(PHOTOS, which, numbers, centre.tolist(), strict=True):
            policy, expected = table[int(row * 97)], image[None]
            for half in range(2):
                operation, probability, middle, swing = policy[4 * half : 4 * half + 4].tolist()
                if chance[2 * half] < probability:
                    value = middle + (swing if chance[2 * half + 1] >= 0.5 else -swing)
                    name = OPERATIONS[int(operation)]
                    expected = with_pillow(expected.byte(), pillow(name, value, fill=128, cubic=True))
            mask = np.ones((32, 32), np.float32)
            column, line = int(x * 32), int(y * 32)
            mask[max(line - 8, 0) : line + 8, max(column - 8, 0) : column + 8] = 0
            made.append(expected[0] * torch.from_numpy(mask))
        assert agree(out, torch.stack(made))


# --- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_view_depends_on_its_own_image_and_numbers_only(name: str) -> None:
    view = VIEWS[name](AugmentConfig()).on("cpu")
    numbers = torch.split(torch.rand(24, sum(view.draws), generator=seeded()), list(view.draws), 1)
    together = view.apply(PHOTOS.float(), *numbers)
    assert torch.isfinite(together).all()
    order = torch.randperm(24, generator=seeded(1))[:7]
    alone = view.apply(PHOTOS[order].float(), *(tensor[order] for tensor in numbers))
    assert torch.allclose(alone, together[order], atol=1e-3)


@pytest.mark.parametrize("name", ["pico", "papi"])
def test_a_traced_view_is_the_same(name: str) -> None:
    view = strong(name)
    numbers = torch.split(torch.rand(24, sum(view.draws), generator=seeded()), list(view.draws), 1)
    traced = torch.compile(view.apply, fullgraph=True, backend="eager")
    assert torch.equal(traced(PHOTOS.float(), *numbers), view.apply(PHOTOS.float(), *numbers))


@pytest.mark.parametrize("name", ["pico", "papi"])
def test_grey_levels_stay_whole(name: str) -> None:
    """As in Pillow, so that what follows sees what it would see there."""
    view = strong(name)
    numbers = torch.split(torch.rand(24, sum(view.draws), generator=seeded()), list(view.draws), 1)
    out = view.apply(PHOTOS.float(), *numbers)
    assert torch.equal(out, out.round())
