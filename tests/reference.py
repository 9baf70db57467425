"""The paper's equations, one function each, written straight from the text: loops over samples and classes, float64.

Nothing here imports ipll, and nothing is fast. Classes are numbers in order of arrival: Y_{t-1} is 0, ..., old - 1 and
Y_t is 0, ..., seen - 1. Candidate sets are Python sets. Where the paper is silent, the docstring says what is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Numbers = Sequence[float] | Vector
Sets = Sequence[set[int]]
Prototypes = dict[int, Vector]


def softmax(scores: Numbers) -> list[float]:
    """f_j = exp(s_j) / sum_k exp(s_k), over the scores given and no others."""
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [power / sum(powers) for power in powers]


def argmax_within(scores: Numbers, classes: set[int]) -> int:
    """argmax_{j in S_i} f_j(x_i); the softmax keeps the order of its scores."""
    best = min(classes)
    for j in sorted(classes):
        if scores[j] > scores[best]:
            best = j
    return best


def distance(a: Vector, b: Vector, metric: str = "euclidean") -> float:
    """||a - b||_2; 'cosine' takes both vectors to length one first."""
    if metric == "cosine":
        a, b = a / np.sqrt(np.sum(a * a)), b / np.sqrt(np.sum(b * b))
    return float(np.sqrt(np.sum((a - b) ** 2)))


def cross_entropy(p: Vector, logits: Vector, seen: int) -> float:
    """Eq. 1, and L_cr of the appendix on the strong view's logits: - 1/N sum_i sum_{j in Y_t} p_ij log f_j(x_i)."""
    total = 0.0
    for i in range(len(p)):
        f = softmax(logits[i][:seen])
        for j in range(seen):
            total += p[i][j] * math.log(f[j])
    return -total / len(p)


def head_gradient(p: Vector, logits: Vector, features: Vector, seen: int) -> Vector:
    """The gradient of Eq. 1 for a linear head's weights: dL / dw_j = 1/N sum_i (f_j(x_i) - p_ij) phi(x_i), j in Y_t."""
    gradient = np.zeros((seen, features.shape[1]))
    for i in range(len(p)):
        f = softmax(logits[i][:seen])
        for j in range(seen):
            gradient[j] += (f[j] - p[i][j]) * features[i] / len(p)
    return gradient


def class_means(features: Vector, logits: Vector, sets: Sets) -> Prototypes:
    """mean of P_c = {phi(x_i) | c = argmax_{j in S_i} f_j(x_i)}, for the classes that have a member."""
    members: dict[int, list[Vector]] = {}
    for i in range(len(features)):
        members.setdefault(argmax_within(logits[i], sets[i]), []).append(features[i])
    return {c: np.sum(group, axis=0) / len(group) for c, group in members.items()}


def updated_prototypes(
    mu: Prototypes, features: Vector, logits: Vector, sets: Sets, p: Vector, seen: int, gamma: float
) -> Prototypes:
    """Eq. 2: mu_c <- gamma mu_c + (1 - gamma) mean(P_c); a class met for the first time takes the mean itself.

    Assumed: with P_c empty, an old class keeps its prototype, and a new one takes sum_i p_ic phi(x_i) / sum_i p_ic.
    """
    means = class_means(features, logits, sets)
    result: Prototypes = {}
    for c in range(seen):
        if c in means and c in mu:
            result[c] = gamma * mu[c] + (1 - gamma) * means[c]
        elif c in means:
            result[c] = means[c]
        elif c in mu:
            result[c] = mu[c]
        else:
            weight = sum(p[i][c] for i in range(len(features)))
            if weight > 0:
                result[c] = sum(p[i][c] * features[i] for i in range(len(features))) / weight
    return result


def distance_set(
    features: Vector, sets: Sets, mu: Mapping[int, Vector], old: int, metric: str
) -> dict[int, tuple[float, int]]:
    """Eq. 3: the set A as i -> (e_i, c*_i): the distance to the nearest prototype of S_i n Y_{t-1}, and whose it is.

    Assumed: c*_i is the class that reaches the minimum of Eq. 3, so it is a candidate.
    """
    result: dict[int, tuple[float, int]] = {}
    for i in range(len(features)):
        for j in sorted(sets[i]):
            if j < old and j in mu:
                e = distance(features[i], mu[j], metric)
                if i not in result or e < result[i][0]:
                    result[i] = (e, j)
    return result


def min_max(values: Sequence[float]) -> list[float]:
    """DivideMix's scaling of a statistic to [0, 1]."""
    return [(v - min(values)) / (max(values) - min(values)) for v in values]


def two_means(values: Sequence[float]) -> list[bool]:
    """Lloyd's two clusters on a line, from the extremes; -> who belongs to the upper one."""
    low, high = min(values), max(values)
    while True:
        upper = [v > (low + high) / 2 for v in values]
        above = [v for v, up in zip(values, upper, strict=True) if up]
        below = [v for v, up in zip(values, upper, strict=True) if not up]
        if (low, high) == (sum(below) / len(below), sum(above) / len(above)):
            return upper
        low, high = sum(below) / len(below), sum(above) / len(above)


def expected_old(sets: Sets, old: int, seen: int) -> float:
    """Ours: how many samples are old, by their sets. n_0 have no new candidate, so they are. False candidates join at a
    rate r = (mean |S_i| - 1) / (|Y_t| - 1), and an old sample has no new one with probability (1 - r)^(|Y_new|)."""
    certain = sum(all(j < old for j in s) for s in sets)
    r = (sum(len(s) for s in sets) / len(sets) - 1) / (seen - 1)
    return certain / (1 - r) ** (seen - old)


def reallocated(s: set[int], judged_old: bool, nearest: int | None, old: int, seen: int, empty_set: str) -> set[int]:
    """Eq. 4: S' = {c*} u (Y_new n S) for a sample of D_old, else Y_new n S. `nearest` is None outside A.

    Assumed: a sample without a new candidate is certainly old ('old'), or keeps S ('restore'); no S' is empty.
    """
    new = {j for j in s if old <= j < seen}
    if not new and empty_set == "old":
        judged_old = True
    result = new | {nearest} if judged_old and nearest is not None else new
    return result or s


def uniform(s: set[int], classes: int) -> list[float]:
    """Eq. 5: p_ij = 1[j in S'_i] / |S'_i|."""
    return [1 / len(s) if j in s else 0.0 for j in range(classes)]


def momentum_target(p: Numbers, scores: Numbers, s: set[int], beta: float) -> list[float]:
    """Eq. 6: p_i <- beta p_i + (1 - beta) z_i, z_i one-hot at the argmax over the original S_i."""
    predicted = argmax_within(scores, s)
    return [beta * p[j] + (1 - beta) * (1.0 if j == predicted else 0.0) for j in range(len(p))]


def soft_momentum_target(p: Numbers, scores: Numbers, s: set[int], beta: float, sharpness: float = 1.0) -> list[float]:
    """Eq. 6 with another z_i (ours): the softmax over the original S_i, which is PRODEN's target, to some power."""
    raised = [z**sharpness for z in proden_target(scores, s)]
    z = [value / sum(raised) for value in raised]
    return [beta * p[j] + (1 - beta) * z[j] for j in range(len(p))]


def beta_at(epoch: int, epochs: int, start: float, end: float) -> float:
    """beta falls in a line from `start` in a task's first epoch (0) to `end` in its last (epochs - 1)."""
    return start if epochs == 1 else start + (end - start) * epoch / (epochs - 1)


def proden_target(scores: Numbers, s: set[int]) -> list[float]:
    """PRODEN: w_ij = f_j(x_i) / sum_{k in S_i} f_k(x_i) for j in S_i, else 0."""
    f = softmax(scores)
    return [f[j] / sum(f[k] for k in s) if j in s else 0.0 for j in range(len(scores))]


def quotas(available: Sequence[int], size: int, seen: int) -> list[int]:
    """floor(m / |Y_t|) samples a class; what is left is dealt one by one, in rounds, to classes that have more."""
    share = [min(count, size // seen) for count in available]
    dealt = True
    while dealt:
        dealt = False
        for c in range(len(available)):
            if share[c] < available[c] and sum(share) < size:
                share[c] += 1
                dealt = True
    return share


def neighbours(features: Vector, i: int, k: int) -> list[int]:
    """N_K(x_i) = {x_j | rank(d_ij) <= K, j != i}, nearest first."""
    others = [j for j in range(len(features)) if j != i]
    return sorted(others, key=lambda j: distance(features[i], features[j]))[:k]


def diverse(features: Vector, most: int, k: int) -> list[int]:
    """Eqs. 8 and 9 within a class: a_i = sum of d_ij over N_K(x_i); again and again the smallest a_i that lies in the
    neighbourhood of no sample chosen before, until there are `most` or no sample is left."""
    region = [neighbours(features, i, k) for i in range(len(features))]
    a = [sum(distance(features[i], features[j]) for j in region[i]) for i in range(len(features))]
    chosen: list[int] = []
    while len(chosen) < most:
        covered = {j for i in chosen for j in region[i]}
        left = [i for i in range(len(features)) if i not in covered and i not in chosen]
        if not left:
            break
        chosen.append(min(left, key=lambda i: a[i]))
    return chosen


def representative(features: Vector, mu: Vector, count: int, taken: Sequence[int] = ()) -> list[int]:
    """Eq. 7 within a class: the `count` samples nearest to the prototype that are not taken yet."""
    left = [i for i in range(len(features)) if i not in taken]
    return sorted(left, key=lambda i: distance(features[i], mu))[:count]


def memory(features: Vector, predicted: Sequence[int], mu: Prototypes, *, size: int, seen: int, k: int, share: float) -> list[list[int]]:  # fmt: skip  # noqa: E501
    """M^t = M_r u M_k for each class: N_d = share * m / |Y_t| diverse samples at most, then representative ones.

    Assumed: representatives fill what the diverse samples leave of a class's quota.
    """
    groups = [[i for i in range(len(features)) if predicted[i] == c] for c in range(seen)]
    kept: list[list[int]] = []
    for c, quota in enumerate(quotas([len(group) for group in groups], size, seen)):
        if quota == 0:
            kept.append([])
            continue
        own = features[groups[c]]
        first = diverse(own, min(math.floor(share * size / seen), quota), k)
        rest = representative(own, mu[c], quota - len(first), first)
        kept.append([groups[c][i] for i in first + rest])
    return kept


def distillation(
    teacher: Vector, logits: Vector, old: int, seen: int, *, temperature: float = 1.0, literal: bool = False
) -> float:
    """Eq. 10: - 1/N sum_i sum_{j in Y_{t-1}} f^old_j(x_i) log f_j(x_i).

    As written (`literal`), f_j is the new network's softmax over Y_t. By default it is the softmax over Y_{t-1} only,
    as in the methods that the paper follows. f^old has no other classes than Y_{t-1}.
    """
    total = 0.0
    for i in range(len(logits)):
        f_old = softmax([score / temperature for score in teacher[i][:old]])
        f = softmax([score / temperature for score in logits[i][: seen if literal else old]])
        for j in range(old):
            total += f_old[j] * math.log(f[j])
    return -total / len(logits)


def classify(feature: Vector, mu: Prototypes, metric: str = "euclidean") -> int:
    """Eq. 12: argmin_{j in Y_t} ||phi(x) - mu_j||."""
    best = min(mu)
    for j in mu:
        if distance(feature, mu[j], metric) < distance(feature, mu[best], metric):
            best = j
    return best


def cosine_lr(epoch: int, epochs: int, lr: float) -> float:
    """Half a cosine wave, a step an epoch: lr in a task's first epoch, 0 once `epochs` are over."""
    return lr * (1 + math.cos(math.pi * epoch / epochs)) / 2


def sgd(
    weight: Vector, gradient: Vector, velocity: Vector | None, *, lr: float, momentum: float, decay: float
) -> tuple[Vector, Vector]:
    """v <- momentum v + (g + decay w), w <- w - lr v; without a velocity yet, v is g + decay w. -> w, v."""
    step = gradient + decay * weight
    velocity = step if velocity is None else momentum * velocity + step
    return weight - lr * velocity, velocity


def resized(image: Vector, side: int) -> Vector:
    """A square picture [size, size] at another size: every new pixel is a weighted mean of old ones.

    The weights fall in a line with the distance of the centres, to 0 at one old pixel, or at one new pixel where that
    is larger (the picture shrinks); what lies beyond the border has none.
    """
    size = len(image)
    step = size / side
    reach = max(step, 1.0)
    weights = np.zeros((side, size))
    for new in range(side):
        for old in range(size):
            weights[new][old] = max(0.0, 1 - abs((old + 0.5) - (new + 0.5) * step) / reach)
        weights[new] /= sum(weights[new])
    result = np.zeros((side, side))
    for y in range(side):
        for x in range(side):
            for row in range(size):
                for column in range(size):
                    result[y][x] += weights[y][row] * weights[x][column] * image[row][column]
    return result


def rectangle(kept: float, x: float, y: float, height: int, width: int) -> set[tuple[int, int]]:
    """CutMix: the pixels (row, column) whose centre lies in a rectangle about (x, y) with the image's proportions and
    1 - `kept` of its area; lengths are shares of the image's."""
    half = math.sqrt(1 - kept) / 2
    inside = set()
    for row in range(height):
        for column in range(width):
            if abs((row + 0.5) / height - y) < half and abs((column + 0.5) / width - x) < half:
                inside.add((row, column))
    return inside


def cutmix(logits: Vector, p: Vector, partner: Sequence[int], share: Numbers, seen_by: Vector) -> float:
    """1/N sum_i share_i H(p_i, f_i) + (1 - share_i) H(p_k, f_k), k the partner of i, H(p, f) = - sum_j p_j log f_j.

    f_i and f_k are softmaxes of the mixed view's logits as samples i and k see them: with their own row of `seen_by`
    added, which is -inf where a class is hidden from them.
    """
    total = 0.0
    for i in range(len(logits)):
        for k, weight in ((i, share[i]), (partner[i], 1 - share[i])):
            f = softmax(logits[i] + seen_by[k])
            total -= weight * sum(p[k][j] * math.log(f[j]) for j in range(len(f)) if p[k][j] > 0)
    return total / len(logits)


def followed(mu: Vector, views: Sequence[tuple[Vector, Sequence[int]]], momentum: float) -> Vector:
    """PiCO and PaPi: view after view, sample by sample, mu_c <- m mu_c + (1 - m) q; then every row that is not zero to
    length one."""
    mu = mu.copy()
    for embeddings, classes in views:
        for q, c in zip(embeddings, classes, strict=True):
            mu[c] = momentum * mu[c] + (1 - momentum) * q
    for row in mu:
        if row.any():
            row /= math.sqrt(sum(v * v for v in row))
    return mu
