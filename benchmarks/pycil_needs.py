"""What PyCIL's iCaRL and WA import and a machine may lack: tqdm, and of torchvision the transforms of CIFAR images.

Each is put in place only where the real package is missing, and only while PyCIL is imported: PyTorch looks for both.
The transforms call Pillow as torchvision's do, to cost what those cost; they are not torchvision's code.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

Picture = Image.Image


@contextmanager
def stand_ins() -> Iterator[list[str]]:
    """Inside, what is missing is in place -> the names of what was."""
    missing = [name for name in MAKE if find_spec(name) is None]
    modules = {module.__name__: module for name in missing for module in MAKE[name]()}
    sys.modules.update(modules)
    try:
        yield missing
    finally:
        for name in modules:
            del sys.modules[name]


class Bar:
    """A progress bar that shows nothing."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def set_description(self, text: str) -> None:
        pass


class Compose:
    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


class RandomCrop:
    def __init__(self, size: int, padding: int) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: Picture) -> Picture:
        image = ImageOps.expand(image, border=self.padding, fill=0)
        left, top = (int(torch.randint(0, side - self.size + 1, (1,))) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))


class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Picture) -> Picture:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < self.p else image


class ColorJitter:
    def __init__(self, brightness: float) -> None:
        self.brightness = brightness

    def __call__(self, image: Picture) -> Picture:
        return ImageEnhance.Brightness(image).enhance(random.uniform(1 - self.brightness, 1 + self.brightness))


class ToTensor:
    def __call__(self, image: Picture) -> Tensor:
        return torch.from_numpy(np.array(image, copy=True)).permute(2, 0, 1).contiguous().float().div(255)


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, image: Tensor) -> Tensor:
        return image.sub(self.mean).div_(self.std)


class Unused:
    """For what is named by the data sets of ImageNet, which are not used here."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass


def _tqdm() -> list[ModuleType]:
    module = ModuleType("tqdm")
    module.tqdm = Bar  # type: ignore[attr-defined]
    return [module]


def _torchvision() -> list[ModuleType]:
    package, transforms, datasets = (ModuleType(f"torchvision{name}") for name in ("", ".transforms", ".datasets"))
    for kind in (Compose, RandomCrop, RandomHorizontalFlip, ColorJitter, ToTensor, Normalize):
        setattr(transforms, kind.__name__, kind)
    for name in ("RandomResizedCrop", "Resize", "CenterCrop"):
        setattr(transforms, name, Unused)
    package.transforms, package.datasets = transforms, datasets  # type: ignore[attr-defined]
    return [package, transforms, datasets]


MAKE = {"tqdm": _tqdm, "torchvision": _torchvision}
