"""Photos as features: each goes through a pretrained network once, and what that gives is kept."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ipll.data.kept import Floats, Kept
from ipll.data.pictures import Pixels, Unreadable, attempt, in_blocks, read_picture
from ipll.data.prepare import cache_root
from ipll.engine.device import cpu_threads
from ipll.engine.regular import check_regular
from ipll.errors import Interrupted
from ipll.networks.photos import PhotoNetwork
from ipll.own.defaults import PICTURE
from ipll.own.reading.images import Images
from ipll.own.reading.problems import Problems
from ipll.own.reading.samples import Samples, stop_at
from ipll.progress import Listener, Silent

BLOCK = 4  # photos that a thread decodes and embeds at a time: few, so that what a layer gives stays in its cache
KEEP_SECONDS = 5.0  # of embedding, at most, that a kill costs
HASHED = 64  # photos that a thread takes the digests of at a time

Key = bytes  # the SHA-256 of a photo's file, or of its pixels where it came as an array


def embedded(
    samples: Samples, network: PhotoNetwork, device: torch.device, *, skip_bad: bool, listener: Listener | None
) -> Samples:
    """-> the samples with what the network gives for their photos as features; the photos stay beside them.

    Photos that cannot be decoded are left out where `skip_bad` says so; else they are a DataError.
    """
    assert samples.images is not None
    values, broken = embed(samples.images, network, device, listener or Silent())
    if not skip_bad:
        stop_at(broken, samples.rows, Problems(samples.source, samples.word))
    names = tuple(map(str, range(network.dim)))
    return replace(samples, features=values, feature_names=names).without(broken)


def embed(
    photos: Images, network: PhotoNetwork, device: torch.device, listener: Listener
) -> tuple[Floats, dict[int, str]]:
    """-> features [n, dim], and why some photos could not be decoded (index -> reason; these are zero).

    What was embedded before, in whatever table, is taken from where it is kept, and what is embedded now goes there
    every few seconds: whoever is stopped or killed goes on from there.
    """
    blocks = in_blocks(lambda rows: [_key(photos, index) for index in rows], len(photos), HASHED)
    keys = list(chain.from_iterable(blocks))
    kept = Kept(cache_root() / "embeddings" / f"{network.name.replace(':', '-')}-{network.digest[:12]}", network.dim)
    found = kept.find(set(keys))
    first = {key: index for index, key in reversed(list(enumerate(keys))) if key not in found}
    todo, broken = sorted(first.values()), {}
    fresh: dict[Key, Floats] = {}
    done, began = 0, time.monotonic()
    last = began
    try:
        with cpu_threads(1):  # of PyTorch's, for each of ours
            for results in _looked_at(photos, todo, network, device):
                for index, result in results:
                    if isinstance(result, Unreadable):
                        broken[keys[index]] = result.reason
                    else:
                        fresh[keys[index]] = result
                done += len(results)
                listener.photos(done, len(todo), time.monotonic() - began)
                if time.monotonic() - last > KEEP_SECONDS:
                    kept.add(fresh)
                    found, fresh, last = found | fresh, {}, time.monotonic()
    except KeyboardInterrupt:
        share = f"{done:,} of {len(todo):,} photos are embedded and kept"
        raise Interrupted(f"Stopped. {share}: the same command goes on from here.", signal.SIGINT) from None
    finally:
        kept.add(fresh)
        listener.end()
    found |= fresh
    values = np.zeros((len(photos), network.dim), np.float32)
    for index, key in enumerate(keys):
        if key in found:
            values[index] = found[key]
    named = photos.items if not isinstance(photos.items, np.ndarray) else range(len(keys))
    return values, {i: f"image '{named[i]}' {broken[key]}" for i, key in enumerate(keys) if key in broken}


def _looked_at(
    photos: Images, todo: Sequence[int], network: PhotoNetwork, device: torch.device
) -> Iterator[list[tuple[int, Floats | Unreadable]]]:
    """-> blocks of (index, features [dim], or why the photo cannot be read), in order.

    Each thread has a block of its own: that uses all cores better than layers which are shared among them, and loses
    little where others use the cores, too.
    """
    network = network._replace(module=network.module.to(device))
    size, margin, resampling, *_ = network.shown

    def picture(index: int) -> Pixels:
        return read_picture(photos.items[index], size, 3, margin, resampling)

    def block(rows: range) -> list[tuple[int, Floats | Unreadable]]:
        read = [(todo[row], attempt(picture, todo[row])) for row in rows]
        whole = [found for _, found in read if not isinstance(found, Unreadable)]
        values = iter(network.features(np.stack(whole), device) if whole else ())
        return [(index, found if isinstance(found, Unreadable) else next(values)) for index, found in read]

    return in_blocks(block, len(todo), BLOCK)


def _key(photos: Images, index: int) -> Key:
    """-> the digest of a photo; of its name where it cannot be read, which is found out when it is decoded."""
    item = photos.items[index]
    if isinstance(item, np.ndarray):
        return hashlib.sha256(str(item.shape).encode() + np.ascontiguousarray(item).tobytes()).digest()
    try:
        check_regular(item)
        with open(item, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (OSError, ValueError):
        return hashlib.sha256(b"unreadable" + os.fsencode(item)).digest()


def small_pictures(
    photos: Images | None, first: int, ids: Tensor | None, before: Tensor | None, kept: Tensor | None
) -> Tensor:
    """-> small pictures of a memory's samples, uint8 [ids, 3, PICTURE, PICTURE]; those before `first` are in `kept`,
    in the order of the ids `before`, the others are `photos`."""
    wanted = [] if ids is None else ids.tolist()
    known = {} if before is None or kept is None else dict(zip(before.tolist(), kept, strict=True))
    new = [id_ - first for id_ in wanted if id_ >= first]
    fresh: dict[int, Tensor] = {}
    if photos is not None:
        array, _ = photos.take(np.array(new, np.int64)).decode(PICTURE, 3)
        fresh = dict(zip(new, torch.from_numpy(array), strict=True))
    found = [fresh[id_ - first] if id_ >= first else known[id_] for id_ in wanted]
    return torch.stack(found) if found else torch.zeros(0, 3, PICTURE, PICTURE, dtype=torch.uint8)
