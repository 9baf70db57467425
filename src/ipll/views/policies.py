"""Random choices of Pillow's operations, as tables: PiCO's 14 with their ranges, PaPi's sub-policies (AutoAugment).

Both are as the official codes have them. A table is small and is brought to the device once (`View.tables`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ipll.views.pillow_ops import OPERATIONS
from ipll.views.random_ops import between

# Operations and magnitudes of PiCO's RandomAugment: all equally likely, magnitudes uniform.
PICO: dict[str, tuple[float, float]] = {
    "autocontrast": (0, 1),
    "brightness": (0.05, 0.95),
    "colour": (0.05, 0.95),
    "contrast": (0.05, 0.95),
    "equalize": (0, 1),
    "identity": (0, 1),
    "posterize": (4, 8),
    "rotate": (-30, 30),
    "sharpness": (0.05, 0.95),
    "shear-x": (-0.3, 0.3),
    "shear-y": (-0.3, 0.3),
    "solarize": (0, 256),
    "translate-x": (-0.3, 0.3),
    "translate-y": (-0.3, 0.3),
}

# The policy for CIFAR-10 as PaPi uses it: operation, probability, level 0 to 9, twice. The first 25 are those of Cubuk
# et al. 2019; the rest comes from further searches, and some of them are in it more than once.
PAPI = """
invert .1 7 contrast .2 6; rotate .7 2 translate-x .3 9; sharpness .8 1 sharpness .9 3; shear-y .5 8 translate-y .7 9;
autocontrast .5 8 equalize .9 2; shear-y .2 7 posterize .3 7; colour .4 3 brightness .6 7;
sharpness .3 9 brightness .7 9; equalize .6 5 equalize .5 1; contrast .6 7 sharpness .6 5; colour .7 7 translate-x .5 8;
equalize .3 7 autocontrast .4 8; translate-y .4 3 sharpness .2 6; brightness .9 6 colour .2 8; solarize .5 2 invert 0 3;
equalize .2 0 autocontrast .6 0; equalize .2 8 equalize .8 4; colour .9 9 equalize .6 6;
autocontrast .8 4 solarize .2 8; brightness .1 3 colour .7 0; solarize .4 5 autocontrast .9 3;
translate-y .9 9 translate-y .7 9; autocontrast .9 2 solarize .8 3; equalize .8 8 invert .1 3;
translate-y .7 9 autocontrast .9 1; solarize .4 5 autocontrast .9 3; translate-y .9 9 translate-y .7 9;
autocontrast .9 2 solarize .8 3; equalize .8 8 invert .1 3; translate-y .7 9 autocontrast .9 1;
solarize .4 5 autocontrast .9 1; translate-y .8 9 translate-y .9 9; autocontrast .8 0 translate-y .7 9;
translate-y .2 7 colour .9 6; equalize .7 6 colour .4 9; brightness .3 7 autocontrast .5 8;
autocontrast .9 4 autocontrast .5 6; solarize .3 5 equalize .6 5; translate-y .2 4 sharpness .3 3;
brightness 0 8 colour .8 8; solarize .2 6 colour .8 6; solarize .2 6 autocontrast .8 1; solarize .4 1 equalize .6 5;
brightness 0 0 solarize .5 2; autocontrast .9 5 brightness .5 3; contrast .7 5 brightness 0 2;
solarize .2 8 solarize .1 5; contrast .5 1 translate-y .2 9; autocontrast .6 5 translate-y 0 9;
autocontrast .9 4 equalize .8 4; brightness 0 7 equalize .4 7; solarize .2 5 equalize .7 5; equalize .6 8 colour .6 2;
colour .3 7 colour .2 4; autocontrast .5 2 solarize .7 2; autocontrast .2 0 equalize .1 0; shear-y .6 5 equalize .6 5;
brightness .9 3 autocontrast .4 1; equalize .8 8 equalize .7 7; equalize .7 7 solarize .5 0;
equalize .8 4 translate-y .8 9; translate-y .8 9 translate-y .6 9; translate-y .9 0 translate-y .5 9;
autocontrast .5 3 solarize .3 4; solarize .5 3 equalize .4 4; autocontrast .1 5 brightness 0 0;
equalize .7 7 autocontrast .6 4; colour .1 8 shear-y .2 3; shear-y .4 2 rotate .7 0; shear-y .1 3 autocontrast .9 5;
equalize .5 0 solarize .6 6; autocontrast .3 5 rotate .2 7; equalize .8 2 invert .4 0; equalize .9 5 colour .7 0;
equalize .1 1 shear-y .1 3; autocontrast .7 3 equalize .7 0; brightness .5 1 contrast .1 7; contrast .1 4 solarize .6 5;
solarize .2 3 shear-x 0 0; translate-x .3 0 translate-x .6 0; equalize .5 9 translate-y .6 7;
shear-x .1 0 sharpness .5 1; equalize .8 6 invert .3 6; shear-x .4 4 autocontrast .9 2; shear-x 0 3 posterize 0 3;
solarize .4 3 colour .2 4; equalize .1 4 equalize .7 6; equalize .3 8 autocontrast .4 3;
solarize .6 4 autocontrast .7 6; autocontrast .2 9 brightness .4 8; equalize .1 0 equalize 0 6;
equalize .8 4 equalize 0 4; equalize .5 5 autocontrast .1 2; solarize .5 5 autocontrast .9 5;
autocontrast .6 1 autocontrast .7 8; equalize .2 0 autocontrast .1 2; equalize .6 9 equalize .4 4
"""


def pico_table() -> Tensor:
    """-> [14, 3]: operation, lowest and highest magnitude."""
    return torch.tensor([(OPERATIONS.index(name), low, high) for name, (low, high) in PICO.items()])


def pico_choice(table: Tensor, which: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Uniform numbers, [n, 1] each -> operation and magnitude, [n, 1] each."""
    rows = table.index_select(0, (which[:, 0] * len(table)).long())
    operation, low, high = torch.split(rows, 1, 1)
    return operation.long(), low + (high - low) * strength


def papi_magnitude(name: str, level: int) -> tuple[float, float]:
    """-> (middle, swing): the magnitude of a level is middle + swing or middle - swing, equally likely."""
    share = level / 9
    if name in ("brightness", "contrast", "colour", "sharpness"):
        return 1.0, 0.9 * share
    if name.startswith("shear"):
        return 0.0, 0.3 * share
    if name.startswith("translate"):
        return 0.0, 150 / 331 * share
    fixed = {"rotate": 30 * share, "posterize": round(8 - 4 * share), "solarize": 256 * (1 - share)}
    return float(fixed.get(name, 0)), 0.0


def papi_table() -> Tensor:
    """-> [sub-policies, 8]: operation, probability, middle and swing of its magnitude; the same of the second one."""

    def row(name: str, probability: str, level: str) -> tuple[float, ...]:
        return OPERATIONS.index(name), float(probability), *papi_magnitude(name, int(level))

    words = (policy.split() for policy in PAPI.split(";"))
    return torch.tensor([(*row(*policy[:3]), *row(*policy[3:])) for policy in words])


def papi_choice(table: Tensor, which: Tensor, numbers: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Uniform numbers [n, 1] (the sub-policy) and [n, 4] (is it applied, which sign; twice) -> the two operations and
    magnitudes, [n, 1] each; the identity where an operation is not applied."""
    rows = table.index_select(0, (which[:, 0] * len(table)).long())
    return [
        (
            torch.where(chance < probability, operation, OPERATIONS.index("identity")).long(),
            middle + swing * torch.where(side < 0.5, -1.0, 1.0),
        )
        for (operation, probability, middle, swing), (chance, side) in zip(
            (torch.split(half, 1, 1) for half in torch.split(rows, 4, 1)),
            (torch.split(half, 1, 1) for half in torch.split(numbers, 2, 1)),
            strict=True,
        )
    ]


def pico_hole(numbers: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """PiCO's cutout of `numbers` [n, 3] -> left, top and side in pixels, [n, 1] each.

    Up to half the width, about a point of the image; a hole that would start outside is moved in, and Pillow draws
    both end pixels of a side.
    """
    size, x, y = torch.split(numbers, 1, 1)
    side = between(size, 0, 0.5) * width
    left, top = (torch.floor((at * length - side / 2).clamp(min=0)) for at, length in ((x, width), (y, height)))
    return left, top, torch.floor(side) + 1
