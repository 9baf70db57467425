"""Members: networks side by side within one, each learning by itself; and what they say of samples they never saw."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.component import Batch, Component, Context, predict_within
from ipll.engine.state import part_of
from ipll.families.disambiguation import Disambiguation
from ipll.networks.network import MembersHead, ModelConfig, Output
from ipll.networks.wide_deep import WideDeep

BLOCK = 8192  # samples whose logits, of all members, are held at a time
GOLDEN = 0x9E3779B1  # 2^32 over the golden ratio
ENOUGH = 10_000  # samples that quantiles are taken of
OWN = "own targets"  # of each member, in a batch
FEWEST = 4  # members that have folds of both kinds


def beside(model: ModelConfig) -> tuple[Component, ...]:
    """-> the parts that a network brings with it, whatever the method."""
    quantiles = (Quantiles(None),) if model.inputs == "quantiles" else ()
    return (
        (*quantiles, Members(model.members, model.folds, model.leave_out, model.settle, model.deal))
        if model.members > 1
        else quantiles
    )


class Quantiles(Component):
    """Takes the quantiles of the first task's features, by which the network sees all that come."""

    def begin_task(self) -> None:
        ctx = self.ctx
        if ctx.task:
            return
        backbone, pool = ctx.network.backbone, ctx.pool
        assert isinstance(backbone, WideDeep)
        order = torch.randperm(pool.incoming, generator=ctx.generator("quantiles"), device=ctx.device)
        backbone.take_quantiles(ctx.views.plain(pool.samples[order[:ENOUGH]].to(ctx.device)))


class Members(Component):
    """Joins any method where `model.members` are several: labels are settled by their mean prediction, and each learns
    with a loss of its own, so that they differ as much as their random weights make them.

    Cross-fitting: with `model.folds` the samples are dealt into folds, by their ids alone, and member m does not learn
    from fold m, nor targets that others decided who did. What it says of them is evidence, where targets are decided by
    predictions alone: a momentum of theirs, or votes, bring others' in again. With `model.leave_out` 'sets', every
    other round of members has folds of its own, in which samples with the same candidates lie together.

    With `model.settle` 'held-out', labels are at last what members say of samples that they did not learn from. Where
    features are many times the samples, a network knows any label by heart that it was told, right or wrong.
    """

    passing = ("dealt",)
    dealt: Tensor  # [n, kinds of folds] int16, the folds of each of the pool's samples; -1: in none

    def __init__(
        self, members: int, folds: int, leave_out: str = "samples", settle: str = "all", deal: str = "ratio"
    ) -> None:
        super().__init__(None)
        self.members, self.settle, self.deal = members, settle, deal
        self.folds, self.kinds = folds, 1
        if leave_out == "sets" and folds and members >= FEWEST:
            self.folds, self.kinds = min(folds, members // 2), 2

    def build(self, ctx: Context) -> None:
        super().build(ctx)
        self.register_buffer("dealt", torch.zeros(0, self.kinds, dtype=torch.int16, device=ctx.device))

    def begin_task(self) -> None:
        pool = self.ctx.pool
        kinds = [pool.ids] if self.kinds == 1 else [pool.ids, set_keys(pool.ids, pool.candidates)]
        self.dealt = torch.stack([self.fold(keys) for keys in kinds], dim=1)

    def fold(self, keys: Tensor) -> Tensor:
        """-> the fold of each sample [n] by a number of its own. Neighbours are dealt to different folds. -1: in none.

        Multiples of the golden ratio come around, too: nearly, after 34, 55, 89 or 144. A class that every 34th row is
        of would lie in one fold, and nobody who leaves that out would know it. Blocks begin where chance says.
        """
        if not self.folds:
            return torch.full_like(keys, -1, dtype=torch.int16)
        if self.deal == "ratio":
            return _part_of(keys * GOLDEN, self.folds).to(torch.int16)
        return ((keys + _part_of(_mixed(keys // self.folds), self.folds)) % self.folds).to(torch.int16)

    @property
    def groups(self) -> int:
        """-> how many there are of members that leave out the same: member m is of group m % groups."""
        return max(self.folds, 1) * self.kinds

    def unseen(self, dealt: Tensor) -> Tensor:
        """-> which members do not learn from samples of these folds [n, kinds] -> [n, members] bool."""
        group = torch.arange(self.members, device=dealt.device) % self.groups
        folds = max(self.folds, 1)
        return dealt[:, group // folds] == group % folds

    def who_leave_out(self, kind: int, fold: int) -> Tensor:
        """-> the members that do not learn from a fold of a kind."""
        first = kind % self.kinds * self.folds + fold
        return torch.arange(first, self.members, self.groups, device=self.dealt.device)

    def held_out(self, features: Tensor, rows: Tensor) -> Tensor:
        """-> log-probabilities [n, capacity] by the members that do not learn from these rows of the pool; there are
        folds."""
        head = self.ctx.phase.network.head
        assert isinstance(head, MembersHead)
        unseen = self.unseen(self.dealt[rows])[:, :, None]
        each = head.each(features).float().log_softmax(dim=2)
        return (each * unseen).sum(dim=1) / unseen.sum(dim=1)

    def reshape(self, out: dict[str, Output], targets: Tensor, batch: Batch) -> tuple[dict[str, Output], Tensor]:
        """Losses see each member's logits as a row of its own, [n * members, capacity], with the sample's target; of a
        member that does not learn from it, with an empty one. Summed over members, so that none learns slower. What
        each learns is decided in the first pass over a batch."""
        head = self.ctx.phase.network.head
        assert isinstance(head, MembersHead)
        each = {name: head.each(view.features) for name, view in out.items()}
        shaped = {name: view._replace(shaped=each[name].flatten(0, 1)) for name, view in out.items()}
        learns, deciding = ~self.unseen(self.dealt[batch.rows]), part_of(self.ctx.phase.parts, Disambiguation)
        assert deciding is not None
        own = targets[:, None]
        if self.folds and not deciding.shares:
            if OWN not in batch.extra:
                batch.extra[OWN] = self.own_targets(deciding, each["weak"], out, batch)
            own = batch.extra[OWN]
        return shaped, (own * (learns * self.members)[:, :, None]).flatten(0, 1)

    @torch.no_grad()
    def own_targets(self, deciding: Disambiguation, each: Tensor, out: dict[str, Output], batch: Batch) -> Tensor:
        """-> what each member learns [n, members, capacity]: targets by those alone that leave out the same fold. What
        others say of a sample tells what they were told of the samples that these may not know."""
        said, targets = each.float().log_softmax(dim=2), []
        for k in range(self.groups):
            logits = said[:, k :: self.groups].mean(dim=1)
            decided = deciding.targets(batch.p, out | {"weak": out["weak"]._replace(logits=logits)}, batch)
            assert decided is not None
            targets.append(decided[0])
        of_each = [k % self.groups for k in range(self.members)]
        return torch.stack([targets[k] for k in of_each], dim=1)

    def end_task(self) -> None:
        """Before all other parts, which go by the targets."""
        deciding, pool = part_of(self.ctx.parts, Disambiguation), self.ctx.pool
        assert deciding is not None
        if self.settle == "all" or not self.folds or deciding.shares:
            return
        features = self.ctx.pool_features()
        for rows in torch.split(torch.arange(len(features), device=features.device), BLOCK):
            said = self.held_out(features[rows], rows)
            pool.p[rows] = said.masked_fill(~pool.candidates[rows], -torch.inf).softmax(dim=1)

    def weights(self) -> dict[str, float]:
        """Distillation asks all members at once, for their mean: each would get its share of the gradient only."""
        return dict.fromkeys(("kd", "kd_auxiliary"), float(self.members))


def set_keys(ids: Tensor, sets: Tensor) -> Tensor:
    """-> a number for each sample [n], the same for all with the same candidates [n, capacity] where they are several;
    of one alone by its id. Columns that are yet to come change nothing."""
    marks = _mixed(torch.arange(1, sets.shape[1] + 1, device=ids.device))
    keys = torch.cat([torch.where(block, marks, 0).sum(dim=1) for block in torch.split(sets, BLOCK)])
    return torch.where(sets.sum(dim=1) > 1, keys, ids)


def _mixed(numbers: Tensor) -> Tensor:
    """-> a number below 2^32 for each, as if by chance."""
    mixed = (numbers * GOLDEN) % 2**32
    return ((mixed ^ (mixed >> 15)) * GOLDEN) % 2**32


def _part_of(numbers: Tensor, parts: int) -> Tensor:
    """-> in which of so many equal parts of 2^32 each number lies, below which it is taken."""
    return (numbers % 2**32 * parts) >> 32


class Evidence(NamedTuple):
    """What samples [n] look like to members that did not learn from them."""

    linear: Tensor  # [n, capacity]: log-probabilities by the heads
    nearness: Tensor  # [n, capacity]: minus the squared distance to the mean of each class's other samples
    forest: Tensor | None = None  # [n, capacity]: log-probabilities by trees, where there are any

    def of(self, rows: Tensor | slice) -> Evidence:
        """-> of these samples."""
        return Evidence(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


@torch.no_grad()
def evidence(ctx: Context, members: Members, kind: int = 0) -> Evidence:
    """-> of every sample of the pool, by its features now and the labels that members settle on which leave it out, by
    their folds of a kind (-1: the last there is)."""
    features, fold = ctx.pool_features(), members.dealt[:, kind]
    head, nearness = ctx.network.head, features.new_empty(len(features), ctx.capacity)
    assert isinstance(head, MembersHead)
    linear, settled = held_out_labels(ctx, members, kind)
    for k in range(members.folds):
        own = members.who_leave_out(kind, k)
        units = (own[:, None] * head.width + torch.arange(head.width, device=fold.device)).flatten() + head.channels
        columns = torch.cat([torch.arange(head.channels, device=fold.device), units])
        scale = features.new_ones(len(columns))
        scale[head.channels :] = (members.members / len(own)) ** 0.5
        sums, counts = _class_sums(features, columns, settled[:, k], ctx.capacity, (fold != k).nonzero()[:, 0])
        means = sums / counts.clamp_min(1)[:, None] * scale
        for block in torch.split((fold == k).nonzero()[:, 0], BLOCK):
            ctx.check_stop()
            near = -torch.cdist(features[block][:, columns] * scale, means).square()
            farthest = near.masked_fill(counts == 0, 0).amin(dim=1, keepdim=True)
            nearness[block] = torch.where(counts > 0, near, farthest)
    return Evidence(ctx.correct(linear), nearness)


@torch.no_grad()
def held_out_labels(ctx: Context, members: Members, kind: int = 0) -> tuple[Tensor, Tensor]:
    """-> log-probabilities of every sample of the pool by the members who leave it out [n, capacity], by their folds of
    a kind; and the labels of all that those settle on who leave out each fold [n, folds]."""
    features, fold, pool = ctx.pool_features(), members.dealt[:, kind], ctx.pool
    head, linear = ctx.network.head, features.new_empty(len(features), ctx.capacity)
    assert isinstance(head, MembersHead)
    settled = pool.ids.new_empty(len(features), members.folds)
    for block in torch.split(torch.arange(len(features), device=features.device), BLOCK):
        ctx.check_stop()
        each = head.each(features[block]).float().log_softmax(dim=2)
        for k in range(members.folds):
            said, here = each[:, members.who_leave_out(kind, k)].mean(dim=1), fold[block] == k
            linear[block[here]] = said[here]
            settled[block, k] = predict_within(said if pool.votes is None else pool.p[block], pool.candidates[block])
    return linear, settled


def _class_sums(
    features: Tensor, columns: Tensor, labels: Tensor, capacity: int, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """-> the sum of these columns of features over each class [capacity, columns] of these rows, and its samples' count
    [capacity]."""
    sums = features.new_zeros(capacity, len(columns))
    for block in torch.split(rows, BLOCK):
        sums += F.one_hot(labels[block], capacity).to(features.dtype).T @ features[block][:, columns]
    return sums, labels[rows].bincount(minlength=capacity)
