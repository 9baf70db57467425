"""What PiCO and PaPi share: class prototypes on the unit sphere that follow embeddings sample by sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def follow(prototypes: Tensor, embeddings: Tensor, classes: Tensor, momentum: Tensor | float) -> Tensor:
    """-> prototypes [capacity, width] after mu_c <- m mu_c + (1 - m) q_i for each sample in turn, then normalised.

    In closed form: with n_c samples of class c, the r-th of them weighs (1 - m) m^(n_c - r). Rows of zeros stay zero.
    """
    members = F.one_hot(classes, len(prototypes))  # [n, capacity]
    rank = members.cumsum(dim=0).to(embeddings.dtype)
    count = rank[-1]
    m = momentum if isinstance(momentum, Tensor) else torch.full_like(count[0], momentum)
    weights = members * (1 - m) * m ** (count - rank)
    return F.normalize((m**count)[:, None] * prototypes + weights.T @ embeddings, dim=1)


def ramp(epoch: int, epochs: int, first: float, start: float, end: float) -> float:
    """PiCO's and PaPi's schedule of a momentum: `first` in epoch 0, then from `start` towards `end`, linearly.

    Their code sets the value for the next epoch from the number of the one just finished, so epoch 1 has `start`.
    """
    return first if epoch == 0 else start + (epoch - 1) / epochs * (end - start)
