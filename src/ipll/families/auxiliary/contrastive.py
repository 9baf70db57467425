"""PiCO's contrastive loss: a momentum encoder, a queue, positives by predicted label (Wang et al., ICLR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Batch, Component, Context, predict_within
from ipll.networks.network import Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class ContrastiveSettings(Section, name="auxiliary.contrastive"):
    weight: float = setting(0.5, "weight of the contrastive loss", "official code", least=0)
    temperature: float = setting(0.07, "tau of the similarities", "official code", above=0)
    queue: int = setting(4096, "keys kept as further contrasts; emptied when a task begins", "paper", least=1)
    key_momentum: float = setting(0.999, "momentum of the key encoder", "official code", within=(0, 1))
    start: int = setting(
        1, "epoch of a task from which labels make positives; before, only a sample's own key", "official code", least=0
    )


@FAMILIES["auxiliary"].register("contrastive")
class Contrastive(Component):
    """Queries are weak views through the network, keys are strong views through its moving average.

    The label of a sample is argmax over S_i of f. The key encoder runs in training mode with batch statistics of its
    own, and goes on from task to task; keys of an earlier task's network would be stale, so the queue starts anew.
    """

    Settings = ContrastiveSettings
    needs = frozenset({"projection", "strong view"})
    keys: Tensor  # [queue, width]
    labels: Tensor  # [queue], -1 where there is no key yet
    place: Tensor  # 0-d, where the next key goes

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.encoder = copy.deepcopy(ctx.network).requires_grad_(False)
        size = self.settings.queue
        self.register_buffer("keys", torch.zeros(size, ctx.network.width, device=ctx.device))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64, device=ctx.device))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64, device=ctx.device))

    def begin_task(self) -> None:
        if not self.ctx.task:  # quantiles of features, if any, are known only now
            for own, current in zip(self.encoder.buffers(), self.ctx.network.buffers(), strict=True):
                own.copy_(current)
        generator = self.ctx.generator("queue", self.ctx.task)
        fresh = torch.randn(self.keys.shape, generator=generator, device=self.ctx.device)
        self.keys.copy_(F.normalize(fresh, dim=1))
        self.labels.fill_(-1)
        self.place.zero_()

    def stage(self) -> bool:
        """Do labels make positives by now?"""
        return self.ctx.epoch >= int(self.settings.start)

    def before(self, batch: Batch) -> None:
        weights: list[Tensor] = list(self.encoder.parameters())
        current: list[Tensor] = list(self.ctx.phase.network.parameters())
        torch._foreach_lerp_(weights, current, 1 - self.settings.key_momentum)
        batch.extra["key"] = self.encoder(batch.views["strong"]).embedding

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> None:
        batch.extra["label"] = predict_within(out["weak"].logits, batch.candidates)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        query, key, label = out["weak"].embedding, batch.extra["key"], batch.extra["label"]
        if not self.stage():
            return {"contrastive": own_key_loss(query, key, self.keys, self.settings.temperature)}
        contrasts = torch.cat([query, key, self.keys])
        labels = torch.cat([label, label, self.labels])
        return {"contrastive": same_label_loss(query, label, contrasts, labels, self.settings.temperature)}

    def weights(self) -> dict[str, float]:
        return {"contrastive": self.settings.weight}

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        key = batch.extra["key"][-len(self.keys) :]
        places = (self.place + torch.arange(len(key), device=key.device)) % len(self.keys)
        self.keys[places] = key
        self.labels[places] = batch.extra["label"][-len(self.keys) :]
        self.place.copy_((self.place + len(key)) % len(self.keys))


def own_key_loss(query: Tensor, key: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """MoCo's InfoNCE: a query's own key against the queue."""
    similarities = torch.cat([(query * key).sum(dim=1, keepdim=True), query @ queue.T], dim=1) / temperature
    return -similarities.log_softmax(dim=1)[:, 0].mean()


def same_label_loss(query: Tensor, label: Tensor, contrasts: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of queries [n, width], which are the first n of the contrasts [k, width].

    Positives are the contrasts of the same label, the query itself excluded.
    """
    similarities = query @ contrasts.T / temperature
    own = torch.eye(len(query), len(contrasts), dtype=torch.bool, device=query.device)
    log_probabilities = similarities - similarities.masked_fill(own, -torch.inf).logsumexp(dim=1, keepdim=True)
    positive = ((label[:, None] == labels) & ~own).to(query.dtype)
    return -((positive * log_probabilities).sum(dim=1) / positive.sum(dim=1)).mean()
