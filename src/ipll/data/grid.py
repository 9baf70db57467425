"""A picture of what augmentation does: training images beside some of their weak and strong views."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ipll.data.source import Source
from ipll.engine.files import check_out, write_atomically
from ipll.errors import ConfigError
from ipll.rng import numpy_generator, torch_generator
from ipll.views.augment import AugmentConfig
from ipll.views.images import Views

ENDING = ".png"
DRAWS = 4  # of each view
TILE = 96  # pixels that a small image is enlarged to, about
GAP = 4  # pixels between tiles; three times as much between groups
PAPER, INK = "white", "black"


def write_grid(path: Path, source: Source, config: AugmentConfig, *, samples: int = 8, seed: int = 0) -> None:
    """Writes the picture as PNG, whole or not at all. Missing folders are made."""
    check_out(path, ENDING)
    picture = draw_grid(source, config, samples=samples, seed=seed)
    write_atomically(path, lambda temporary: picture.save(temporary, format="png"))


def draw_grid(source: Source, config: AugmentConfig, *, samples: int = 8, seed: int = 0) -> Image.Image:
    """One row per training image, drawn by `seed`: its class, itself, DRAWS weak views, DRAWS strong views."""
    n = len(source.train_samples)
    if not 1 <= samples <= n:
        raise ConfigError(f"--samples must be from 1 to {n}, the number of training images, got {samples}.")
    chosen = numpy_generator(seed, "grid", "samples").choice(n, samples, replace=False)
    images = torch.from_numpy(source.train_samples[chosen])
    names = [source.class_names[label] for label in source.train_labels[chosen]]
    groups = {"original": images[:, None]}
    channels = images.shape[1]
    views = Views(config, (0.0,) * channels, (1.0,) * channels, "cpu")  # not normalised: 0 to 1
    for title, see, name in (("weak", views.weak, config.weak), ("strong", views.strong, config.strong)):
        seen = see(images.repeat_interleave(DRAWS, 0), torch_generator(seed, "grid", title))
        levels = (seen * 255).round().clamp(0, 255).to(torch.uint8)
        groups[f"{title}: {name}"] = levels.view(samples, DRAWS, *levels.shape[1:])
    return _lay_out(groups, names)


def _lay_out(groups: dict[str, Tensor], names: list[str]) -> Image.Image:
    """Groups of uint8 images [rows, columns, channels, height, width], side by side, their titles above them."""
    font = ImageFont.load_default()
    height, width = next(iter(groups.values())).shape[-2:]
    zoom = max(1, round(TILE / max(height, width)))
    tile_width, tile_height = width * zoom, height * zoom
    line = sum(font.getmetrics()) if isinstance(font, ImageFont.FreeTypeFont) else 11
    top, left = line + 3 * GAP, round(max(font.getlength(name) for name in names)) + 3 * GAP
    columns = sum(group.shape[1] for group in groups.values())
    size = (left + columns * (tile_width + GAP) + 2 * GAP * len(groups), top + len(names) * (tile_height + GAP) + GAP)
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    for row, name in enumerate(names):
        y = top + row * (tile_height + GAP) + (tile_height - line) // 2
        draw.text((GAP, y), name, INK, font)
    x = left
    for title, group in groups.items():
        draw.text((x, GAP), title, INK, font)
        for column in range(group.shape[1]):
            for row in range(len(names)):
                tile = _picture(group[row, column]).resize((tile_width, tile_height), Image.Resampling.NEAREST)
                picture.paste(tile, (x, top + row * (tile_height + GAP)))
            x += tile_width + GAP
        x += 2 * GAP
    return picture


def _picture(image: Tensor) -> Image.Image:
    """[channels, height, width] uint8 -> RGB, or grey where there are not three channels (the first is shown)."""
    if len(image) == 3:
        return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    return Image.fromarray(image[0].contiguous().numpy())
