"""Pretrained weights for a backbone: from a file of tensors, or by name from torchvision, timm or the extra 'photos'.

The names of tensors are torchvision's (timm's ResNet-18 has the same), or the backbone's own. No code is unpickled.
"""

from __future__ import annotations

import importlib
import pickle
import re
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ipll.engine.files import sha256_of
from ipll.errors import ConfigError
from ipll.networks.efficientnet_lite import Lite0
from ipll.networks.photos import LITE0, PLAIN, lite0_weights

State = dict[str, Tensor]

HEAD = "fc."  # the classifier of 1000 classes: not a part of a backbone
COUNTER = "num_batches_tracked"  # older files lack it, and batch norm does not use it here
LONGEST_HEADER = 100_000_000  # bytes, by the definition of safetensors
SHOWN = 3  # names in a message, of each kind
DEPTHS: dict[tuple[str | int, ...], str] = {  # kind and number of the blocks in each layer
    ("basic", 2, 2, 2, 2): "ResNet-18",
    ("basic", 3, 4, 6, 3): "ResNet-34",
    ("bottleneck", 3, 4, 6, 3): "ResNet-50",
    ("bottleneck", 3, 4, 23, 3): "ResNet-101",
    ("bottleneck", 3, 8, 36, 3): "ResNet-152",
}


def torchvision_name(name: str) -> str:
    """'blocks.3.norm1.weight' -> 'layer2.1.bn1.weight'; names that are not those of our ResNet-18 stay as they are."""
    name = re.sub(r"^stem\.0\.", "conv1.", re.sub(r"^stem\.1\.", "bn1.", name))
    if found := re.match(r"blocks\.(\d+)\.(.+)", name):
        layer, block = divmod(int(found[1]), 2)
        inside = found[2].replace("norm", "bn").replace("shortcut", "downsample")
        return f"layer{layer + 1}.{block}.{inside}"
    return name


def pin(weights: str, sha256: str) -> tuple[str, str]:
    """-> where the weights are for good: the file's absolute path and SHA-256, which must be `sha256` where that is
    given. What is taken by name has no file to pin."""
    if package := package_of(weights):
        check_plain(package, weights.partition(":")[2])
    if not weights or package:
        return weights, ""
    path = Path(weights).expanduser().absolute()
    if not path.is_file():
        what = "is not a file" if path.exists() else "there is no such file"
        raise ConfigError(
            f"model.weights: {path}: {what}. Give a .safetensors or .pth file, 'torchvision:resnet18' or 'timm:NAME'."
        )
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise ConfigError(f"model.weights: {path}: cannot be read: {error.strerror}.") from None
    if sha256 not in ("", digest):
        raise ConfigError(
            f"model.weights: {path} is not the file that the configuration was made with: its SHA-256 is "
            f"{digest[:12]}..., not {sha256[:12]}... Put the former file back, or use --set model.weights_sha256="
        )
    return str(path), digest


def load_weights(backbone: nn.Module, weights: str, sha256: str = "") -> None:
    """Fills the backbone with pretrained weights; nothing of it changes unless every tensor fits.

    Weights for three channels fit a backbone for grey images: their sum over the channels of the stem gives the
    features that the grey image would have in all three.
    """
    package = package_of(weights)
    if package:
        name = weights.partition(":")[2]
        check_plain(package, name)
        state = _by_name(package, name)
    else:
        weights, _ = pin(weights, sha256)
        state = _read(Path(weights))
    own = {torchvision_name(key): tensor for key, tensor in backbone.state_dict().items()}
    prefix = _prefix(weights, own, state)
    given = {torchvision_name(k.removeprefix(prefix)): tensor for k, tensor in state.items() if k.startswith(prefix)}
    given = {key: tensor for key, tensor in given.items() if key in own or not key.startswith(HEAD)}
    for key, tensor in own.items():
        if key in given and tensor.ndim == 4 and given[key].shape == (tensor.shape[0], 3, *tensor.shape[2:]):
            given[key] = _as_grey(given[key], channels=tensor.shape[1])
    _check_fit(weights, own, given)
    with torch.no_grad():
        for key in own.keys() & given.keys():
            own[key].copy_(given[key])


def package_of(weights: str) -> str:
    """'timm:resnet18' -> 'timm'; '' for a file."""
    return next((name for name in PACKAGES if weights.startswith(f"{name}:")), "")


def check_plain(package: str, name: str) -> None:
    """A ConfigError for what is more than a name: a stranger's settings choose none of a stranger's weights."""
    if not PLAIN.fullmatch(name):
        raise ConfigError(
            f"model.weights={package}:{name}: '{name}' is no name of {package}'s own. Save such weights to a file and "
            "give that (see docs/pretrained.md)."
        )


def _as_grey(kernel: Tensor, *, channels: int) -> Tensor:
    return kernel.float().sum(dim=1, keepdim=True) if (channels, kernel.shape[1]) == (1, 3) else kernel


def _read(path: Path) -> State:
    """What the file is, its content tells: many carry the name of the other kind."""
    try:
        with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
            start = file.read(9)
            file.seek(0)
            if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= LONGEST_HEADER:
                return load_file(path)
            _check_plain(file)
            found = _named_tensors(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # the readers raise whatever a damaged file leads them to
        raise ConfigError(
            f"model.weights: {path}: cannot be read as tensors alone: {_damage(error)}. Fetch it anew, or save the "
            "model's state_dict() as .safetensors (see docs/pretrained.md)."
        ) from None
    if not found:
        raise ConfigError(
            f"model.weights: {path}: holds no tensors with names. Save the model's state_dict() "
            "(see docs/pretrained.md)."
        )
    return found


def _check_plain(file: IO[bytes]) -> None:
    """A ValueError for an archive whose members are packed, as torch.save never does: they could fill any memory."""
    if zipfile.is_zipfile(file):
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            packed = [info.filename for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise ValueError(f"its member {packed[0]!r} is compressed")
    file.seek(0)


def _named_tensors(content: object) -> State:
    """The tensors of a dict and of the dicts in it: {'model': {'fc.bias': tensor}} -> {'model.fc.bias': tensor}."""
    found: State = {}
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(value, Tensor):
            found[str(key)] = value
        else:
            found |= {f"{key}.{name}": tensor for name, tensor in _named_tensors(value).items()}
    return found


def _prefix(weights: str, own: State, state: State) -> str:
    """'module.encoder_q.', under which the file has most of the backbone's names; '' where there is none."""
    found: Counter[str] = Counter()
    for key in state:
        starts = [0, *(dot.end() for dot in re.finditer(r"\.", key))]
        found.update(key[:start] for start in starts if torchvision_name(key[start:]) in own)
    prefixes = [prefix for prefix, names in found.items() if 2 * names > len(own)]
    if len(prefixes) > 1:
        raise ConfigError(
            f"model.weights: {weights}: holds the backbone's names more than once, under "
            f"{_some([repr(prefix) for prefix in prefixes])}. Save those that you want to a file of their own "
            "(see docs/pretrained.md)."
        )
    return prefixes[0] if prefixes else ""


def _damage(error: Exception) -> str:
    if blocked := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it holds more than tensors ({blocked[1]}), and no code is run"
    if isinstance(error, EOFError | pickle.UnpicklingError):
        return "it is empty, cut short, or neither a safetensors file nor one that torch.save wrote"
    return _first_sentence(error)


def _by_name(package: str, name: str) -> State:
    """The weights as the package gives them. What it draws at random on the way leaves our generators alone."""
    try:
        with torch.random.fork_rng(devices=[]):
            return dict(PACKAGES[package](name).state_dict())
    except ConfigError as error:
        raise ConfigError(f"model.weights={package}:{name}: {error}") from None
    except Exception as error:  # of another package: unknown names, no network, a full disk
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ConfigError(
                f"model.weights={package}:{name} needs the package {package}: pip install {package}, or give a file."
            ) from None
        raise ConfigError(
            f"model.weights={package}:{name}: {package} says: {_first_sentence(error)}. Without a network, export the "
            "weights to a file elsewhere (see docs/pretrained.md)."
        ) from error


def _torchvision(name: str) -> nn.Module:
    """'resnet18' or, with the weights' own name, 'resnet18.IMAGENET1K_V1'."""
    model, _, version = name.partition(".")
    found: nn.Module = importlib.import_module("torchvision.models").get_model(model, weights=version or "DEFAULT")
    return found


def _timm(name: str) -> nn.Module:
    """'resnet18' or, with the weights' own name, 'resnet18.tv_in1k'."""
    found: nn.Module = importlib.import_module("timm").create_model(name, pretrained=True)
    return found


def _photos(name: str) -> nn.Module:
    """What the extra 'photos' brings, for the backbone of the same name."""
    if name != LITE0:
        raise ConfigError(f"the extra 'photos' brings '{LITE0}' alone.")
    found = Lite0()
    found.layers.load(lite0_weights())
    return found


PACKAGES = {"torchvision": _torchvision, "timm": _timm, "photos": _photos}


def _check_fit(weights: str, own: State, given: State) -> None:
    missing = [key for key in own if key not in given and not key.endswith(COUNTER)]
    unexpected = [key for key in given if key not in own]
    wrong = [key for key in own if key in given and given[key].shape != own[key].shape]
    problems = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": [f"{key} {list(given[key].shape)} instead of {list(own[key].shape)}" for key in wrong],
    }
    if told := [f"{kind}: {_some(names)}" for kind, names in problems.items() if names]:
        fitting = len(own.keys() & given.keys()) - len(wrong)
        raise ConfigError(
            f"model.weights: {weights}: {fitting} of {len(own)} tensors fit the backbone; {'; '.join(told)}. "
            f"{_advice(own, given)}"
        )
    for key in own.keys() & given.keys():
        if not given[key].isfinite().all():
            raise ConfigError(f"model.weights: {weights}: {key} holds values that are not finite. Fetch it anew.")


def _advice(own: State, given: State) -> str:
    """What to do, told by what the backbone and the file are."""
    theirs, ours = _architecture(given), _architecture(own)
    if not ours:
        return "The names must be those of the backbone's own state_dict()."
    if theirs != ours:
        return f"This file is {f'a {theirs}' if theirs else 'no ResNet'}; give the weights of a {ours}."
    if "conv1.weight" not in given or given["conv1.weight"].ndim != 4:
        return "Give the weights of a plain ResNet-18, all of them."
    (width, channels, size, _), (our_width, our_channels, our_size, _) = (s["conv1.weight"].shape for s in (given, own))
    if size != our_size:
        fitting = {7: " (--set model.backbone=resnet18-imagenet)", 3: " (--set model.backbone=resnet18)"}.get(size, "")
        return f"The file's stem is {size}x{size}, the backbone's {our_size}x{our_size}: use another backbone{fitting}."
    if width != our_width:
        return f"The file's stem is {width} wide, the backbone's {our_width}: use another backbone."
    if channels != our_channels:
        return f"The file is for images of {channels} channels, the data have {our_channels}."
    return "Give the weights of a plain ResNet-18, all of them."


def _architecture(state: State) -> str:
    """'ResNet-50' by the number of blocks in its four layers; '' for what is no ResNet."""
    blocks: dict[str, set[str]] = defaultdict(set)
    for key in state:
        if found := re.match(r"layer([1-4])\.(\d+)\.", key):
            blocks[found[1]].add(found[2])
    kind = "bottleneck" if any(".conv3." in key for key in state) else "basic"
    depths = [len(blocks[layer]) for layer in "1234"]
    return DEPTHS.get((kind, *depths), "ResNet of another depth") if all(depths) else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].removesuffix(".")
