"""Eq. 3: the distance set A, the mixture on it, and who is judged old."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

import reference
from ipll.component import Context
from ipll.families.separation import SeparationSettings
from ipll.families.separation.mixture import lower_component, two_means
from ipll.families.separation.prototype_distance import PrototypeDistance
from live import Live, array, as_sets, bare_context, known_prototypes, random_sets

CLASSES, OLD, SEEN, DIM, N = 10, 4, 7, 5, 120
METRICS = ["euclidean", "cosine"]


def separation(unknown: tuple[int, ...] = (), **settings: Any) -> tuple[PrototypeDistance, Context]:
    """-> the part, in a task where OLD of SEEN classes are old and have prototypes, except the `unknown` ones."""
    ctx = bare_context(classes=CLASSES, dim=DIM, old=OLD, seen=SEEN)
    rng = np.random.default_rng(7)
    ctx.prototypes.mu[:SEEN] = torch.from_numpy(rng.normal(scale=2, size=(SEEN, DIM)))
    ctx.prototypes.known[:SEEN] = True  # those of new classes must not matter
    ctx.prototypes.known[list(unknown)] = False
    part = PrototypeDistance(SeparationSettings(**settings))
    part.build(ctx)
    return part, ctx


def samples(seed: int, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """-> features [n, DIM], logits and candidate sets [n, CLASSES]."""
    rng = np.random.default_rng(seed)
    sets = torch.zeros(n, CLASSES, dtype=torch.bool)
    sets[:, :SEEN] = random_sets(rng, n, SEEN, q=0.2)
    return torch.from_numpy(rng.normal(scale=2, size=(n, DIM))).float(), torch.zeros(n, CLASSES), sets


def naive_set(ctx: Context, features: Tensor, sets: Tensor, metric: str) -> dict[int, tuple[float, int]]:
    return reference.distance_set(array(features), as_sets(sets), known_prototypes(ctx.prototypes), OLD, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("unknown", [(), (2,)])
def test_eq3_distances(metric: str, unknown: tuple[int, ...]) -> None:
    part, ctx = separation(unknown, metric=metric)
    features, logits, sets = samples(0)
    expected = naive_set(ctx, features, sets, metric)
    e = part.statistic(features, logits, sets & ctx.old_mask)
    judgement = part.judge(features, logits, sets)
    assert 0 < len(expected) < N
    for i in range(N):
        if i in expected:
            assert float(e[i]) == pytest.approx(expected[i][0], rel=1e-4)
            assert int(judgement.nearest[i]) == expected[i][1]
        else:
            assert float(judgement.probability[i]) == 0
            assert not judgement.old[i]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_the_mixture_is_fitted_on_a_alone_scaled_to_0_1(metric: str, alpha: float) -> None:
    part, ctx = separation(metric=metric, alpha=alpha, max_iter=30, tol=1e-4, reg=1e-4)
    features, logits, sets = samples(1, n=300)
    expected = naive_set(ctx, features, sets, metric)
    scaled = torch.tensor(reference.min_max([e for e, _ in expected.values()]), dtype=torch.float64)
    w = dict(zip(expected, lower_component(scaled, max_iter=30, tol=1e-4, reg=1e-4).tolist(), strict=True))
    judgement = part.judge(features, logits, sets)
    for i in range(len(features)):
        assert float(judgement.probability[i]) == pytest.approx(w.get(i, 0.0), abs=2e-4)
    close = {i for i in w if abs(w[i] - alpha) < 1e-3}
    assert set(judgement.old.nonzero()[:, 0].tolist()) - close == {i for i in w if w[i] > alpha} - close
    assert 0 < int(judgement.old.sum()) < len(w)


def test_old_means_strictly_above_alpha() -> None:
    part, _ = separation()
    features, logits, sets = samples(2)
    probability = part.judge(features, logits, sets).probability
    middle = float(probability[(probability > 0.3) & (probability < 0.99)].median())
    judged = separation(alpha=middle)[0].judge(features, logits, sets).old
    assert torch.equal(judged, probability > middle)
    assert not bool(judged[probability == middle].any())
    assert not bool(separation(alpha=1.0)[0].judge(features, logits, sets).old.any())


def near_and_far(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Samples with old candidate 0: the first half near its prototype, the others far."""
    _, ctx = separation()
    rng = np.random.default_rng(3)
    features = ctx.prototypes.mu[0] + torch.from_numpy(rng.normal(scale=0.05, size=(n, DIM))).float()
    features[n // 2 :] += 6 * torch.nn.functional.normalize(
        torch.from_numpy(rng.normal(size=(n - n // 2, DIM))).float()
    )
    sets = torch.zeros(n, CLASSES, dtype=torch.bool)
    sets[:, [0, SEEN - 1]] = True
    return features, torch.zeros(n, CLASSES), sets


def test_the_component_with_the_smaller_mean_is_the_old_one() -> None:
    part, _ = separation(metric="euclidean")
    assert part.judge(*near_and_far(40)).old.tolist() == [True] * 20 + [False] * 20


@pytest.mark.parametrize(("n", "all_old"), [(0, True), (1, True), (9, True), (10, True), (20, False)])
def test_too_few_samples_for_a_mixture_are_all_judged_old(n: int, all_old: bool) -> None:
    """Those outside A do not count, and stay new."""
    part, _ = separation(metric="euclidean")
    features, logits, sets = near_and_far(n + 30)
    middle = len(sets) // 2
    chosen = torch.zeros(len(sets), dtype=torch.bool)
    chosen[middle - n // 2 : middle + n - n // 2] = True  # some near, some far
    sets[~chosen, 0] = False
    judgement = part.judge(features, logits, sets)
    assert bool(judgement.old[chosen].all()) is all_old
    assert not bool(judgement.old[~chosen].any())


def test_samples_at_one_and_the_same_distance_are_all_judged_old() -> None:
    part, ctx = separation(metric="euclidean")
    features = ctx.prototypes.mu[0].repeat(25, 1)
    sets = torch.zeros(25, CLASSES, dtype=torch.bool)
    sets[:, [0, SEEN - 1]] = True
    judgement = part.judge(features, torch.zeros(25, CLASSES), sets)
    assert bool(judgement.old.all())
    assert bool((judgement.nearest == 0).all())


def test_separation_sees_plain_views_through_the_network_that_the_last_task_left(live: Live) -> None:
    before, learner = live.learner(learnt=1, separation__metric="euclidean"), live.begun(separation__metric="euclidean")
    ctx, pool = learner.ctx, learner.ctx.pool
    with torch.no_grad():
        features = before.network.eval()(ctx.views.plain(pool.samples[: pool.incoming])).features
    own = pool.candidates[: pool.incoming]
    mu = known_prototypes(before.ctx.prototypes)
    expected = reference.distance_set(array(features), as_sets(own), mu, ctx.old, "euclidean")
    scaled = torch.tensor(reference.min_max([e for e, _ in expected.values()]), dtype=torch.float64)
    w = dict(zip(expected, lower_component(scaled, max_iter=10, tol=1e-2, reg=5e-4).tolist(), strict=True))
    close = {i for i in w if abs(w[i] - 0.8) < 1e-3}  # float32 may see these on the other side
    sets = as_sets(own)
    certain = {i for i in range(pool.incoming) if not any(j >= ctx.old for j in sets[i])}
    judged = set(pool.judged_old.nonzero()[:, 0].tolist())
    assert judged - close == ({i for i in w if w[i] > 0.8} | certain) - close
    assert 0 < int(pool.judged_old.sum()) < len(w)


# The mixture itself

LOOSE = {"max_iter": 10, "tol": 1e-2, "reg": 5e-4}  # DivideMix's
TIGHT = {"max_iter": 2000, "tol": 1e-10, "reg": 1e-6}
SHORT = {"max_iter": 3, "tol": 0.0, "reg": 1e-3}


def two_groups(n_new: int, n_old: int, gap: float, seed: int = 0) -> np.ndarray:
    """Unbalanced samples of two Gaussians, `gap` standard deviations apart, scaled to [0, 1]."""
    rng = np.random.default_rng(seed)
    return np.array(reference.min_max([*rng.normal(size=n_new), *rng.normal(-gap, 1, size=n_old)]))


def sklearn_fit(values: np.ndarray, upper: list[bool], *, max_iter: int, tol: float, reg: float) -> np.ndarray:
    """-> p(g | e_i) by scikit-learn, as DivideMix calls it (fit, then predict_proba), from the split given."""
    groups = [[v for v, up in zip(values, upper, strict=True) if up is side] for side in (False, True)]
    mixture = GaussianMixture(
        n_components=2,
        max_iter=max_iter,
        tol=tol,
        reg_covar=reg,
        weights_init=[len(group) / len(values) for group in groups],
        means_init=[[np.mean(group)] for group in groups],
        precisions_init=[[[1 / (np.var(group) + reg)]] for group in groups],
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says when max_iter ends the fit
        mixture.fit(values[:, None])
    return np.asarray(mixture.predict_proba(values[:, None])[:, mixture.means_[:, 0].argmin()])


@pytest.mark.parametrize(("n_new", "n_old", "gap"), [(290, 30, 2.0), (290, 30, 5.0), (150, 150, 3.0), (900, 20, 4.0)])
def test_two_means(n_new: int, n_old: int, gap: float) -> None:
    values = two_groups(n_new, n_old, gap)
    assert two_means(torch.from_numpy(values)).tolist() == reference.two_means(values.tolist())


@pytest.mark.parametrize("settings", [LOOSE, TIGHT, SHORT], ids=["loose", "tight", "short"])
@pytest.mark.parametrize(("n_new", "n_old", "gap"), [(290, 30, 2.0), (290, 30, 5.0), (150, 150, 3.0), (900, 20, 4.0)])
def test_the_mixture_is_scikit_learns(settings: dict[str, Any], n_new: int, n_old: int, gap: float) -> None:
    values = two_groups(n_new, n_old, gap)
    expected = sklearn_fit(values, reference.two_means(values.tolist()), **settings)
    w = lower_component(torch.from_numpy(values), **settings).numpy()
    np.testing.assert_allclose(w, expected, atol=1e-6)
