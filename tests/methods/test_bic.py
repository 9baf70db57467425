"""BiC: what is held out, the correction's fit, whom it corrects, and where it counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import reference
from ipll.families.retention.bic import Bic, balanced, fit_correction
from ipll.learner import Learner
from live import Live, array, as_sets, part

METHOD = "proden+bic"
TRAINED = {"train__epochs": 3, "train__steps_per_epoch": 0, "memory__size": 200}  # enough for a bias to correct


def objective(pair: np.ndarray, logits: np.ndarray, labels: list[int], new: list[bool], penalty: float) -> float:
    """The mean over samples of - log softmax(corrected)_label, plus penalty beta^2 / 2."""
    alpha, beta = pair
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        corrected = [alpha * o + beta if is_new else o for o, is_new in zip(row, new, strict=True)]
        top = max(corrected)
        total += top + math.log(sum(math.exp(o - top) for o in corrected)) - corrected[label]
    return total / len(labels) + penalty * beta**2 / 2


def naive_fit(logits: np.ndarray, labels: list[int], new: list[bool], penalty: float) -> tuple[float, float]:
    tight = {"xatol": 1e-8, "fatol": 1e-13, "maxiter": 2000}
    found = minimize(objective, [1.0, 0.0], args=(logits, labels, new, penalty), method="Nelder-Mead", options=tight)
    return float(found.x[0]), float(found.x[1])


def held_out_problem(seed: int, n: int = 60, gain: float = 1.5, offset: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """-> logits [n, 8], labels and new mask: labels follow the softmax, then new logits are spread and raised."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(n, 8))
    labels = [int(rng.choice(6, p=reference.softmax(row[:6]))) for row in logits]  # the last two are not born
    new = torch.tensor([False] * 4 + [True] * 2 + [False] * 2)
    logits[:, 4:6] = gain * logits[:, 4:6] + offset
    logits[:, 6:] = -1e4
    return torch.from_numpy(logits), torch.tensor(labels), new


@pytest.mark.parametrize("penalty", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_fit_is_the_optimum(seed: int, penalty: float) -> None:
    logits, labels, new = held_out_problem(seed)
    pair = fit_correction(logits, labels, new, penalty)
    problem = logits.numpy(), labels.tolist(), new.tolist(), penalty
    assert pair == pytest.approx(naive_fit(*problem), abs=1e-3)
    best = objective(np.array(pair), *problem)
    grid = [(a, b) for a in np.linspace(0.1, 3, 12) for b in np.linspace(-3, 3, 13)]
    assert best <= min(objective(np.array(point), *problem) for point in grid)


def test_the_fit_undoes_a_bias_that_was_put_in() -> None:
    """o -> 1.5 o + 1 on new classes is undone by alpha = 1 / 1.5, beta = -1 / 1.5; the penalty draws beta to zero."""
    logits, labels, new = held_out_problem(3, n=4000)
    alpha, beta = fit_correction(logits, labels, new, penalty=0.0)
    assert alpha == pytest.approx(1 / 1.5, abs=0.06)
    assert beta == pytest.approx(-1 / 1.5, abs=0.12)
    assert abs(fit_correction(logits, labels, new, penalty=5.0)[1]) < 0.5 * abs(beta)


@pytest.mark.parametrize("label", [0, 4])
def test_the_fit_stays_bounded_where_one_side_is_missing(label: int) -> None:
    logits, labels, new = held_out_problem(4)
    alpha, beta = fit_correction(logits, torch.full_like(labels, label), new, penalty=0.0)
    assert 0.1 <= alpha <= 3
    assert -10 <= beta <= 10


@pytest.mark.parametrize("cap", [1, 2, 5, 100])
def test_the_balanced_part_against_a_loop(cap: int) -> None:
    labels = np.random.default_rng(5).choice(7, size=80, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05, 0.0]).tolist()
    taken: list[int] = []
    for i, label in enumerate(labels):
        if sum(labels[j] == label for j in taken) < cap:
            taken.append(i)
    assert balanced(torch.tensor(labels), cap).tolist() == taken


@pytest.mark.parametrize("learnt", [1, 2])
def test_a_random_tenth_of_the_task_and_of_the_memory_is_held_out(live: Live, learnt: int) -> None:
    learner = live.begun(METHOD, learnt=learnt)
    ctx, pool, bic = learner.ctx, learner.ctx.pool, part(learner, Bic)
    kept = len(pool) - pool.incoming
    assert kept == 60
    draws = []
    for seed, task in ((0, learnt), (0, learnt), (1, learnt), (0, learnt + 1)):
        ctx.seed, ctx.task = seed, task
        held = bic.hold_out()
        assert held is not None
        assert int(held[: pool.incoming].sum()) == pool.incoming // 10 > 0
        assert int(held[pool.incoming :].sum()) == kept // 10 > 0
        draws.append(held)
    assert torch.equal(draws[0], pool.held_out)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[3])
    rows = draws[0].nonzero()[:, 0].double()
    assert 0.25 * len(pool) < rows.mean() < 0.75 * len(pool)  # spread all over, not one end


def test_the_share_is_a_setting_and_the_first_task_holds_nothing_out(live: Live) -> None:
    pool = live.begun(METHOD, retention__hold_out=0.25).ctx.pool
    assert int(pool.held_out[: pool.incoming].sum()) == pool.incoming // 4
    assert not live.begun(METHOD, learnt=0).ctx.pool.held_out.any()


@pytest.mark.parametrize("learnt", [1, 2])
def test_held_out_samples_are_in_no_step_and_all_others_are(live: Live, learnt: int) -> None:
    learner = live.learner(METHOD, learnt=learnt, train__steps_per_epoch=0, train__batch_size=64)
    trained: set[int] = set()
    for step in live.steps(learner, learnt):
        pool = learner.ctx.pool
        assert not pool.held_out[step.batch.rows].any()
        trained |= set(step.batch.rows.tolist())
        first = reference.uniform(as_sets(pool.candidates)[int(pool.held_out.nonzero()[0])], 10)
        np.testing.assert_allclose(pool.p[pool.held_out][0].tolist(), first, rtol=1e-6)  # nor are its targets moved
    assert trained == set((~pool.held_out).nonzero()[:, 0].tolist())
    assert 0 < int(pool.held_out.sum()) < len(pool)


def raw_logits(learner: Learner, samples: Tensor) -> np.ndarray:
    """What the network itself says of plain views."""
    with torch.no_grad():
        return array(learner.network.eval()(learner.ctx.views.plain(samples)).logits)


def naive_correct(logits: np.ndarray, classes: range, alpha: float, beta: float) -> np.ndarray:
    result = logits.copy()
    for row in result:
        for c in classes:
            row[c] = alpha * row[c] + beta
    return result


@pytest.mark.parametrize("learnt", [1, 2])
def test_after_a_task_the_pair_is_fitted_to_a_balanced_part_of_the_held_out_samples(live: Live, learnt: int) -> None:
    learner = live.learner(METHOD, learnt=learnt, **TRAINED)
    bic = part(learner, Bic)
    for position in learner.fit(live.task(learner, learnt)):
        if position.epoch == TRAINED["train__epochs"]:  # whatever pair was live, the fit starts from raw logits
            bic.alpha.fill_(0.1)
            bic.beta.fill_(-10.0)
            bic.corrected.copy_(learner.ctx.new_mask)
    ctx, pool = learner.ctx, learner.ctx.pool
    rows = pool.held_out.nonzero()[:, 0]
    logits = raw_logits(learner, pool.samples[rows])
    labels = [reference.argmax_within(o, s) for o, s in zip(logits, as_sets(pool.candidates[rows]), strict=True)]
    assert pool.p[rows].argmax(dim=1).tolist() == labels
    assert torch.equal(pool.p[rows].sum(dim=1), torch.ones(len(rows)))
    assert pool.p[rows].max(dim=1).values.tolist() == [1.0] * len(rows)

    cap = 20 // ctx.seen  # a tenth of m, for each class
    chosen = [i for i, label in enumerate(labels) if labels[:i].count(label) < cap]
    new = [ctx.old <= c < ctx.seen for c in range(ctx.capacity)]
    expected = naive_fit(logits[chosen], [labels[i] for i in chosen], new, penalty=0.1)
    expected = min(max(expected[0], 0.1), 3.0), min(max(expected[1], -10.0), 10.0)
    assert (float(bic.alpha), float(bic.beta)) == pytest.approx(expected, abs=2e-3)
    assert (float(bic.alpha), float(bic.beta)) != (1.0, 0.0)
    assert bic.corrected.tolist() == new


def test_only_the_classes_born_last_are_corrected_at_test(live: Live) -> None:
    learner = live.learner(METHOD, learnt=2, **TRAINED)
    bic, ctx = part(learner, Bic), learner.ctx
    samples = torch.from_numpy(live.source.test_samples)
    raw = raw_logits(learner, samples)
    corrected = naive_correct(raw, range(4, 7), float(bic.alpha), float(bic.beta))
    np.testing.assert_allclose(array(ctx.embed(samples)[1])[:, :7], corrected[:, :7], rtol=1e-4, atol=1e-4)
    predicted = learner.predict(samples)
    assert torch.equal(predicted.classes, predicted.linear)
    assert predicted.classes.tolist() == corrected.argmax(axis=1).tolist()


def test_the_correction_moves_predictions_between_old_and_new(live: Live) -> None:
    """Plain replay holds nothing out and leaves the bias to one side as it is."""
    learner = live.learner(METHOD, learnt=2, **TRAINED)
    samples = torch.from_numpy(live.source.test_samples)
    raw = raw_logits(learner, samples).argmax(axis=1)
    predicted = learner.predict(samples).classes.numpy()
    assert learner.ctx.pool.held_out.any()
    assert (predicted >= 4).sum() != (raw >= 4).sum()


@pytest.mark.parametrize("learnt", [1, 2])
def test_the_teacher_is_corrected_and_the_network_in_training_is_not(live: Live, learnt: int) -> None:
    """(1 - lambda) ce + lambda kd at T = 2, with the pair of the task before on the classes born in it."""
    learner = live.learner(METHOD, learnt=learnt, **TRAINED | {"train__steps_per_epoch": 2})
    bic = part(learner, Bic)
    last_born = {1: range(4), 2: range(4, 7)}[learnt]
    if learnt == 2:
        bic.alpha.fill_(0.6)  # far from none, so that a correction left out or put elsewhere shows
        bic.beta.fill_(-0.8)
    else:
        assert (float(bic.alpha), float(bic.beta)) == (1.0, 0.0)  # no correction is learnt in the first task
    pair = float(bic.alpha), float(bic.beta)
    for step in live.steps(learner, learnt):
        ctx = learner.ctx
        with torch.no_grad():
            teacher = naive_correct(array(learner.teacher(step.batch.views["weak"]).logits), last_born, *pair)
        ce = reference.cross_entropy(array(step.p), step.logits("weak"), ctx.seen)
        kd = reference.distillation(teacher, step.logits("weak"), ctx.old, ctx.seen, temperature=2.0)
        share = ctx.old / ctx.seen
        np.testing.assert_allclose(float(step.total), (1 - share) * ce + share * kd, rtol=2e-5)
        with torch.no_grad():
            itself = step.network.train()(step.batch.views["weak"]).logits
        torch.testing.assert_close(step.out["weak"].shaped, itself)


def test_held_out_samples_may_be_kept_with_the_label_they_were_given(live: Live) -> None:
    learner = live.learner(METHOD, learnt=2, **TRAINED)
    pool, memory = learner.ctx.pool, learner.memory
    held = set(pool.ids[pool.held_out].tolist())
    at = [i for i, sample in enumerate(memory.ids.tolist()) if sample in held]
    assert 0 < len(at) < len(memory.ids)
    assert memory.p[at].max(dim=1).values.tolist() == [1.0] * len(at)


def test_a_task_too_small_for_a_hold_out_is_learnt_without_a_correction(live: Live) -> None:
    learner = live.learner(METHOD, learnt=1, retention__hold_out=0.002)
    for _ in learner.fit(live.task(learner, 1)):
        assert not learner.ctx.pool.held_out.any()
    bic = part(learner, Bic)
    assert (float(bic.alpha), float(bic.beta)) == (1.0, 0.0)
