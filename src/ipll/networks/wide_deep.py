"""Networks for tables: a linear path beside one hidden layer, several such members side by side as one network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipll.networks.backbones import BACKBONES, Backbone

WIDE_DEEP = "wide-deep"  # the one backbone that can have several members, and a width
FARTHEST = 10.0  # standard deviations: an outlier in a column must not blow up a step
KNOTS = 101  # quantiles of a feature, from the least to the most
RAREST = 1e-3  # ranks beyond it are as extreme: three standard deviations


class WideDeep(Backbone):
    """phi(x) = [x, relu(W_1 x), ..., relu(W_M x)], after Wide & Deep (Cheng et al., 2016): a head over it has a linear
    path beside a hidden layer for each member, and tables with few rows are not memorised.

    The hidden units are divided by the root of M: a squared distance of features is then the mean over the members of
    theirs, and prototypes do not depend on how many there are.
    """

    takes = "features"
    knots: Tensor  # [channels, KNOTS], quantiles of each feature, where it is seen by its ranks
    normal: Tensor  # [channels, KNOTS], and what the network sees there

    def __init__(self, channels: int, members: int = 1, width: int = 256, inputs: str = "z-scores") -> None:
        super().__init__()
        self.dim, self.members = channels + members * width, members
        self.hidden = nn.Linear(channels, members * width)  # of all members, which see the same samples
        self.ranked = inputs == "quantiles"
        if self.ranked:
            self.register_buffer("knots", torch.linspace(-2, 2, KNOTS).repeat(channels, 1))
            self.register_buffer("normal", torch.linspace(-2, 2, KNOTS).repeat(channels, 1))

    @torch.no_grad()
    def take_quantiles(self, x: Tensor) -> None:
        """From samples [n, channels]. Values that several quantiles share stand for the mean of these."""
        levels = torch.linspace(0, 1, KNOTS, device=x.device)
        for feature, column in enumerate(x.T):
            knots, normal = torch.quantile(column, levels), torch.special.ndtri(levels.clamp(RAREST, 1 - RAREST))
            _, run = torch.unique_consecutive(knots, return_inverse=True)
            mean = torch.zeros_like(normal).index_add(0, run, normal) / run.bincount(minlength=KNOTS).clamp_min(1)
            self.knots[feature], self.normal[feature] = knots, mean[run]

    def forward(self, x: Tensor) -> Tensor:
        x = normal_by_rank(x, self.knots, self.normal) if self.ranked else near(x)
        scale, layer = self.members**-0.5, self.hidden  # on the weights: they are fewer than what comes out
        return torch.cat([x, F.linear(x, layer.weight * scale, layer.bias * scale).relu_()], dim=1)


def near(x: Tensor) -> Tensor:
    """-> features [n, channels] that are never far: what is beyond FARTHEST by the logarithm of how much."""
    inside = x.clamp(-FARTHEST, FARTHEST)
    return inside + (x - inside).sign() * (x - inside).abs().log1p()


def normal_by_rank(x: Tensor, knots: Tensor, normal: Tensor) -> Tensor:
    """-> features [n, channels], of each the normal quantile of its rank: `normal` [channels, k] at the `knots`, linear
    between two. Beyond the last, where classes that come later may be, it grows by the logarithm of how far that is, as
    a multiple of the last one's distance from the median."""
    columns, last = x.T.contiguous(), knots.shape[1] - 1
    above = torch.searchsorted(knots, columns).clamp(0, last)
    below = (above - 1).clamp_min(0)
    low, high = knots.gather(1, below), knots.gather(1, above)
    within = ((columns - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
    by_rank = torch.lerp(normal.gather(1, below), normal.gather(1, above), within)
    least, median, most = knots[:, :1], knots[:, last // 2, None], knots[:, -1:]
    beyond = columns - columns.clamp(least, most)
    unit = torch.where(beyond > 0, most - median, median - least)
    unit = torch.where(unit > 0, unit, torch.where(most > least, most - least, 1.0))
    return (by_rank + beyond.sign() * (beyond.abs() / unit).log1p()).T


@BACKBONES.register(WIDE_DEEP)
def wide_deep(channels: int, members: int = 1, width: int = 256, inputs: str = "z-scores") -> Backbone:
    return WideDeep(channels, members, width, inputs)
