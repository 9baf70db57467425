"""The network: a backbone phi and a linear head with room for classes yet to come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional as F

from ipll.engine import processes
from ipll.engine.compiler import compile_module
from ipll.errors import ConfigError
from ipll.networks.backbones import BACKBONES, Backbone, build_backbone
from ipll.networks.norm import Norm, can_fuse, strange_norms
from ipll.networks.pretrained import load_weights, pin
from ipll.networks.wide_deep import WIDE_DEEP
from ipll.rng import seeded, torch_generator
from ipll.settings import Section, check, setting

MASKED = -1e4  # the logit of a class that is not born yet: finite, so that 0 * log-probability stays 0


class Output(NamedTuple):
    """What the network says of a batch. `shaped` is what classification losses see (see Component.reshape)."""

    features: Tensor  # [n, dim]
    logits: Tensor  # [n, capacity]
    shaped: Tensor  # [n, capacity]
    embedding: Tensor  # [n, width] of the projection, on the unit sphere; [n, 0] without one


@dataclass(frozen=True)
class ModelConfig(Section, name="model"):
    backbone: str = setting("resnet18", "the feature extractor phi", "paper", choices=BACKBONES)
    weights: str = setting(
        "",
        "pretrained backbone: a file, 'torchvision:NAME', 'timm:NAME', 'photos:efficientnet-lite0'; empty: random",
    )
    weights_sha256: str = setting("", "SHA-256 of that file, filled in when a run is made; another file is refused")
    expects_weights: bool = setting(False, "the published numbers need pretrained weights: say so where there are none")
    members: int = setting(1, "networks side by side, whose mean prediction counts (backbone 'wide-deep')", least=1)
    folds: int = setting(
        0, "cross-fitting: member m does not learn from fold m of the samples; 0: all learn from all", least=0
    )
    leave_out: str = setting(
        "samples",
        "what folds are dealt of: 'samples', or 'sets': for every other round of members all with the same candidates",
        choices=("samples", "sets"),
    )
    deal: str = setting(
        "ratio",
        "who is in which fold, by ids: 'ratio', their multiples of the golden ratio, or 'blocks': as many as there are "
        "folds are dealt in turn, from one on that chance says anew, so that rows that come around do not share one",
        choices=("ratio", "blocks"),
    )
    settle: str = setting(
        "all",
        "with folds, whose word on labels counts in the end: that of 'all' members, or of those 'held-out'",
        choices=("all", "held-out"),
    )
    inputs: str = setting(
        "z-scores",
        "what becomes of features: 'z-scores', or 'quantiles': each one normal by its ranks ('wide-deep')",
        choices=("z-scores", "quantiles"),
    )
    width: int = setting(256, "hidden units of each member (backbone 'wide-deep')", least=1)
    head: str = setting("linear", "'linear', or 'cosine': both sides normalised, no bias", choices=lambda: HEADS)
    new_rows: str = setting("random", "a new class's row of the head: 'random' or 'zero'", choices=("random", "zero"))
    projection: int = setting(128, "width of the projection head, for methods that have one", "paper", least=1)

    def check_members(self) -> None:
        """Raises where the backbone has no such members or inputs. By the whole configuration: a method may set some
        of these and the data others."""
        if self.inputs == "quantiles" and self.backbone != WIDE_DEEP:
            raise ConfigError("model.inputs=quantiles needs model.backbone=wide-deep: others take z-scores.")
        if self.members > 1 and not (self.backbone == WIDE_DEEP and self.head == "linear"):
            raise ConfigError(
                f"model.members={self.members} needs model.backbone=wide-deep and model.head=linear: others have one."
            )
        if self.new_rows == "zero" and self.head == "cosine":
            raise ConfigError(
                "model.new_rows=zero needs model.head=linear: a row of zeros has no direction to turn from."
            )
        must = f"be 0, or at least 2 and at most model.members ({self.members})"
        check(self.folds == 0 or 2 <= self.folds <= self.members, "model.folds", must, self.folds)

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
    several = (config.members, config.width, config.inputs) if config.backbone == WIDE_DEEP else ()
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


class MembersHead(LinearHead):
    """A linear head for each member of WideDeep; a row of `weight` holds a class's weights in all of them.

    What it says of a class is the mean over the members of the log of its probability.
    """

    def __init__(self, channels: int, members: int, width: int, capacity: int) -> None:
        super().__init__(members * (channels + width), capacity)
        self.channels, self.members, self.width = channels, members, width

    def each(self, features: Tensor) -> Tensor:
        """-> the logits of each member [n, members, capacity]."""
        n, capacity, members = features.shape[0], len(self.weight), self.members  # `len` would be fixed in exports
        x, hidden = features[:, : self.channels], features[:, self.channels :]
        wide, deep = self.weight[:, : members * self.channels], self.weight[:, members * self.channels :]
        straight = F.linear(x, wide.reshape(capacity * members, self.channels)).view(n, capacity, members)
        by_member = hidden.view(n, members, self.width).transpose(0, 1)
        weights = (deep * members**0.5).view(capacity, members, self.width).permute(1, 2, 0)
        logits = torch.bmm(by_member, weights).transpose(0, 1) + straight.transpose(1, 2) + self.bias
        return torch.where(self.born, logits, MASKED)

    def forward(self, features: Tensor) -> Tensor:
        return torch.where(self.born, self.each(features).float().log_softmax(dim=2).mean(dim=1), MASKED)


HEADS: dict[str, type[LinearHead]] = {"linear": LinearHead, "cosine": CosineHead}


def make_head(config: ModelConfig, dim: int, channels: int, capacity: int) -> LinearHead:
    """-> the head over features [n, dim], with a part for each of several members."""
    if config.members == 1:
        return HEADS[config.head](dim, capacity)
    return MembersHead(channels, config.members, config.width, capacity)


class Network(nn.Module):
    """f: features from the backbone, logits from the head, and an embedding where a method projects features.

    What comes out is float32, whatever the arithmetic inside.
    """

    def __init__(
        self,
        config: ModelConfig,
        channels: int,
        capacity: int,
        seed: int,
        *,
        project: bool = False,
        bf16: bool = False,
        pretrained: bool = True,
    ) -> None:
        super().__init__()
        self.bf16 = bf16
        backbone = make_backbone(config, channels, seed, pretrained=pretrained)
        self.backbone: nn.Module = backbone
        if processes.count() > 1 and (strange := strange_norms(backbone)):
            raise ConfigError(
                f"model.backbone={config.backbone}: its batch norm ('{strange[0]}') knows the rows of one process only."
                " Make it an ipll.networks.norm.BatchNorm, or run in one process."
            )
        self.dim, self.takes, self.slow_on_cpu = int(backbone.dim), backbone.takes, backbone.slow_on_cpu
        self.head = make_head(config, self.dim, channels, capacity)
        self.projection = _projection(self.dim, config.projection, seed) if project else None
        self.width = config.projection if project else 0  # of the embedding

    def fuses(self) -> bool:
        """Do its layers have kernels of their own, where it is now? They are faster than what a compiler makes."""
        here = self.head.weight.device
        return can_fuse(here) and any(isinstance(module, Norm) for module in self.backbone.modules())

    def forward(self, x: Tensor, *, alone: bool = False) -> Output:
        rows = None if alone or processes.count() == 1 else processes.own_rows(len(x))
        if rows is not None:
            return self._shared(x, rows)
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            features = self._features(x)
            logits = self.head(features).float()
            projected = features[:, :0] if self.projection is None else self.projection(features)
        embedding = projected.float() if self.projection is None else F.normalize(projected.float(), dim=1)
        return Output(features.float(), logits, logits, embedding)

    def _shared(self, x: Tensor, rows: slice) -> Output:
        """The same of several processes, each of which passes its own rows."""
        weights = dict(self.named_parameters()) if torch.is_grad_enabled() else {}
        same = dict(zip(weights, processes.summed(list(weights.values())), strict=True)) if weights else {}
        with processes.sharing():
            own: Output = functional_call(self, same, (x[rows],), {"alone": True})
        joined = torch.cat([own.features, own.logits, own.embedding], dim=1)
        sizes = [own.features.shape[1], own.logits.shape[1], own.embedding.shape[1]]
        features, logits, embedding = torch.split(processes.gathered(joined, len(x)), sizes, dim=1)
        return Output(features, logits, logits, embedding)

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
    with seeded(seed, "projection"):
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, width))


def compile_networks(module: nn.Module, *, every: bool) -> None:
    """Compiles the networks inside `module`; not those whose layers have kernels of their own, unless `every` one.

    Classes yet to come are there and masked: new ones change nothing.
    """
    if processes.count() > 1:  # what they say to each other is not for a compiler
        return
    for part in module.modules():
        if isinstance(part, Network) and (every or not part.fuses()):
            compile_module(part)
