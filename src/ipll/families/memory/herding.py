"""iCaRL's memory: samples whose mean stays near the class mean (Rebuffi et al., CVPR 2017)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, never
from ipll.families.memory.by_class import ByClass


@FAMILIES["memory"].register("herding")
class Herding(ByClass):
    """Every class is herded anew, from the task and the memory: old classes get fresh samples in a blurry stream."""

    def choose(self, features: Tensor, c: int, quota: int) -> Tensor:
        return herd(F.normalize(features, dim=1), quota, self.ctx.check_stop)


def herd(features: Tensor, count: int, check_stop: Callable[[], None] = never) -> Tensor:
    """-> indices [min(count, n)]: step k takes the sample that brings the mean of those taken nearest to the class's.

    Minimising |k mean - sum - x|^2 over x is maximising <k mean - sum, x> - |x|^2 / 2: one product a step.
    """
    mean, half_norms = features.mean(dim=0), features.square().sum(dim=1) / 2
    total = torch.zeros_like(mean)
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    picked = []
    for k in range(1, min(count, len(features)) + 1):
        check_stop()
        gain = (features @ (k * mean - total) - half_norms).masked_fill(taken, -torch.inf)
        best = gain.argmax()
        picked.append(best)
        taken[best] = True
        total = total + features[best]
    return torch.stack(picked)
