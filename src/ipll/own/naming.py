"""How likely whole candidate sets are: the true label by what a network says, the others by which is named with which.

That labels lie within their sets says nothing of a class that is never named alone: where every sheep is 'sheep or
grass', all may be called grass. But then the looks of what is called grass tell whether sheep is named beside it, which
rates of naming cannot explain; where sheep are called sheep, they can.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 5  # of expectation and maximisation
BEFOREHAND = 10.0  # samples of each class by which its rates are drawn to those of all
LEAST = 1e-4  # of a rate


def naming_losses(scores: Tensor, sets: Tensor, fold: Tensor) -> Tensor:
    """-> -log P(S_i) [n] of sets [n, classes] by what a network says of samples it did not learn from, scores [n,
    classes]. Rates are those of samples in other folds [n].

    P(S) = sum over y in S of P(y) * product over c != y of (q_yc where c is in S, else 1 - q_yc); P(y) is
    softmax(scores), q_yc the rate at which c is named beside y.
    """
    said, named = scores.double().log_softmax(dim=1), sets.double()
    within = said.masked_fill(~sets, -torch.inf)
    losses = said.new_empty(len(said))
    for k in range(int(fold.max()) + 1):
        others, here = fold != k, fold == k
        posterior = within[others].softmax(dim=1)
        for _ in range(ROUNDS):
            rates = naming_rates(posterior, named[others])
            posterior = _joint(within[others], named[others], rates).softmax(dim=1)
        losses[here] = -_joint(within[here], named[here], rates).logsumexp(dim=1)
    return losses


def naming_rates(posterior: Tensor, named: Tensor) -> Tensor:
    """-> q [classes, classes]: how often each class (column) is named where another (row) is the true one, by the
    probability of each label [n, classes] and what is named [n, classes]."""
    mass = posterior.sum(dim=0)
    besides = (named.sum(dim=0) - mass) / (len(named) - mass).clamp_min(LEAST)  # of all samples of other classes
    rates = (posterior.T @ named + BEFOREHAND * besides) / (mass[:, None] + BEFOREHAND)
    return rates.clamp(LEAST, 1 - LEAST)


def _joint(within: Tensor, named: Tensor, rates: Tensor) -> Tensor:
    """-> log P(y, S) [n, classes]."""
    itself = torch.eye(len(rates), dtype=torch.bool, device=rates.device)
    yes, no = (part.log().masked_fill(itself, 0) for part in (rates, 1 - rates))
    return within + named @ (yes - no).T + no.sum(dim=1)


def told_by_looks(looks: Tensor, labels: Tensor, sets: Tensor) -> float:
    """-> of what labels [n] leave open about who is named besides, in sets of several candidates [n, classes], the
    share that is told by the most similar sample, by looks [n, dim], with the same label: 0 by chance, 1 where it has
    the very same set."""
    several = sets.sum(dim=1) > 1
    differ = random = 0.0
    for label in range(sets.shape[1]):
        here = (several & (labels == label)).nonzero()[:, 0]
        n, beside = len(here), sets[here].double()
        if n < 2:
            continue
        beside[:, label] = 0
        nearest = torch.cdist(looks[here], looks[here]).fill_diagonal_(torch.inf).argmin(dim=1)
        share = beside.mean(dim=0)
        differ += float((beside != beside[nearest]).sum())
        random += float((2 * share * (1 - share)).sum()) * n**2 / (n - 1)
    return 1 - differ / random if random else 0.0
