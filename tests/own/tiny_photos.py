"""Photos of three colours, and a package called torchvision whose one network sees nothing but the mean colour."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

TINY = "torchvision:tiny"
COLOURS = {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200)}
MODELS = """
import os
import time
from types import SimpleNamespace

import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 6, 1)
        self.fc = nn.Linear(6, 1000)
        with torch.no_grad():
            self.body.weight[:, :, 0, 0] = torch.tensor(
                [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0], [0, 1, -1], [-1, 0, 1.0]]
            )
            self.body.bias.zero_()

    def forward(self, x):
        with open(os.environ.get("TINY_LOG", os.devnull), "a") as log:
            log.write(f"{len(x)}\\n")
        time.sleep(float(os.environ.get("TINY_SLEEP", "0")))
        return self.fc(self.body(x).mean((2, 3)))


def get_model(name, weights):
    if name != "tiny":
        raise ValueError(f"Unknown model {name}. Another sentence")
    return Tiny()


def get_model_weights(name):
    shown = SimpleNamespace(
        crop_size=[16], resize_size=[20], mean=[0.5] * 3, std=[0.25] * 3, interpolation=SimpleNamespace(value="bicubic")
    )
    return SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: shown))
"""


def write_package(folder: Path) -> Path:
    """-> the folder that is to be on the path of Python."""
    (folder / "torchvision").mkdir(parents=True)
    (folder / "torchvision" / "__init__.py").write_text("")
    (folder / "torchvision" / "models.py").write_text(MODELS)
    return folder


def write_photos(folder: Path, colours: Iterable[str], each: int = 8, seed: int = 0) -> Path:
    """-> a table of photos of these colours, JPEG files of 40 x 30 pixels; every fourth is for testing."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    colours, rows = list(colours), []
    for name in colours:
        for number in range(each):
            pixels = np.clip(rng.normal(COLOURS[name], 25, (30, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}{seed}-{number}.jpg", quality=95)
            other = colours[rng.integers(len(colours))]
            sets = "|".join(sorted({name, other if rng.random() < 0.5 else name}))
            rows.append([f"{name}{seed}-{number}.jpg", sets, name, "test" if number % 4 == 0 else "train"])
    with (folder / "photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "candidates", "label", "split"], *rows])
    return folder / "photos.csv"
