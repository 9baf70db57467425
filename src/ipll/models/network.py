"""The network: a backbone phi and a linear head with room for classes yet to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipll.models.backbones import BACKBONES, build_backbone
from ipll.rng import torch_generator
from ipll.settings import check_choice, setting

MASKED = -1e4  # the logit of a class that is not born yet: finite, so that 0 * log-probability stays 0


class Output(NamedTuple):
    """What the network says of a batch. `shaped` is what classification losses see (see Component.reshape)."""

    features: Tensor  # [n, dim]
    logits: Tensor  # [n, capacity]
    shaped: Tensor  # [n, capacity]


@dataclass(frozen=True)
class ModelConfig:
    backbone: str = setting("resnet18", "the feature extractor phi", "paper")
    new_rows: str = setting("random", "a new class's row of the head: 'random' or 'zero'")

    def __post_init__(self) -> None:
        BACKBONES[self.backbone]
        check_choice("model.new_rows", self.new_rows, ("random", "zero"))


class LinearHead(nn.Module):
    """A linear head of fixed capacity. Unborn rows are zero and masked: no gradient, nothing for weight decay."""

    born: Tensor  # [capacity] bool

    def __init__(self, dim: int, capacity: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(capacity, dim))
        self.bias = nn.Parameter(torch.zeros(capacity))
        self.register_buffer("born", torch.zeros(capacity, dtype=torch.bool))

    def birth(self, first: int, last: int, seed: int, *, rows: str = "random") -> None:
        """Initialises the rows of classes first..last-1, each from a generator of its own, as nn.Linear would."""
        bound = self.weight.shape[1] ** -0.5
        with torch.no_grad():
            for c in range(first, last):
                self.born[c] = True
                if rows == "random":
                    generator = torch_generator(seed, "class", c)
                    row = torch.empty(self.weight.shape[1] + 1).uniform_(-bound, bound, generator=generator)
                    self.weight[c] = row[:-1]
                    self.bias[c] = row[-1]

    def forward(self, features: Tensor) -> Tensor:
        logits = F.linear(features, self.weight, self.bias)
        return torch.where(self.born, logits, MASKED)


class Network(nn.Module):
    """f: features from the backbone, logits from the head; both float32 whatever the arithmetic inside."""

    def __init__(self, config: ModelConfig, channels: int, capacity: int, seed: int, *, bf16: bool = False) -> None:
        super().__init__()
        self.bf16 = bf16
        backbone = build_backbone(config.backbone, channels, torch_generator(seed, "backbone"))
        self.backbone: nn.Module = backbone
        self.dim = int(backbone.dim)
        self.head = LinearHead(self.dim, capacity)

    def forward(self, x: Tensor) -> Output:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            features = self.backbone(x)
            logits = self.head(features).float()
        return Output(features.float(), logits, logits)
