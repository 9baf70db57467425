"""A random forest over features as the network sees them: grown by scikit-learn, kept and asked as tensors."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipll.component import Context
from ipll.families.side_by_side import BLOCK, Members
from ipll.networks.network import MembersHead
from ipll.rng import numpy_generator

DEEPEST = 16  # levels of a tree
ENOUGH = 10_000  # samples that a tree is grown from
VALUES = 4_000_000  # numbers in the leaves of all trees, at most: 16 MB

Floats = npt.NDArray[np.float32]


class Tree(NamedTuple):
    """Nodes by number, the root first: those that ask, then leaves."""

    feature: npt.NDArray[np.int32]  # [asking]
    threshold: Floats  # [asking]: up to it to the first child
    child: npt.NDArray[np.int32]  # [asking, 2]
    values: Floats  # [leaves, capacity]: shares of classes
    depth: int


class Forest(nn.Module):
    """Trees (Breiman, 2001) that leave out samples as members do: those of group g learn from no sample that members of
    group g leave out, and from labels that these settle on. So what they say of the samples left out is evidence.

    The nodes of all trees lie in one row, first those that ask for a feature, then leaves: a walk through all trees at
    once is a few gathers for each level.
    """

    roots: Tensor  # [trees]
    feature: Tensor  # [asking]
    threshold: Tensor  # [asking]
    child: Tensor  # [asking, 2]
    values: Tensor  # [leaves, capacity]
    levels: Tensor  # [depth]: zeros, as many as the deepest tree has levels

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.ctx = ctx
        for name, (shape, dtype) in {
            "roots": ((0,), torch.int32), "feature": ((0,), torch.int32), "threshold": ((0,), torch.float32),
            "child": ((0, 2), torch.int32), "values": ((0, ctx.capacity), torch.float32), "levels": ((0,), torch.int32),
        }.items():  # fmt: skip
            self.register_buffer(name, torch.zeros(shape, dtype=dtype, device=ctx.device))

    def __len__(self) -> int:
        return len(self.roots)

    def clear(self) -> None:
        for name, buffer in self.named_buffers():
            setattr(self, name, buffer[:0].clone())

    def grow(self, members: Members, settled: list[Tensor], trees: int) -> None:
        """settled: for each kind of folds, labels [n, folds] by those members who leave out each fold; trees: of each
        fold, those of all kinds together. They ask for the first features, those of the network's linear path."""
        head = self.ctx.network.head
        assert isinstance(head, MembersHead)
        x = self.ctx.pool_features()[:, : head.channels].cpu().numpy()
        each = max(trees // members.kinds, 1)
        groups, grown = [divmod(group, members.folds) for group in range(members.groups)], list[Tree]()
        rows = [(members.dealt[:, kind] != fold).nonzero()[:, 0].cpu().numpy() for kind, fold in groups]
        labels = [settled[kind][:, fold].cpu().numpy() for kind, fold in groups]
        for number in range(each * members.groups):
            self.ctx.check_stop()
            rng, group = numpy_generator(self.ctx.seed, "forest", self.ctx.task, number), number % members.groups
            drawn = rng.choice(rows[group], min(len(rows[group]), ENOUGH)) if len(rows[group]) else rows[group]
            grown.append(grown_tree(x, labels[group], drawn, self.ctx.capacity, self.leaves(trees, members), rng))
        self.plant(grown)

    def leaves(self, trees: int, members: Members) -> int:
        """-> how many leaves a tree may have."""
        return VALUES // (max(trees // members.kinds, 1) * members.groups * self.ctx.capacity)

    def plant(self, trees: list[Tree]) -> None:
        """Puts the nodes of all trees into one row."""
        asking, leaves = [len(tree.feature) for tree in trees], [len(tree.values) for tree in trees]
        ask, leaf = np.cumsum([0, *asking]), np.cumsum([0, *leaves]) + sum(asking)
        child = [
            np.where(tree.child < n, tree.child + ask[t], tree.child - n + leaf[t])
            for t, (tree, n) in enumerate(zip(trees, asking, strict=True))
        ]
        roots = [ask[t] if n else leaf[t] for t, n in enumerate(asking)]
        depth = max(tree.depth for tree in trees)
        for name, value in {
            "roots": np.array(roots, np.int32), "feature": np.concatenate([tree.feature for tree in trees]),
            "threshold": np.concatenate([tree.threshold for tree in trees]),
            "child": np.concatenate(child).astype(np.int32), "values": np.concatenate([tree.values for tree in trees]),
            "levels": np.zeros(depth, np.int32),
        }.items():  # fmt: skip
            setattr(self, name, torch.from_numpy(value).to(self.ctx.device))

    def says(self, features: Tensor, trees: Tensor | None = None) -> Tensor:
        """features [n, dim] -> log-probabilities [n, capacity] by these trees, or all. One more tree is counted that
        knows nothing."""
        roots = (self.roots if trees is None else self.roots[trees]).long()
        born, asking = self.ctx.network.head.born, len(self.feature)
        leaves = torch.arange(asking, asking + len(self.values), device=features.device)  # whose children they are
        feature = torch.cat([self.feature.long(), torch.zeros_like(leaves)])
        threshold = torch.cat([self.threshold, torch.zeros_like(leaves, dtype=self.threshold.dtype)])
        child = torch.cat([self.child.long(), leaves[:, None].expand(-1, 2)]).flatten()
        node = roots.expand(features.shape[0], -1)  # `len` would be fixed in exports
        for _ in range(len(self.levels)):
            beyond = features.gather(1, feature.take(node)) > threshold.take(node)
            node = child.take(2 * node + beyond)
        total = F.embedding_bag(node - asking, self.values, mode="sum")
        return ((total + born / born.sum()) / (len(roots) + 1)).log()

    def held_out(self, rows: Tensor, members: Members, kind: int = 0) -> Tensor:
        """-> log-probabilities [n, capacity] of these rows of the pool by the trees that leave them out."""
        features, fold = self.ctx.pool_features(), members.dealt[rows, kind]
        said, first = features.new_empty(len(rows), self.ctx.capacity), kind % members.kinds * members.folds
        for k in range(members.folds):
            trees = torch.arange(first + k, len(self), members.groups, device=rows.device)
            for here in torch.split((fold == k).nonzero()[:, 0], BLOCK):
                self.ctx.check_stop()
                said[here] = self.says(features[rows[here]], trees)
        return said


def grown_tree(
    x: Floats, labels: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], capacity: int, leaves: int,
    rng: np.random.Generator,
) -> Tree:  # fmt: skip
    """-> a tree from rows of x [n, d], which may come twice, with no more than so many leaves. Without a row it knows
    nothing."""
    from sklearn.tree import DecisionTreeClassifier  # slow to import

    if not len(rows):
        nothing = np.zeros(0, np.int32)
        know = np.full((1, capacity), 1 / capacity, np.float32)
        return Tree(nothing, nothing.astype(np.float32), nothing.reshape(0, 2), know, 0)
    number = int(rng.integers(2**31))
    best_first = None if len(rows) <= leaves else leaves
    learnt = DecisionTreeClassifier(
        max_features="sqrt", max_depth=DEEPEST, max_leaf_nodes=best_first, random_state=number
    )
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of classes that nearly every row has its own
        learnt.fit(x[rows], labels[rows])
    tree = learnt.tree_
    leaf = tree.children_left < 0
    place = np.empty(len(leaf), np.int32)
    place[~leaf], place[leaf] = np.arange((~leaf).sum()), np.arange(leaf.sum()) + (~leaf).sum()
    shares = tree.value[leaf, 0]
    values = np.zeros((len(shares), capacity), np.float32)
    values[:, learnt.classes_] = shares / shares.sum(axis=1, keepdims=True)
    between = tree.threshold[~leaf]
    threshold = between.astype(np.float32)
    threshold = np.where(threshold > between, np.nextafter(threshold, np.float32(-np.inf)), threshold)
    child = np.stack([place[tree.children_left[~leaf]], place[tree.children_right[~leaf]]], axis=1)
    return Tree(tree.feature[~leaf].astype(np.int32), threshold, child, values, int(tree.max_depth))
