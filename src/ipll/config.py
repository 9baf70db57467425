"""A run's configuration, and how it is put together: preset < method < method@preset < file < --set.

People's own data have no preset: what is chosen from the data stands in its place, under the name OWN.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ipll.component import FAMILIES
from ipll.data.sources import SOURCES
from ipll.data.stream import StreamConfig
from ipll.engine.regular import check_regular
from ipll.errors import ConfigError, suggest
from ipll.method import PartConfig, check_needs, method_entry
from ipll.networks.network import ModelConfig
from ipll.plugins import check_recorded, loaded_files
from ipll.prototypes import PrototypeSettings
from ipll.settings import Section, build, check, convert, describe, setting, table
from ipll.views.augment import AugmentConfig

TomlTable = dict[str, Any]
OWN = "own"  # preset and source of people's own data


@dataclass(frozen=True)
class DataConfig(Section, name="data"):
    source: str = setting("digits", "the data set; `ipll datasets` lists them")
    size: int = setting(0, "height and width of prepared images, in pixels; 0: the data set's own", least=0)
    through: str = setting(
        "",
        "pretrained network that images are seen through, once; features are learnt: 'efficientnet-lite0', 'timm:NAME'",
    )
    per_class: int = setting(0, "at most so many samples of a class, of training and test; 0: all", least=0)
    validation: float = setting(
        0.0, "share of every class's training samples to set apart and score instead of the test set", least=0, below=1
    )
    residence: str = setting(
        "auto", "where a task's samples lie; auto: as they fit", choices=("auto", "device", "host")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source != OWN:
            SOURCES[self.source]

    @property
    def scored_on(self) -> str:
        """-> which samples accuracies are on: 'test' or 'validation'."""
        return "validation" if self.validation else "test"


@dataclass(frozen=True)
class TrainConfig(Section, name="train"):
    epochs: int = setting(200, "epochs of each task", "paper", least=1)
    later_epochs: int = setting(0, "epochs of every task after the first; 0: as the first", least=0)
    batch_size: int = setting(256, "samples a step; a smaller task uses its own size", "paper", least=1)
    lr: float = setting(0.1, "learning rate at the start of a task", "paper", above=0)
    schedule: str = setting(
        "cosine", "of lr; cosine: per epoch, to 0, anew in every task", "paper", choices=("cosine", "constant")
    )
    momentum: float = setting(0.9, "momentum of SGD", "paper", least=0, below=1)
    momentum_buffers: str = setting("fresh", "fresh in every task, or carried over", choices=("fresh", "carried"))
    weight_decay: float = setting(1e-3, "weight decay, on all parameters", "PiCO's and PaPi's code", least=0)
    joint_views: bool = setting(True, "all views in one forward pass, so that batch norm sees them together")
    steps_per_epoch: int = setting(0, "at most so many steps an epoch, for quick runs; 0: no limit", least=0)
    precision: str = setting(
        "auto", "auto: bf16 on a GPU that has it, else float32", choices=("auto", "float32", "bf16")
    )
    compile: str = setting(
        "auto", "compile networks and views; auto: on a GPU, what has no kernels of ours", choices=("auto", "on", "off")
    )
    graphs: str = setting("auto", "capture steps as CUDA graphs; auto: on a GPU", choices=("auto", "on", "off"))
    deterministic: bool = setting(False, "the same bits again on the same device and versions; slower on a GPU")
    threads: int = setting(0, "CPU threads; 0: as many as PyTorch takes by itself", least=0)
    checkpoint_seconds: float = setting(60.0, "seconds between checkpoints within a task", least=0)

    def epochs_of(self, task: int) -> int:
        """-> the epochs of a task, from 0."""
        return self.later_epochs if task and self.later_epochs else self.epochs

    def lr_at(self, task: int, epoch: int) -> float:
        """-> the learning rate in an epoch of a task, both from 0."""
        decay = (1 + math.cos(math.pi * epoch / self.epochs_of(task))) / 2
        return self.lr if self.schedule == "constant" else self.lr * decay


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "stream": StreamConfig,
    "augment": AugmentConfig,
    "model": ModelConfig,
    "train": TrainConfig,
    "prototypes": PrototypeSettings,
}

HEADINGS: dict[str, type[Any]] = {"preset": str, "method": str, "seed": int}


@dataclass(frozen=True)
class Config:
    """Everything that decides a run's outcome."""

    preset: str
    method: str
    seed: int
    data: DataConfig
    stream: StreamConfig
    augment: AugmentConfig
    model: ModelConfig
    train: TrainConfig
    prototypes: PrototypeSettings
    parts: tuple[PartConfig, ...]
    plugins: tuple[tuple[str, str], ...] = ()  # absolute path and SHA-256 of each file

    def __post_init__(self) -> None:
        check(self.seed >= 0, "seed", "not be negative", self.seed)
        check_needs(self.parts, self.model.head, self.model.members)
        self.model.check_members()

    def part(self, family: str) -> PartConfig:
        """-> the member of a family; of auxiliary losses there may be none or several."""
        return next(part for part in self.parts if part.family == family)

    def to_table(self) -> TomlTable:
        """-> the complete configuration as nested tables; `from_table` reads it back."""
        result: TomlTable = {"preset": self.preset, "method": self.method, "seed": self.seed}
        result |= {name: table(getattr(self, name)) for name in SECTIONS}
        result["auxiliary"] = {"kinds": [p.kind for p in self.parts if p.family == "auxiliary"]}
        for part in self.parts:
            settings = table(part.settings)
            if part.family == "auxiliary":
                result["auxiliary"][part.kind] = settings
            else:
                result[part.family] = {"kind": part.kind} | settings
        return result | ({"plugins": dict(self.plugins)} if self.plugins else {})

    @classmethod
    def from_table(cls, values: Mapping[str, Any]) -> Config:
        for name in values:
            if name not in (*SECTIONS, *FAMILIES, *HEADINGS, "plugins"):
                raise ConfigError(
                    f"unknown setting '{name}'.{suggest(name, _known_keys(values), (*SECTIONS, *FAMILIES))}"
                )
        for name in HEADINGS:
            if name not in values:
                raise ConfigError(f"'{name}' is missing.")
        sections = {name: build(kind, name, values.get(name, {})) for name, kind in SECTIONS.items()}
        parts = tuple(part for family in FAMILIES for part in _parts(family, values.get(family, {})))
        headings = {name: convert(name, values[name], kind) for name, kind in HEADINGS.items()}
        plugins = tuple(_plugins(values).items())
        return cls(parts=parts, plugins=plugins, **headings, **sections)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Config:
        """Reads a run's configuration; the plugins that it was begun with must be loaded."""
        try:
            values = read_toml(path)
            check_plugins(values)
            return cls.from_table(values)
        except ConfigError as error:
            raise ConfigError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _known_keys(values: Mapping[str, Any]) -> list[str]:
    """Every dotted key that these values could set, and the sections."""
    owners = dict(SECTIONS)
    for family, registry in FAMILIES.items():
        kind = values.get(family, {}).get("kind") if isinstance(values.get(family), Mapping) else None
        if kind in registry.members:
            owners[family] = registry[str(kind)].Settings
    keys = [f"{section}.{name}" for section, kind in owners.items() for name, *_ in describe(kind)]
    return [*keys, *SECTIONS, *FAMILIES]


def _parts(family: str, values: Mapping[str, Any]) -> list[PartConfig]:
    registry = FAMILIES[family]
    if not isinstance(values, Mapping):
        raise _no_section(family, values)
    if family != "auxiliary":
        kind = str(values.get("kind", "none"))
        settings = {k: v for k, v in values.items() if k != "kind"}
        return [PartConfig(family, kind, build(registry[kind].Settings, family, settings))]
    kinds = values.get("kinds", [])
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError(f"auxiliary.kinds takes a list of names, got {kinds!r}.")
    if twice := [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
        raise ConfigError(f"auxiliary.kinds names '{twice[0]}' twice: a loss counts once. Set its weight instead.")
    for name in values:
        if name != "kinds" and name not in kinds:
            raise ConfigError(f"auxiliary.{name} is set, but auxiliary.kinds is {list(kinds)}: add '{name}' to it.")
    return [
        PartConfig(family, kind, build(registry[kind].Settings, f"auxiliary.{kind}", values.get(kind, {})))
        for kind in kinds
    ]


def check_plugins(values: Mapping[str, Any]) -> None:
    """Raises unless the plugins that a configuration was recorded with are loaded."""
    check_recorded(_plugins(values))


def _plugins(values: Mapping[str, Any]) -> Mapping[str, str]:
    plugins = values.get("plugins", {})
    if not isinstance(plugins, Mapping) or not all(isinstance(digest, str) for digest in plugins.values()):
        raise ConfigError(f"'plugins' is a section that gives the SHA-256 of each file, got {plugins!r}.")
    return plugins


@cache
def preset_names() -> tuple[str, ...]:
    return tuple(sorted(p.name[:-5] for p in resources.files("ipll").joinpath("presets").iterdir()))


def resolve(
    preset: str,
    method: str = "pgdr",
    *,
    seed: int = 0,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Config:
    """-> the configuration of a run, later layers over earlier ones. `overrides` and `base` have dotted keys; a `base`
    takes the place of the packaged preset."""
    packaged = packaged_layers(preset, method, base)
    of_file = read_toml(file) if file else {}
    for key, asked in (("preset", preset), ("method", method)):
        if of_file.pop(key, asked) != asked:
            raise ConfigError(
                f"{file} is the configuration of another {key} than '{asked}': name its {key}, or edit it."
            )
    for key in ("seed", "plugins"):  # a new run has its own
        of_file.pop(key, None)

    def combined(*given: TomlTable) -> Config:
        own: TomlTable = {}
        layered: TomlTable = {"preset": preset, "method": method, "seed": seed}
        for layer in packaged.values():
            _lay(layered, layer)
        for layer in given:
            _lay(_copy(layered), layer)  # a value in place of a section is refused where it stands
            _lay(own, layer)
        _drop_foreign(layered, own)
        _lay(layered, own)
        config = Config.from_table(layered | {"plugins": loaded_files()})
        return replace(config, model=config.model.pinned())

    try:
        return combined(of_file, *_of_options(overrides or {}))
    except ConfigError as error:
        if file and _complaint(combined, of_file) == str(error) != _complaint(combined):
            raise ConfigError(f"{file}: {error}") from None
        raise


def _of_options(overrides: Mapping[str, Any]) -> list[TomlTable]:
    """-> what --set gives, as a layer each; what has an option of its own is refused."""
    for key in overrides:
        name = key.partition(".")[0]
        if name in (*HEADINGS, "plugins"):
            option = name.removesuffix("s")
            raise ConfigError(f"unknown setting '{key}': it is not one of the settings, use the option --{option}.")
    return [_nest(key, value) for key, value in overrides.items()]


def _complaint(combined: Callable[..., Config], *given: TomlTable) -> str:
    """-> what is wrong with these layers by themselves, if anything: so it is known whose mistake it is."""
    try:
        combined(*given)
    except ConfigError as error:
        return str(error)
    return ""


def packaged_layers(preset: str, method: str, base: Mapping[str, Any] | None = None) -> dict[str, TomlTable]:
    """-> what the preset, the method, and the method for this preset set, later ones over earlier ones."""
    layer: TomlTable = {}
    if base is not None:
        for key, value in base.items():
            _lay(layer, _nest(key, value))
    elif preset in preset_names():
        layer = tomllib.loads(resources.files("ipll").joinpath(f"presets/{preset}.toml").read_text())
        layer.pop("doc")
    else:
        if preset in SOURCES:
            raise ConfigError(
                f"'{preset}' is a data set, and a run needs a preset: name one that suits it, such as cub200, "
                f"and add --set data.source={preset}."
            )
        raise ConfigError(f"unknown preset '{preset}'.{suggest(preset, preset_names())}")
    entry = method_entry(method)
    special = entry.get(f"@{preset}", {})
    return {"preset": layer, "method": _composition(entry), f"method, for {preset}": _composition(special)}


def _composition(entry: Mapping[str, Any]) -> TomlTable:
    """A row of methods.toml as a layer: family names become sections with a `kind`."""
    layer: TomlTable = {}
    for key, value in entry.items():
        if key == "auxiliary":
            _lay(layer, {key: {"kinds": value}})
        elif key in FAMILIES and isinstance(value, str):
            _lay(layer, {key: {"kind": value}})
        elif key != "doc" and not key.startswith("@"):
            _lay(layer, _nest(key, value))
    return layer


def _drop_foreign(layered: TomlTable, given: TomlTable) -> None:
    """Where the user picks another member of a family, packaged settings that only the former knows fall away."""
    for family, registry in FAMILIES.items():
        chosen = given.get(family, {})
        if isinstance(chosen, dict) and isinstance(chosen.get("kind"), str):
            known = registry[chosen["kind"]].Settings.__dataclass_fields__
            layered[family] = {k: v for k, v in layered.get(family, {}).items() if k in known}
        if family == "auxiliary" and isinstance(chosen, dict) and isinstance(chosen.get("kinds"), list):
            layered[family] = {k: v for k, v in layered.get(family, {}).items() if k in chosen["kinds"]}


def _nest(key: str, value: Any) -> TomlTable:
    """'a.b.c', v -> {'a': {'b': {'c': v}}}."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _lay(below: TomlTable, above: Mapping[str, Any], at: str = "") -> None:
    """Lays one table over another, in place. A table and a plain value cannot replace each other."""
    for key, value in above.items():
        path = f"{at}{key}"
        if isinstance(below.get(key), dict):
            if not isinstance(value, Mapping):
                raise _no_section(path, value)
            _lay(below[key], value, f"{path}.")
        elif key in below and isinstance(value, Mapping):
            raise ConfigError(f"'{path}' is a setting, not a section: {path}.{next(iter(value), '')} does not exist.")
        else:
            below[key] = _copy(value) if isinstance(value, Mapping) else value


def _no_section(path: str, value: object) -> ConfigError:
    """-> the error where a plain value stands in place of a section; of a family, most likely a member was meant."""
    member = value if isinstance(value, str) else "NAME"
    use = f"kinds=['{member}']" if path == "auxiliary" else f"kind={member}" if path in FAMILIES else "NAME=..."
    return ConfigError(f"'{path}' is a section, not a setting: use {path}.{use}, got {value!r}.")


def _copy(values: Mapping[str, Any]) -> TomlTable:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def parse_overrides(items: Iterable[str]) -> TomlTable:
    """'a.b=c' items of the command line -> {'a.b': value}; values are read as TOML, and as text where that fails."""
    result: TomlTable = {}
    for item in items:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not key or not all(key.split(".")):
            raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=40, got '{item}'.")
        try:
            result[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            result[key] = text.strip()
        except (ValueError, RecursionError) as error:  # a date that does not exist, a number of 5,000 digits
            raise ConfigError(f"--set {key}: its value cannot be read: {error}.") from None
    return result


def read_toml(path: Path) -> TomlTable:
    try:
        check_regular(path)
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such configuration file.") from None
    except (ValueError, OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as TOML: {reason}. Give a text file of settings in UTF-8.") from None


def to_toml(values: Mapping[str, Any], path: str = "") -> str:
    """Tables of strings, numbers, booleans and lists of those, as TOML (the standard library only reads it)."""
    keys = {k: k if re.fullmatch(r"[\w-]+", k, re.ASCII) else _toml(k) for k in values}
    plain = [f"{keys[k]} = {_toml(v)}\n" for k, v in values.items() if not isinstance(v, Mapping)]
    head = f"\n[{path}]\n" if path and plain else ""
    inner = [to_toml(v, f"{path}.{keys[k]}" if path else keys[k]) for k, v in values.items() if isinstance(v, Mapping)]
    return head + "".join(plain) + "".join(inner)


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # JSON's escapes in pairs are no TOML
