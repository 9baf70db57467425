"""The network: a backbone phi and a linear head with room for classes yet to come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional as F

from ipll.errors import ConfigError
from ipll.models.backbones import BACKBONES, SIDE_BY_SIDE, Backbone, build_backbone
from ipll.models.norm import Norm, can_fuse
from ipll.models.pretrained import load_weights, pin
from ipll.rng import key, torch_generator
from ipll.settings import check, check_choice, setting

MASKED = -1e4  # the logit of a class that is not born yet: finite, so that 0 * log-probability stays 0


class Output(NamedTuple):
    """What the network says of a batch. `shaped` is what classification losses see (see Component.reshape)."""

    features: Tensor  # [n, dim]
    logits: Tensor  # [n, capacity]
    shaped: Tensor  # [n, capacity]
    embedding: Tensor  # [n, width] of the projection, on the unit sphere; [n, 0] without one


@dataclass(frozen=True)
class ModelConfig:
    backbone: str = setting("resnet18", "the feature extractor phi", "paper")
    weights: str = setting("", "pretrained backbone: a file, 'torchvision:NAME' or 'timm:NAME'; empty: random weights")
    weights_sha256: str = setting("", "SHA-256 of that file, filled in when a run is made; another file is refused")
    expects_weights: bool = setting(False, "the published numbers need pretrained weights: say so where there are none")
    members: int = setting(1, "networks side by side, whose mean prediction counts (backbone 'wide-deep')")
    folds: int = setting(0, "cross-fitting: member m does not learn from fold m of the samples; 0: all learn from all")
    inputs: str = setting(
        "z-scores", "what becomes of features: 'z-scores', or 'quantiles': each one normal by its ranks ('wide-deep')"
    )
    width: int = setting(256, "hidden units of each member (backbone 'wide-deep')")
    head: str = setting("linear", "'linear', or 'cosine': both sides normalised, no bias")
    new_rows: str = setting("random", "a new class's row of the head: 'random' or 'zero'")
    projection: int = setting(128, "width of the projection head, for methods that have one", "paper")

    def __post_init__(self) -> None:
        BACKBONES[self.backbone]
        check_choice("model.head", self.head, tuple(HEADS))
        check(self.members >= 1, "model.members", "be at least 1", self.members)
        check(self.width >= 1, "model.width", "be at least 1", self.width)
        check_choice("model.inputs", self.inputs, ("z-scores", "quantiles"))
        if self.inputs == "quantiles" and self.backbone not in SIDE_BY_SIDE:
            raise ConfigError("model.inputs=quantiles needs model.backbone=wide-deep: others take z-scores.")
        several = self.backbone in SIDE_BY_SIDE and self.head == "linear"
        if self.members > 1 and not several:
            raise ConfigError(
                f"model.members={self.members} needs model.backbone=wide-deep and model.head=linear: others have one."
            )
        folds = 0 if self.members == 1 else self.members
        if not (self.folds == 0 or 2 <= self.folds <= folds):
            check(False, "model.folds", f"be 0, or at least 2 and at most model.members ({self.members})", self.folds)
        check(self.projection >= 1, "model.projection", "be at least 1", self.projection)
        check_choice("model.new_rows", self.new_rows, ("random", "zero"))

    def pinned(self) -> ModelConfig:
        """-> the same settings with the absolute path of the file of weights and its SHA-256."""
        weights, digest = pin(self.weights, self.weights_sha256)
        return replace(self, weights=weights, weights_sha256=digest)

    def notices(self) -> list[str]:
        """-> what a user should know before a run starts."""
        if self.weights or not self.expects_weights:
            return []
        return [
            "Note: the paper's numbers need a pretrained backbone, and this run starts from random weights. "
            "To have them: --set model.weights=FILE (see docs/pretrained.md)."
        ]


def make_backbone(config: ModelConfig, channels: int, seed: int, *, pretrained: bool = True) -> Backbone:
    """-> a backbone with random weights, or, where `pretrained`, with those that the settings name."""
    several = (config.members, config.width, config.inputs) if config.backbone in SIDE_BY_SIDE else ()
    backbone = build_backbone(config.backbone, channels, torch_generator(seed, "backbone"), *several)
    if pretrained and config.weights:
        load_weights(backbone, config.weights, config.weights_sha256)
    return backbone


class LinearHead(nn.Module):
    """A linear head of fixed capacity. Unborn rows are zero and masked: no gradient, nothing for weight decay."""

    born: Tensor  # [capacity] bool

    def __init__(self, dim: int, capacity: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(capacity, dim))
        self.bias = nn.Parameter(torch.zeros(capacity))
        self.register_buffer("born", torch.zeros(capacity, dtype=torch.bool))

    def birth(self, first: int, last: int, seed: int, *, rows: str = "random") -> list[int]:
        """Initialises the rows of classes first..last-1, each from a generator of its own, as nn.Linear would.

        -> the classes that were born now; those that had been born before stay as they are.
        """
        bound = self.weight.shape[1] ** -0.5
        arriving = [c for c, born in enumerate(self.born[:last].tolist()) if c >= first and not born]
        with torch.no_grad():
            for c in arriving:
                self.born[c] = True
                if rows == "random":
                    generator = torch_generator(seed, "class", c)
                    row = torch.empty(self.weight.shape[1] + 1).uniform_(-bound, bound, generator=generator)
                    self.weight[c] = row[:-1]
                    self.bias[c] = row[-1]
        return arriving

    def forward(self, features: Tensor) -> Tensor:
        logits = F.linear(features, self.weight, self.bias)
        return torch.where(self.born, logits, MASKED)


class CosineHead(LinearHead):
    """Cosines between features and class weights, times a scale (ER-ACE's official head); the bias is not used."""

    SCALE = 10.0

    def forward(self, features: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))
        return torch.where(self.born, self.SCALE * cosines, MASKED)


HEADS = {"linear": LinearHead, "cosine": CosineHead}


def make_head(config: ModelConfig, dim: int, channels: int, capacity: int) -> LinearHead:
    """-> the head over features [n, dim], with a part for each of several members."""
    if config.members == 1:
        return HEADS[config.head](dim, capacity)
    from ipll.models.side_by_side import MembersHead

    return MembersHead(channels, config.members, config.width, capacity)


class Network(nn.Module):
    """f: features from the backbone, logits from the head, and an embedding where a method projects features.

    What comes out is float32, whatever the arithmetic inside.
    """

    def __init__(
        self, config: ModelConfig, channels: int, capacity: int, seed: int, *, project: bool = False,
        bf16: bool = False, pretrained: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.bf16 = bf16
        backbone = make_backbone(config, channels, seed, pretrained=pretrained)
        self.backbone: nn.Module = backbone
        self.dim, self.takes = int(backbone.dim), backbone.takes
        self.head = make_head(config, self.dim, channels, capacity)
        self.projection = _projection(self.dim, config.projection, seed) if project else None
        self.width = config.projection if project else 0  # of the embedding

    def fuses(self) -> bool:
        """Do its layers have kernels of their own, where it is now? They are faster than what a compiler makes."""
        here = self.head.weight.device
        return can_fuse(here) and any(isinstance(module, Norm) for module in self.backbone.modules())

    def forward(self, x: Tensor) -> Output:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            features = self._features(x)
            logits = self.head(features).float()
            projected = features[:, :0] if self.projection is None else self.projection(features)
        embedding = projected.float() if self.projection is None else F.normalize(projected.float(), dim=1)
        return Output(features.float(), logits, logits, embedding)

    def _features(self, x: Tensor) -> Tensor:
        if not (self.bf16 and self.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            features: Tensor = self.backbone(x)
            return features
        wide = {name: weight for name, weight in self.backbone.named_parameters() if weight.ndim > 1}
        narrow: tuple[Tensor, ...] = _Narrow.apply(*wide.values())  # type: ignore[no-untyped-call]
        said: Tensor = functional_call(self.backbone, dict(zip(wide, narrow, strict=True)), (x,))
        return said


class _Narrow(torch.autograd.Function):
    """All weights in bf16 by one kernel, and their gradients in float32 by another. Autocast takes one for each weight,
    which is a twentieth of a step with batches of 64."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        return _as(torch.bfloat16, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return _as(torch.float32, gradients)


def _as(dtype: torch.dtype, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


def _projection(dim: int, width: int, seed: int) -> nn.Sequential:
    """Two linear layers (as PiCO and PaPi have them), initialised from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(seed, "projection"))
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, width))
