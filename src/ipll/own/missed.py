"""Do candidate sets miss the true label? Told by what networks say of samples that they did not learn from.

Networks that are unsure spread what they say, and a temperature takes that into account. Where sets miss the true label
now and then, networks are sure of a class that is not in the set: no temperature makes that likely, a share of misses
does. Where each sample has one candidate, that is a share of wrong labels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ipll.families.classifier.stacked import set_losses
from ipll.families.disambiguation.robust import miss_shares, set_prior

# That are tried. The second is taken where nothing tells: people err, and what surprises networks most comes first.
RATES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3)
COLDER = tuple(2 ** (-k / 4) for k in range(13))  # times the temperature without misses: what they explain, it need not
CLEAR = 3.0  # standard errors by which sets have to be likelier with misses than without, for people to be told
TINY = 1e-30  # probability


class Missed(NamedTuple):
    """How often the true label seems to be missing, and how what networks say is to be taken then."""

    rate: float  # of all samples
    shares: Tensor  # [capacity + 1], of the sets of each size
    temperature: float
    clear: bool

    def prior(self, sets: Tensor, seen: int, certain: Tensor) -> Tensor:
        """-> how probable each class is by these sets alone [n, capacity]."""
        return set_prior(sets, self.shares, seen, certain)


def missed(said: Tensor, cold: float, sets: Tensor, seen: int, certain: Tensor) -> Missed:
    """-> by scores [n, capacity] of samples with these sets [n, capacity], some of which are certain [n], and which are
    likeliest at the temperature `cold` if none misses.

    A set of k out of C classes that has missed with the probability m_k has, but for a factor that is the same at all
    rates, the probability (1 - m_k) P(S) + m_k (1 - P(S)) k / (C - k), where P(S) is what softmax(said / T) gives it.
    Where a guess without a look at the samples explains sets as well, nothing is known.
    """
    size = sets.sum(dim=1)
    open_ = ~certain & (size < seen)
    by_rate = [miss_shares(sets[~certain], rate) for rate in RATES]
    said, sets, size = said[open_], sets[open_].to(said.dtype), size[open_]
    few = Missed(RATES[1], by_rate[1], cold, clear=False)
    if len(said) < 2:
        return few

    def tried(scores: Tensor) -> Tensor:
        """-> log-likelihoods [rates, n]."""
        inside = (-set_losses(scores, sets)).exp()
        outside = (1 - inside).clamp_min(0) * size / (seen - size)
        shares = torch.stack([shares[size] for shares in by_rate]).to(scores.dtype)
        return (inside + shares * (outside - inside)).clamp_min(TINY).log()

    by_cold = torch.stack([tried(said / (cold * factor)) for factor in COLDER])  # [temperatures, rates, n]
    means = by_cold.mean(dim=2)
    at, rate = divmod(int(means.argmax()), len(RATES))
    if not rate:
        return few
    guess = (said / cold).softmax(dim=1).mean(dim=0).log().expand_as(said)
    without, blind = by_cold[means[:, 0].argmax(), 0], max(tried(guess), key=lambda one: float(one.mean()))
    gain = min(_errors(by_cold[at, rate] - other) for other in (without, blind))
    return Missed(RATES[rate], by_rate[rate], cold * COLDER[at], clear=gain >= CLEAR) if gain > 0 else few


def _errors(gain: Tensor) -> float:
    """-> the mean of a gain [n], in standard errors."""
    return float(gain.mean() / (gain.std() / len(gain) ** 0.5).clamp_min(TINY))
