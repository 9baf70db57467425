"""Separation by what the old network says instead of where its features lie (ablations of the paper's table)."""

from __future__ import annotations

import torch
from torch import Tensor

from ipll.component import FAMILIES
from ipll.families.separation import Separation


def _over_old(logits: Tensor, old_mask: Tensor) -> Tensor:
    """The old network's softmax: over the classes that it knows."""
    return logits.masked_fill(~old_mask, -torch.inf).softmax(dim=1)


@FAMILIES["separation"].register("confidence")
class Confidence(Separation):
    """e_i = 1 - the largest probability of an old candidate."""

    def statistic(self, features: Tensor, logits: Tensor, old_candidates: Tensor) -> Tensor:
        probabilities = _over_old(logits, self.ctx.old_mask)
        return 1 - (probabilities * old_candidates).amax(dim=1)


@FAMILIES["separation"].register("entropy")
class Entropy(Separation):
    """e_i = the entropy of the prediction over old classes."""

    def statistic(self, features: Tensor, logits: Tensor, old_candidates: Tensor) -> Tensor:
        probabilities = _over_old(logits, self.ctx.old_mask)
        return -torch.xlogy(probabilities, probabilities).sum(dim=1)
