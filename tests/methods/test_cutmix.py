"""CutMix: what is pasted where, in which shares both targets count, and that any method can have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ipll
import reference
from ipll.component import Batch, Draw
from ipll.config import resolve
from ipll.errors import ConfigError
from ipll.families.auxiliary.cutmix import CutMix, rectangles
from ipll.families.retention.er_ace import ErAce
from ipll.learner import Learner
from ipll.method import assemble
from ipll.networks.network import MASKED, Output
from ipll.testing import check_method
from live import Live, Step, array, part

SIZES = [(8, 8), (32, 32), (5, 12), (1, 1)]
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-7}  # float32 against float64


def drawn(n: int, height: int, width: int, seed: int = 0) -> Draw:
    """-> a step's draw, with CutMix's view; no two pixels of the weak views are alike."""
    generator = torch.Generator().manual_seed(seed)
    draw = Draw(torch.arange(n), {"weak": torch.rand(n, 2, height, width, generator=generator)})
    CutMix(1.0).inputs(draw, generator)
    return draw


# The view


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rectangles(height: int, width: int) -> None:
    kept, x, y = np.random.default_rng(0).random((3, 200))
    columns = [torch.from_numpy(numbers)[:, None] for numbers in (kept, x, y)]
    for i, mask in enumerate(rectangles(*columns, height, width)):
        expected = reference.rectangle(kept[i], x[i], y[i], height, width)
        assert {(int(row), int(column)) for row, column in mask.nonzero()} == expected


def test_a_rectangle_of_the_whole_area_and_of_none() -> None:
    middle = torch.full((1, 1), 0.5)
    assert rectangles(torch.zeros(1, 1), middle, middle, 8, 8).all()
    assert not rectangles(torch.ones(1, 1), middle, middle, 8, 8).any()
    quarter = rectangles(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), 8, 8)[0]
    assert quarter[:4, :4].all()  # about the corner: the rest lies beyond the border
    assert quarter.sum() == 16


@pytest.mark.parametrize(("height", "width"), SIZES[:3])
def test_each_view_is_its_own_image_with_a_rectangle_of_its_partners(height: int, width: int) -> None:
    draw = drawn(64, height, width)
    weak, mixed, partner = draw.views["weak"], draw.views["cutmix"], draw.extra["cutmix partner"]
    assert sorted(partner.tolist()) == list(range(64))
    assert mixed.shape == weak.shape
    shares = set()
    for i, k in enumerate(partner.tolist()):
        own, other = (mixed[i] == weak[i]).all(dim=0), (mixed[i] == weak[k]).all(dim=0)
        assert bool((own | other).all())
        if k == i:
            continue
        rows, columns = other.any(dim=1), other.any(dim=0)
        assert torch.equal(other, rows[:, None] & columns[None, :])  # a rectangle, in one piece
        assert all(int(side.int().diff().abs().sum()) <= 2 for side in (rows, columns))
        assert float(draw.extra["cutmix share"][i]) == pytest.approx(float(own.float().mean()), abs=1e-6)
        shares.add(round(float(draw.extra["cutmix share"][i]), 3))
    assert len(shares) > 15


def test_how_much_of_an_image_stays() -> None:
    """On average as by drawing area and place one by one: more than half, since rectangles are cut at the border."""
    share = torch.cat([drawn(500, 8, 8, seed).extra["cutmix share"] for seed in range(4)])
    numbers = np.random.default_rng(1).random((2000, 3))
    expected = np.array([1 - len(reference.rectangle(*row, 8, 8)) / 64 for row in numbers])
    error = (expected.var() * 2 / 2000) ** 0.5
    assert abs(float(share.mean()) - expected.mean()) < 5 * error
    assert 0.6 < expected.mean() < 0.7


def test_the_weak_view_stays_as_it_is() -> None:
    generator = torch.Generator().manual_seed(0)
    draw = drawn(16, 8, 8)
    assert torch.equal(draw.views["weak"], torch.rand(16, 2, 8, 8, generator=generator))


# The loss


def problem(hidden: bool) -> tuple[Output, Tensor, Batch, np.ndarray]:
    """-> the view's output, targets, a batch, and what each sample sees: -inf where a class is hidden from it."""
    rng = np.random.default_rng(0)
    n, classes = 24, 6
    seen_by = rng.normal(size=(n, classes))
    if hidden:
        seen_by = np.where(rng.random((n, classes)) < 0.4, -np.inf, 0.0)
        seen_by[np.arange(n), rng.integers(classes, size=n)] = 0.0
    p = np.where(np.isinf(seen_by), 0.0, rng.random((n, classes)))
    targets = torch.from_numpy(p / p.sum(axis=1, keepdims=True)).float()
    logits = torch.from_numpy(rng.normal(scale=3, size=(n, classes))).float().requires_grad_()
    offset = torch.from_numpy(seen_by).float()
    shaped = torch.where(offset.isinf(), MASKED, logits + offset)
    extra = {"cutmix partner": torch.from_numpy(rng.permutation(n)), "cutmix share": torch.from_numpy(rng.random(n))}
    batch = Batch(torch.arange(n), targets > 0, targets, torch.zeros(n).bool(), {}, extra)
    return Output(logits, logits, shaped, logits[:, :0]), targets, batch, seen_by


@pytest.mark.parametrize("hidden", [False, True])
def test_both_targets_count_in_their_shares_each_as_its_own_sample_sees_the_classes(hidden: bool) -> None:
    view, targets, batch, seen_by = problem(hidden)
    loss = CutMix(1.0).losses({"cutmix": view}, targets, batch)["cutmix"]
    partner, share = batch.extra["cutmix partner"].tolist(), array(batch.extra["cutmix share"])
    expected = reference.cutmix(array(view.logits), array(targets), partner, share, seen_by)
    np.testing.assert_allclose(float(loss.detach()), expected, **CLOSE)
    loss.backward()  # type: ignore[no-untyped-call]
    assert view.logits.grad is not None
    assert bool(view.logits.grad.isfinite().all())


def cutmix_term(learner: Learner, step: Step, seen_by: np.ndarray) -> float:
    """-> the naive term of a step, not yet weighed."""
    assert step.batch.targets is not None
    extra, seen = step.batch.extra, learner.ctx.seen
    partner, share = extra["cutmix partner"].tolist(), array(extra["cutmix share"])
    targets = array(step.batch.targets)[:, :seen]
    return reference.cutmix(step.logits("cutmix")[:, :seen], targets, partner, share, seen_by)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_total_has_it_with_its_weight(live: Live, weight: float) -> None:
    """In every task, on targets of the same step; distillation is asked about the weak view alone, as before."""
    learner = live.learner("pgdr", augment__cutmix=weight)
    for t in range(2):
        for step in live.steps(learner, t):
            assert step.batch.targets is not None
            ctx, p, logits = learner.ctx, array(step.batch.targets), step.logits("weak")
            expected = reference.cross_entropy(p, logits, ctx.seen)
            expected += reference.cross_entropy(p, step.logits("strong"), ctx.seen)
            expected += weight * cutmix_term(learner, step, np.zeros((len(p), ctx.seen)))
            if t:
                teacher = array(learner.teacher(step.batch.views["weak"]).logits)
                expected += reference.distillation(teacher, logits, ctx.old, ctx.seen)
            np.testing.assert_allclose(float(step.total), expected, rtol=2e-5)


def test_wa_scales_it_like_the_cross_entropy(live: Live) -> None:
    learner = live.learner("proden+wa", learnt=1, augment__cutmix=1.0)
    share = 4 / 7
    for step in live.steps(learner, 1):
        ctx, p, logits = learner.ctx, array(step.p), step.logits("weak")
        classification = reference.cross_entropy(p, logits, ctx.seen)
        classification += cutmix_term(learner, step, np.zeros((len(p), ctx.seen)))
        teacher = array(learner.teacher(step.batch.views["weak"]).logits)
        kd = reference.distillation(teacher, logits, ctx.old, ctx.seen, temperature=2.0)
        np.testing.assert_allclose(float(step.total), (1 - share) * classification + share * kd, rtol=2e-5)


def test_er_ace_hides_classes_from_each_half_as_from_its_own_sample(live: Live) -> None:
    learner = live.learner("proden+er-ace", learnt=1, augment__cutmix=1.0, retention__warm_up=1.0)
    term, mixed = part(learner, CutMix), 0
    for step in live.steps(learner, 1):
        batch, seen = step.batch, learner.ctx.seen
        assert batch.targets is not None
        out, targets = part(learner, ErAce).reshape(step.out, batch.targets, batch)
        hidden = array(out["cutmix"].shaped)[:, :seen] == MASKED
        assert hidden[~batch.from_memory.numpy()].any()
        assert not hidden[batch.from_memory.numpy()].any()
        partner = batch.extra["cutmix partner"]
        mixed += int((batch.from_memory[partner] & ~batch.from_memory).sum())
        found = float(term.losses(out, targets, batch)["cutmix"].detach())
        expected = reference.cutmix(
            step.logits("cutmix")[:, :seen], array(targets)[:, :seen], partner.tolist(),
            array(batch.extra["cutmix share"]), np.where(hidden, -np.inf, 0.0),
        )  # fmt: skip
        np.testing.assert_allclose(found, expected, **CLOSE)
        assert bool(step.total.isfinite())
    assert mixed > 0  # incoming samples with a part of a memory sample in them


# In methods


def test_without_a_weight_there_is_no_such_part(live: Live) -> None:
    config = resolve("digits", "pgdr")
    assert config.augment.cutmix == 0
    assert not any(isinstance(p, CutMix) for p in assemble(config.parts, config.prototypes))
    step = next(live.steps(live.learner("pgdr"), 0))
    assert set(step.batch.views) == {"weak", "strong"}
    assert not step.batch.extra


def test_other_views_are_drawn_as_without_it(live: Live) -> None:
    """It draws behind the views of a chunk, so the first step's are the same."""
    plain, mixed = (next(live.steps(live.learner("pgdr", augment__cutmix=w), 0)) for w in (0.0, 1.0))
    assert torch.equal(plain.batch.rows, mixed.batch.rows)
    for name in ("weak", "strong"):
        assert torch.equal(plain.batch.views[name], mixed.batch.views[name])


BRIEF = {"stream.tasks": 2, "train.steps_per_epoch": 6}
METHODS = ["pgdr", "pico+wa", "papi+pgdr", "proden+bic", "pico+ancl", "terial", "pico+c-flat"]


@pytest.mark.parametrize("name", METHODS)
def test_any_method_keeps_its_contract_with_it(name: str) -> None:
    check_method(name, augment__cutmix=1.0, **BRIEF)


@pytest.mark.parametrize("name", ["pico+er-ace", "pgdr/boosted"])
def test_a_cosine_head_keeps_its_contract_with_it(name: str) -> None:
    check_method(name, augment__cutmix=1.0, stream__tasks=2)  # it learns too little in so few steps


def test_it_is_for_images_only() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    model = ipll.IncrementalClassifier(epochs=1, settings={"augment.cutmix": 1.0})
    with pytest.raises(ConfigError, match=r"augment\.cutmix=1 is for images.*takes features.*augment\.cutmix=0"):
        model.fit(x, [[0, 1]] * 30 + [[1]] * 30)


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"augment\.cutmix must not be negative"):
        resolve("digits", "pgdr", overrides={"augment.cutmix": -1.0})
