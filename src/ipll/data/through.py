"""Images as features: each is seen through a pretrained network once, and a run learns from what that gives.

The network is frozen, so nothing of it has to be computed twice: what it gives is kept, by an image's pixels. Photos of
people's own data have their own way (own/embedding.py), from the files and not from what was prepared of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch.nn import functional as F

from ipll.data.kept import Floats, Kept
from ipll.data.pictures import in_blocks
from ipll.data.prepare import cache_root
from ipll.data.source import Ints, Source
from ipll.engine import processes
from ipll.engine.device import cpu_threads
from ipll.engine.placement import Array, Selection
from ipll.errors import ConfigError
from ipll.messages import tell
from ipll.networks.photos import PhotoNetwork, find_network

BLOCK = {"cpu": 4, "cuda": 64}  # images that a thread takes at a time: few, so that a layer's output stays in a cache
HASHED = 256  # images that a thread takes the digests of at a time
KEEP_SECONDS = 20.0  # of work, at most, that a kill costs


def seen_through(source: Source, name: str, device: torch.device) -> Source:
    """-> the source with features [n, dim] for samples, to be standardised by its training samples; the pictures stay
    beside them, to be looked at. '': the source as it is."""
    if not name:
        return source
    if len(source.train_samples.shape) != 4:
        raise ConfigError(f"data.through={name} is for images, and {source.name} has none: leave it out.")
    network = find_network(name)
    train, test = (
        processes.by_first(partial(_features, samples, network, device))
        for samples in (source.train_samples, source.test_samples)
    )
    mean, std = (tuple(values.tolist()) for values in (train.mean(axis=0), train.std(axis=0)))
    return replace(source, train_samples=train, test_samples=test, mean=mean, std=std, pictures=source.train_samples)


def _features(images: Array | Selection, network: PhotoNetwork, device: torch.device) -> Floats:
    """-> features [n, dim] of prepared images [n, channels, height, width]; those kept before are taken from there."""
    folder = f"{network.name.replace(':', '-')}-{network.digest[:12]}-prepared"
    kept = Kept(cache_root() / "embeddings" / folder, network.dim)
    digests = in_blocks(lambda rows: _keys(images[rows.start : rows.stop]), len(images), HASHED)
    keys = list(chain.from_iterable(digests))
    found = kept.find(set(keys))
    first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in found}
    todo = np.array(sorted(first.values()), np.int64)
    if len(todo):
        tell(f"{len(todo):,} images are seen through {network.name}. This is done once.")
    fresh: dict[bytes, Floats] = {}
    last = time.monotonic()
    try:
        for row, values in _each(images, todo, network, device):
            fresh[keys[row]] = values
            if time.monotonic() - last > KEEP_SECONDS:
                kept.add(fresh)
                found, fresh, last = found | fresh, {}, time.monotonic()
    finally:
        kept.add(fresh)
    found |= fresh
    return np.stack([found[key] for key in keys])


def _each(
    images: Array | Selection, todo: Ints, network: PhotoNetwork, device: torch.device
) -> Iterator[tuple[int, Floats]]:
    """-> the rows `todo`, with features [dim]. Each thread has a block of its own, and one of PyTorch's threads."""
    network = network._replace(module=network.module.to(device))

    def block(places: range) -> list[tuple[int, Floats]]:
        rows = todo[places.start : places.stop]
        return list(zip(rows.tolist(), _seen(images[rows], network, device), strict=True))

    with cpu_threads(1):
        yield from chain.from_iterable(in_blocks(block, len(todo), BLOCK[device.type]))


def _keys(images: Array) -> list[bytes]:
    return [hashlib.sha256(str(image.shape).encode() + image.tobytes()).digest() for image in images]


def _seen(images: Array, network: PhotoNetwork, device: torch.device) -> Floats:
    """-> what the network gives for images, grey ones as colour, at the size that it is shown."""
    size = network.shown.size
    pixels = torch.from_numpy(images).expand(-1, 3, -1, -1)
    if pixels.shape[-2:] != (size, size):
        large = F.interpolate(pixels.float(), (size, size), mode="bilinear", antialias=True)
        pixels = large.round_().clamp_(0, 255).to(torch.uint8)
    return network.features(pixels.numpy(), device)
