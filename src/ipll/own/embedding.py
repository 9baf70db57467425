"""Photos as features: each goes through a pretrained network once, and what that gives is kept."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.data.pictures import Unreadable, attempt, in_blocks, read_picture
from ipll.data.prepare import cache_root
from ipll.engine.device import cpu_threads
from ipll.engine.regular import check_regular
from ipll.errors import ConfigError, Interrupted
from ipll.networks.photos import EXTRA, LITE0, PhotoNetwork, find_network, missing
from ipll.own.defaults import DIGITS, PICTURE, SMALL
from ipll.own.kept import Kept
from ipll.own.reading.images import Images
from ipll.own.reading.problems import Problems
from ipll.own.reading.samples import Samples, stop_at
from ipll.progress import Listener, Silent

AUTO, SCRATCH = "auto", "scratch"
PIXELS = ("model.backbone", "model.weights", "model.weights_sha256", "data.size")  # settings of who learns from pixels
GAIN = (
    "Photographs are learnt far better through a network that was trained on others (of ten species of birds XX % were "
    f"right instead of XX): {EXTRA}. Going on from scratch."
)
BLOCK = 8  # photos that a thread decodes and embeds at a time: few, since all of a layer's results then fit its cache
KEEP_SECONDS = 5.0  # of embedding, at most, that a kill costs

OF_FEATURES = ("augment.drop", "augment.noise")

Key = bytes  # the SHA-256 of a photo's file, or of its pixels where it came as an array
Floats = npt.NDArray[np.float32]


def network_for(samples: Samples, asked: str, given: Mapping[str, Any], listener: Listener) -> PhotoNetwork | None:
    """-> the network that samples are to be seen through; None where they are learnt from as they come.

    'auto' is the one that the extra 'photos' brings, for photographs, unless a setting says how to learn from pixels.
    """
    pixels = [key for key in given if key in PIXELS or (key.startswith("augment.") and key not in OF_FEATURES)]
    if asked == SCRATCH:
        return None
    if asked == AUTO:
        if samples.images is None or pixels or not _photographs(samples.images):
            return None
        if missing(LITE0):
            listener.note(GAIN)
            return None
        return find_network(LITE0)
    network = find_network(asked)
    if samples.images is None:
        raise ConfigError(f"{samples.source} holds features: no network is needed to see them. Leave out --network.")
    if pixels:
        raise ConfigError(
            f"{pixels[0]} is for learning from pixels, and with the network '{asked}' features are learnt. Leave out one "
            "of them."
        )
    return network


def _photographs(images: Images) -> bool:
    """Small grey images may be digits or letters, tiny ones are no photographs."""
    return images.side > (SMALL if images.channels == 3 else DIGITS)


class Through(NamedTuple):
    """The network that a model sees photos through, as model.json has it."""

    name: str
    digest: str

    def find(self) -> PhotoNetwork:
        """-> the very network; a ConfigError where it is not installed, or is another one by now."""
        network = find_network(self.name)
        if network.digest != self.digest:
            raise ConfigError(
                f"the network '{self.name}' of this machine is not the one that the model sees photos through: its "
                "weights, or how it is shown photos, differ. Install the version of then, or fit the model anew."
            )
        return network


def embedded(
    samples: Samples, network: PhotoNetwork, device: torch.device, *, skip_bad: bool = False,
    listener: Listener | None = None,
) -> Samples:  # fmt: skip
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

    What was embedded before, in whatever table, is taken from the cache, and what is embedded now goes there every few
    seconds: whoever is stopped or killed goes on from there. Each thread has a block of photos of its own, which uses
    all cores better than a layer shared by all of them, and does not suffer where others use the cores too.
    """
    keys = [key for block in in_blocks(lambda rows: [_key(photos, i) for i in rows], len(photos), 64) for key in block]
    kept = Kept(cache_root() / "embeddings" / f"{network.name.replace(':', '-')}-{network.digest[:12]}", network.dim)
    found = kept.find(set(keys))
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    todo = sorted(index for key, index in first.items() if key not in found)
    broken: dict[Key, Unreadable] = {}
    module = network.module.to(device)
    network = network._replace(module=module)

    def block(rows: range) -> list[tuple[Key, Floats | Unreadable]]:
        read = [(keys[todo[row]], attempt(lambda index: _picture(photos, network, index), todo[row])) for row in rows]
        whole = [picture for _, picture in read if not isinstance(picture, Unreadable)]
        values = iter(network.features(np.stack(whole), device) if whole else ())
        return [(key, picture if isinstance(picture, Unreadable) else next(values)) for key, picture in read]

    fresh: dict[Key, Floats] = {}
    began = last = time.monotonic()
    done = 0
    try:
        with cpu_threads(1 if device.type == "cpu" else 0):
            if todo:
                listener.photos(0, len(todo), 0.0)
            for results in in_blocks(block, len(todo), BLOCK):
                for key, result in results:
                    if isinstance(result, Unreadable):
                        broken[key] = result
                    else:
                        fresh[key] = found[key] = result
                done += len(results)
                listener.photos(done, len(todo), time.monotonic() - began)
                if time.monotonic() - last > KEEP_SECONDS:
                    kept.add(fresh)
                    fresh, last = {}, time.monotonic()
    except KeyboardInterrupt:
        parting = f"Stopped. {done:,} of {len(todo):,} photos are embedded, and kept: the same command goes on from there."
        raise Interrupted(parting, signal.SIGINT) from None
    finally:
        kept.add(fresh)
        listener.end()
    values = np.zeros((len(photos), network.dim), np.float32)
    for index, key in enumerate(keys):
        if key in found:
            values[index] = found[key]
    return values, {index: _reason(photos, index, broken[key]) for index, key in enumerate(keys) if key in broken}


def small_pictures(
    photos: Images, first: int, ids: Tensor | None, before: Tensor | None, kept: Tensor | None
) -> Tensor:
    """-> small pictures of a memory's samples, uint8 [ids, 3, PICTURE, PICTURE]; those before `first` are in `kept`,
    in the order of the ids `before`, the others are `photos`."""
    wanted = [] if ids is None else ids.tolist()
    known = {} if before is None or kept is None else dict(zip(before.tolist(), kept, strict=True))
    new = [id_ - first for id_ in wanted if id_ >= first]
    array, _ = photos.take(np.array(new, np.int64)).decode(PICTURE, 3)
    fresh = dict(zip(new, torch.from_numpy(array), strict=True))
    found = [fresh[id_ - first] if id_ >= first else known[id_] for id_ in wanted]
    return torch.stack(found) if found else torch.zeros(0, 3, PICTURE, PICTURE, dtype=torch.uint8)


def _key(photos: Images, index: int) -> Key:
    """-> the digest of a photo; of its place in the table where it cannot be read, which is then found out."""
    item = photos.items[index]
    if isinstance(item, np.ndarray):
        return hashlib.sha256(str(item.shape).encode() + np.ascontiguousarray(item).tobytes()).digest()
    try:
        check_regular(item)
        with open(item, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (OSError, ValueError):
        return hashlib.sha256(b"unreadable" + os.fsencode(item)).digest()


def _picture(photos: Images, network: PhotoNetwork, index: int) -> npt.NDArray[np.uint8]:
    size, margin, resampling, *_ = network.shown
    return read_picture(photos.items[index], size, 3, margin, resampling)


def _reason(photos: Images, index: int, found: Unreadable) -> str:
    """-> what is wrong with this photo: others of the same content have names of their own."""
    item = photos.items[index]
    return str(found) if isinstance(item, np.ndarray) else f"image '{item}' {found.reason}"
