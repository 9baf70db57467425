"""Plain baselines for partial-label tables, each in the simplest way: what anybody would write in an afternoon.

A learner is a function of z-scores [n, d] and candidate sets [n, classes] -> a function from z-scores [m, d] to
probabilities [m, classes], and the labels that the training samples settled on [n].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import NearestNeighbors
from torch import nn

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Predict = Callable[[Floats], Floats]
Learn = Callable[[Floats, Bools, int], tuple[Predict, npt.NDArray[np.int64]]]


def proden(hidden: int, lr: float, epochs: int = 200, batch: int = 128) -> Learn:
    """PRODEN (Lv et al., 2020): targets are the prediction of the last pass within the set."""

    def learn(x: Floats, sets: Bools, seed: int) -> tuple[Predict, npt.NDArray[np.int64]]:
        torch.manual_seed(seed)
        n, classes = sets.shape
        layers = [nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, classes)] if hidden else None
        network = nn.Sequential(*layers) if layers else nn.Linear(x.shape[1], classes)
        optimiser = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=1e-4)
        samples, allowed = torch.from_numpy(x), torch.from_numpy(sets)
        targets = allowed.float() / allowed.sum(1, keepdim=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
        for _ in range(epochs):
            for rows in torch.randperm(n).split(batch):
                logits = network(samples[rows])
                loss = -(targets[rows] * logits.log_softmax(1)).sum(1).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                targets[rows] = logits.detach().masked_fill(~allowed[rows], -torch.inf).softmax(1)
            schedule.step()

        @torch.no_grad()
        def predict(other: Floats) -> Floats:
            return np.asarray(network(torch.from_numpy(other)).softmax(1).numpy())

        return predict, targets.argmax(1).numpy()

    return learn


def neighbours(x: Floats, sets: Bools, seed: int, k: int = 10) -> tuple[Predict, npt.NDArray[np.int64]]:
    """PL-kNN (Huellermeier and Beringer, 2006): the k nearest vote for all their candidates, the nearer the more."""
    index = NearestNeighbors(n_neighbors=k + 1).fit(x)

    def votes(near: npt.NDArray[np.int64], distance: npt.NDArray[np.float64]) -> Floats:
        weights = 1 - distance / np.maximum(distance.sum(1, keepdims=True), 1e-9)
        counts = (weights[:, :, None] * sets[near]).sum(1) + 1e-9
        return np.asarray(counts / counts.sum(1, keepdims=True), np.float32)

    def predict(other: Floats) -> Floats:
        distance, near = index.kneighbors(other, k)
        return votes(near, distance)

    distance, near = index.kneighbors(x)
    own = votes(near[:, 1:], distance[:, 1:])
    return predict, np.where(sets, own, -1).argmax(1)


def averaging(x: Floats, sets: Bools, seed: int) -> tuple[Predict, npt.NDArray[np.int64]]:
    """All candidates count alike, for good: logistic regression on uniform targets."""
    torch.manual_seed(seed)
    network = nn.Linear(x.shape[1], sets.shape[1])
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=1e-4)
    samples = torch.from_numpy(x)
    targets = torch.from_numpy(sets / sets.sum(1, keepdims=True)).float()
    for _ in range(200):
        for rows in torch.randperm(len(x)).split(128):
            optimiser.zero_grad()
            (-(targets[rows] * network(samples[rows]).log_softmax(1)).sum(1).mean()).backward()
            optimiser.step()

    @torch.no_grad()
    def predict(other: Floats) -> Floats:
        return np.asarray(network(torch.from_numpy(other)).softmax(1).numpy())

    return predict, np.where(sets, predict(x), -1).argmax(1)


def forest(x: Floats, sets: Bools, seed: int, rounds: int = 5, folds: int = 5) -> tuple[Predict, npt.NDArray[np.int64]]:
    """A random forest learns each sample once for every candidate, weighted by its target; targets are what forests of
    other folds say within the set, over and over."""
    n, classes = sets.shape
    targets = sets / sets.sum(1, keepdims=True)
    fold = np.random.default_rng(seed).integers(0, folds, n)

    def learn(rows: npt.NDArray[np.int64]) -> Predict:
        sample, label = np.nonzero(targets[rows] > 1e-3)
        trees = RandomForestClassifier(100, random_state=seed)
        trees.fit(x[rows][sample], label, sample_weight=targets[rows][sample, label])

        def predict(other: Floats) -> Floats:
            said = np.zeros((len(other), classes), np.float32)
            said[:, trees.classes_] = trees.predict_proba(other)
            return said

        return predict

    for _ in range(rounds):
        said = np.zeros((n, classes))
        for k in range(folds):
            said[fold == k] = learn(np.flatnonzero(fold != k))(x[fold == k])
        targets = (said + 1e-3) * sets
        targets /= targets.sum(1, keepdims=True)
    return learn(np.arange(n)), targets.argmax(1)


BASELINES: dict[str, Learn] = {
    "PRODEN, linear": proden(0, 1e-2),
    "PRODEN, one hidden layer": proden(256, 1e-3),
    "PL-kNN": neighbours,
    "averaging": averaging,
}
