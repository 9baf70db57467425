"""BiC: bias correction on held-out samples, after distillation (Wu et al., CVPR 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import FAMILIES, Context, predict_within
from ipll.families.retention.wa import WeightedDistillation, WeightedSettings
from ipll.settings import setting


@dataclass(frozen=True)
class BicSettings(WeightedSettings):
    hold_out: float = setting(
        0.1, "share of the samples set apart before training, for the correction", "official code", above=0, below=1
    )
    penalty: float = setting(0.1, "weight of beta^2 / 2 in the correction's fit", "official code", least=0)


@FAMILIES["retention"].register("bic")
class Bic(WeightedDistillation):
    """One live pair (alpha, beta) corrects the logits of the classes born last, at test and in the teacher.

    Labels of held-out samples are not known, so after training each is given argmax over S_i of f, and a balanced
    part of them, by that label, is fitted. The fit has two parameters: the logits are computed once and the optimum
    is found in milliseconds, where the official code trains for 200 epochs.
    """

    Settings = BicSettings
    alpha: Tensor  # 0-d
    beta: Tensor  # 0-d
    corrected: Tensor  # [capacity] bool, the classes born last

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("alpha", torch.ones((), device=ctx.device))
        self.register_buffer("beta", torch.zeros((), device=ctx.device))
        self.register_buffer("corrected", torch.zeros(ctx.capacity, dtype=torch.bool, device=ctx.device))

    def hold_out(self) -> Tensor | None:
        """A random share of the task's own samples, and the same of the memory's; none in the first task."""
        pool = self.ctx.pool
        if not self.ctx.old:
            return None
        rank = torch.rand(len(pool), generator=self.ctx.generator("hold-out", self.ctx.task), device=self.ctx.device)
        held = torch.zeros(len(pool), dtype=torch.bool, device=self.ctx.device)
        for part in (slice(0, pool.incoming), slice(pool.incoming, len(pool))):
            count = int(self.settings.hold_out * len(rank[part]))
            held[part] = rank[part].argsort().argsort() < count
        return held

    def correct(self, logits: Tensor) -> Tensor:
        return torch.where(self.corrected, self.alpha * logits + self.beta, logits)

    def end_task(self) -> None:
        ctx, pool = self.ctx, self.ctx.pool
        self.alpha.fill_(1.0)
        self.beta.zero_()
        self.corrected.copy_(ctx.new_mask)
        if not ctx.old:
            return
        rows = pool.held_out.nonzero()[:, 0]
        if not len(rows):  # a task too small for a hold-out
            return
        _, logits = ctx.embed(pool.samples, rows)
        labels = predict_within(logits, pool.candidates[rows])
        pool.p[rows] = F.one_hot(labels, ctx.capacity).to(pool.p.dtype)
        cap = max(1, int(self.settings.hold_out * ctx.memory.settings.size / ctx.seen))
        chosen = balanced(labels, cap)
        alpha, beta = fit_correction(logits[chosen], labels[chosen], ctx.new_mask, self.settings.penalty)
        self.alpha.fill_(alpha)
        self.beta.fill_(beta)


def balanced(labels: Tensor, cap: int) -> Tensor:
    """-> indices of at most `cap` samples of each label, the first ones.

    Rows of the pool are in order of the data set's ids, memory last: an arbitrary but fixed sample, not a random one.
    """
    members = F.one_hot(labels)
    rank = (members.cumsum(dim=0) * members).sum(dim=1)
    return (rank <= cap).nonzero()[:, 0]


def fit_correction(logits: Tensor, labels: Tensor, new: Tensor, penalty: float) -> tuple[float, float]:
    """-> (alpha, beta) that minimise the cross-entropy of corrected logits plus penalty * beta^2 / 2.

    Kept within sensible bounds: where held-out samples of one side are missing, the optimum runs away.
    """
    logits = logits.double()
    with torch.enable_grad():
        pair = torch.tensor([1.0, 0.0], dtype=torch.float64, device=logits.device, requires_grad=True)
        optimiser = torch.optim.LBFGS([pair], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            corrected = torch.where(new, pair[0] * logits + pair[1], logits)
            loss = F.cross_entropy(corrected, labels) + penalty * pair[1] ** 2 / 2
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]
    alpha, beta = pair.detach().tolist()
    return min(max(alpha, 0.1), 3.0), min(max(beta, -10.0), 10.0)
