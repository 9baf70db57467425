"""PaPi's alignment: prototype predictions of mixed-up views follow the soft targets, by KL divergence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ipll.component import FAMILIES, Batch, Component, Context, Draw, predict_within
from ipll.families.embedding import follow, ramp
from ipll.networks.network import MASKED, Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class PrototypeKLSettings(Section, name="auxiliary.prototype-kl"):
    weight: float = setting(1.0, "weight of the KL divergence once it is ramped up", "official code", least=0)
    temperature: float = setting(0.3, "tau of the similarities to prototypes", "official code", above=0)
    mixup: float = setting(8.0, "both parameters of the mixing share's Beta distribution", "official code", above=0)
    ramp: float = setting(
        0.02, "share of a task's epochs over which the weight grows from 0", "official code", within=(0, 1)
    )
    momentum_start: float = setting(0.9, "momentum of the prototypes, as a task starts", "official code", within=(0, 1))
    momentum_end: float = setting(0.5, "and at its end", "official code", within=(0, 1))


@FAMILIES["auxiliary"].register("prototype-kl")
class PrototypeKL(Component):
    """The linear classifier teaches the prototypical one, the reverse of PiCO.

    Each batch is mixed with a permutation of itself, the same for both views. Prototypes follow the plain views'
    embeddings, weak ones first.
    """

    Settings = PrototypeKLSettings
    needs = frozenset({"projection", "strong view"})
    views = ("strong", "mixed weak", "mixed strong")
    mu: Tensor  # [capacity, width]
    momentum: Tensor  # 0-d
    strength: Tensor  # 0-d, the ramp of the weight

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("mu", torch.zeros(ctx.capacity, ctx.network.width, device=ctx.device))
        self.register_buffer("momentum", torch.zeros((), device=ctx.device))
        self.register_buffer("strength", torch.zeros((), device=ctx.device))

    def begin_epoch(self) -> None:
        ctx, settings = self.ctx, self.settings
        self.momentum.fill_(ramp(ctx.epoch, ctx.epochs, 0.99, settings.momentum_start, settings.momentum_end))
        rising = max(settings.ramp * ctx.epochs, 1.0)  # in epochs; epoch 0 always has weight 0
        self.strength.fill_(min(ctx.epoch / rising, 1.0))

    def inputs(self, draw: Draw, generator: torch.Generator) -> None:
        weak = draw.views["weak"]
        both = torch.full((1, 2), self.settings.mixup, device=weak.device)
        share = torch._sample_dirichlet(both, generator=generator)[0, 0]  # Beta(a, a)
        partner = torch.randperm(len(weak), generator=generator, device=weak.device)
        for name in ("weak", "strong"):
            view = draw.views[name]
            draw.views[f"mixed {name}"] = share * view + (1 - share) * view[partner]
        draw.extra |= {"share": share, "partner": partner}

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        share, partner = batch.extra["share"], batch.extra["partner"]
        targets = targets if batch.targets is None else batch.targets  # masks are for the classifier's loss only
        total = targets.new_zeros(())
        for name in ("mixed weak", "mixed strong"):
            similarities = out[name].embedding @ self.mu.T / self.settings.temperature
            log_predicted = torch.where(self.ctx.network.head.born, similarities, MASKED).log_softmax(dim=1)
            total = total + share * kl_divergence(targets, log_predicted)
            total = total + (1 - share) * kl_divergence(targets[partner], log_predicted)
        return {"kl": self.strength * total}

    def weights(self) -> dict[str, float]:
        return {"kl": self.settings.weight}

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        views = out["weak"], out["strong"]
        labels = torch.cat([predict_within(view.logits, batch.candidates) for view in views])
        self.mu.copy_(follow(self.mu, torch.cat([view.embedding for view in views]), labels, self.momentum))


def kl_divergence(targets: Tensor, log_predicted: Tensor) -> Tensor:
    """The mean over samples of KL(targets || predicted); 0 log 0 is 0."""
    return (torch.xlogy(targets, targets) - targets * log_predicted).sum(dim=1).mean()
