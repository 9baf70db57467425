"""A two-component Gaussian mixture on a line, fitted by EM where the data are.

scikit-learn's GaussianMixture would do the arithmetic, but it brings every value to the CPU, and its k-means sums in
an order that depends on the threads, so that two runs may differ in the last bit. This one starts from an exact
two-means split, follows the same updates and stopping rule (a test compares the two), and repeats to the bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def two_means(values: Tensor, iterations: int = 100) -> Tensor:
    """-> which values [n] belong to the upper of two clusters, by Lloyd's iterations from the extremes."""
    low, high = values.min(), values.max()
    upper = values > (low + high) / 2
    for _ in range(iterations):
        low = values[~upper].mean()
        high = values[upper].mean()
        moved = values > (low + high) / 2
        if torch.equal(moved, upper):
            break
        upper = moved
    return upper


def lower_component(values: Tensor, *, max_iter: int, tol: float, reg: float) -> Tensor:
    """-> p(g | e_i) [n], g the component with the smaller mean; `values` [n] must not all be equal."""
    e = values.double()[:, None]  # [n, 1]
    upper = two_means(values.double())
    responsibilities = torch.stack([~upper, upper], dim=1).double()
    mixture = _maximise(e, responsibilities, reg)
    bound = -math.inf
    for _ in range(max_iter):
        responsibilities, log_likelihood = _expect(e, mixture)
        mixture = _maximise(e, responsibilities, reg)
        previous, bound = bound, float(log_likelihood)
        if abs(bound - previous) < tol:
            break
    responsibilities, _ = _expect(e, mixture)
    return responsibilities[:, mixture.means.argmin()].to(values.dtype)


class _Mixture(NamedTuple):
    means: Tensor  # [2]
    variances: Tensor
    shares: Tensor


def _expect(e: Tensor, mixture: _Mixture) -> tuple[Tensor, Tensor]:
    """-> responsibilities [n, 2] and the mean log-likelihood."""
    means, variances, shares = mixture
    log_joint = shares.log() - 0.5 * (math.log(2 * math.pi) + variances.log() + (e - means) ** 2 / variances)
    log_total = torch.logsumexp(log_joint, dim=1, keepdim=True)
    return (log_joint - log_total).exp(), log_total.mean()


def _maximise(e: Tensor, responsibilities: Tensor, reg: float) -> _Mixture:
    weights = responsibilities.sum(dim=0) + 10 * torch.finfo(e.dtype).eps
    means = (responsibilities * e).sum(dim=0) / weights
    variances = (responsibilities * (e - means) ** 2).sum(dim=0) / weights + reg
    return _Mixture(means, variances, weights / weights.sum())
