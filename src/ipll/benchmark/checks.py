"""What a run is told before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ipll.component import FAMILIES
from ipll.config import Config, read_toml, resolve
from ipll.data.source import Source
from ipll.errors import ConfigError
from ipll.networks.network import Network, make_backbone
from ipll.networks.photos import find_network
from ipll.networks.pretrained import package_of
from ipll.networks.wide_deep import WIDE_DEEP


def check_networks(config: Config) -> None:
    """Refuses networks that do not go together, or whose package is missing, before gigabytes are fetched for them."""
    if config.data.through:
        find_network(config.data.through)
        if make_backbone(config.model, 3, config.seed, pretrained=False).takes == "images":
            raise ConfigError(
                f"data.through={config.data.through} makes features of images, but model.backbone="
                f"{config.model.backbone} takes images: use --set model.backbone=wide-deep, or --set data.through="
            )
    if package_of(config.model.weights):
        make_backbone(config.model, 3, config.seed)


def check_stream(stream: object, overrides: Mapping[str, Any]) -> None:
    """A stream of the user's own brings its settings."""
    if stream is not None and (key := next((key for key in overrides if key.startswith("stream.")), None)):
        raise ConfigError(f"{key} is set, but the stream is given, and nothing of it is drawn: leave one of them out.")


def idle_notices(config: Config, overrides: Iterable[str], file: Path | None = None) -> list[str]:
    """-> which of the settings that a user gave, by dotted keys or in a file, change nothing: in a sweep of them all
    runs would be one. To choose no memory is a change itself. A file may hold all settings of a run: those count that
    are not what they would be without it."""
    reasons = _idle(config)
    changed = _changed(read_toml(file), resolve(config.preset, config.method).to_table()) if file else ()
    return [
        f"Note: {key} is set, but {reasons[name]}: it changes nothing."
        for key in dict.fromkeys((*changed, *overrides))
        for name in (key, key.partition(".")[0])
        if name in reasons and key != "memory.kind"
    ]


def _changed(values: Mapping[str, Any], plain: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """-> dotted keys of the nested values that are not what they are in `plain`."""
    for key, value in values.items():
        there = plain.get(key)
        if isinstance(value, Mapping):
            yield from _changed(value, there if isinstance(there, Mapping) else {}, f"{at}{key}.")
        elif value != there:
            yield f"{at}{key}"


def _idle(config: Config) -> dict[str, str]:
    """-> the sections and settings that nothing reads under this configuration, and why."""
    needed = frozenset[str]().union(*(FAMILIES[part.family][part.kind].needs for part in config.parts))
    backbone = config.model.backbone
    reasons = {
        "memory": (config.part("memory").kind == "none", f"{config.method} has no memory"),
        "prototypes": ("prototypes" not in needed, f"{config.method} has no prototypes"),
        "separation": ("separation" not in needed, f"no part of {config.method} asks for the separation"),
        "model.projection": ("projection" not in needed, f"no part of {config.method} projects features"),
        "model.width": (backbone != WIDE_DEEP, f"model.backbone={backbone} has none"),
    }
    return {name: reason for name, (idle, reason) in reasons.items() if idle}


def check_against(config: Config, source: Source) -> None:
    """Settings that only the data can judge."""
    memory = config.part("memory")
    if memory.kind != "none" and memory.settings.size < source.classes:
        raise ConfigError(
            f"memory.size is {memory.settings.size}, but {source.name} has {source.classes} classes: "
            f"a memory needs room for one sample each. Use --set memory.size={source.classes} or more."
        )
    if config.model.weights:
        make_backbone(config.model, source.train_samples.shape[1], config.seed)  # refuses weights that do not fit


def slow_notices(config: Config, network: Network, device: torch.device) -> list[str]:
    """-> what a user should know of a run that takes days."""
    if device.type != "cpu" or not network.slow_on_cpu or config.data.per_class:
        return []
    return [
        f"Note: {config.model.backbone} on a CPU takes days. Every task goes over all of its samples and of the test "
        "images several times, however few steps are trained. For a quick look: --set data.per_class=2 --set "
        "train.epochs=2 --set train.steps_per_epoch=2 --set train.batch_size=16."
    ]
