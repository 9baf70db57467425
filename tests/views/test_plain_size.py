"""augment.test_size: plain views at another size, in everything that looks at samples as they are, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import DIGITS, PHOTOS, seeded
from sklearn.datasets import load_digits
from torch import Tensor

import ipll
import reference
from ipll.component import predict_within
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.engine.state import part_of
from ipll.errors import ConfigError, DataError
from ipll.families.separation import Separation
from ipll.learner import Learner
from ipll.networks.backbones import SmallCNN
from ipll.views import image_ops as ops
from ipll.views.augment import AugmentConfig
from ipll.views.features import make_views
from ipll.views.images import Views
from live import Live, array, known_prototypes

MEAN, STD = (0.5, 0.4, 0.45), (0.25, 0.3, 0.2)
Seen = Callable[[], list[tuple[bool, int]]]


@pytest.fixture(scope="module")
def live() -> Live:
    return Live(load_source("digits"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """-> a function that gives (in training mode?, side) of every batch that a backbone saw since the last call."""
    shapes: list[tuple[bool, int]] = []
    forward = SmallCNN.forward

    def spying(self: SmallCNN, x: Tensor) -> Tensor:
        assert x.shape[-1] == x.shape[-2]
        shapes.append((self.training, x.shape[-1]))
        return forward(self, x)

    def since() -> list[tuple[bool, int]]:
        found = list(shapes)
        shapes.clear()
        return found

    monkeypatch.setattr(SmallCNN, "forward", spying)
    return since


# The view


@pytest.mark.parametrize("side", [1, 3, 7, 8, 13, 20])
def test_bilinear_and_smoothed_where_it_shrinks(side: int) -> None:
    images = torch.cat([DIGITS[:2, 0], PHOTOS[:1, 1, 4:12, 9:17], PHOTOS[1:2, 2, :8, :8]])[:, None].float()
    found = ops.resize(images, side)
    assert found.shape == (4, 1, side, side)
    for image, other in zip(images, found, strict=True):
        np.testing.assert_allclose(other[0].numpy(), reference.resized(array(image[0]), side), atol=2e-3)


@pytest.mark.parametrize(("size", "side"), [(32, 40), (32, 11), (32, 32), (9, 12)])
def test_plain_views_are_resized_and_then_normalised(size: int, side: int) -> None:
    samples = PHOTOS[:6, :, :size, :size].contiguous()
    out = Views(AugmentConfig(test_size=side), MEAN, STD, "cpu").plain(samples)
    levels = ops.resize(samples.float(), side).double() / 255
    expected = (levels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert out.dtype == torch.float32
    assert out.shape == (6, 3, side, side)
    assert (out - expected).abs().max() < 1e-5


def test_each_image_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a batch, as a CPU does with large ones, changes nothing; nor does an empty one."""
    views = Views(AugmentConfig(test_size=20), MEAN, STD, "cpu")
    whole = views.plain(PHOTOS)
    monkeypatch.setattr("ipll.views.images.BLOCK", 5 * PHOTOS[0].numel())
    assert torch.equal(views.plain(PHOTOS), whole)
    assert views.plain(PHOTOS[:0]).shape == (0, 3, 20, 20)


def test_without_it_and_in_random_views_every_bit_is_as_before() -> None:
    plain, other = (Views(AugmentConfig(test_size=side), MEAN, STD, "cpu") for side in (0, 40))
    normalised = torch.addcmul(plain.offset, PHOTOS.float(), plain.scale)
    assert torch.equal(plain.plain(PHOTOS), normalised)
    assert torch.equal(Views(AugmentConfig(), MEAN, STD, "cpu").plain(PHOTOS), normalised)
    for view in ("weak", "strong"):
        one, two = (getattr(views, view)(PHOTOS, seeded()) for views in (plain, other))
        assert torch.equal(one, two)


def test_images_that_are_not_square_are_refused() -> None:
    wide = torch.zeros(2, 3, 16, 24, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"augment\.test_size=40 is for square images, and these are 24 x 16 pixels"):
        Views(AugmentConfig(test_size=40), MEAN, STD, "cpu").plain(wide)
    assert Views(AugmentConfig(), MEAN, STD, "cpu").plain(wide).shape == (2, 3, 16, 24)


def test_features_are_refused() -> None:
    config = AugmentConfig(weak="identity", strong="noise", test_size=40)
    with pytest.raises(ConfigError, match=r"augment\.test_size=40 is for images.*takes features.*augment\.test_size=0"):
        make_views("features", config, (0.0,) * 4, (1.0,) * 4, "cpu")


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"augment\.test_size must not be negative"):
        AugmentConfig(test_size=-1)


# Who sees it


def test_training_is_at_the_images_size_and_all_else_at_the_other(live: Live, seen: Seen) -> None:
    learner = live.learner("pgdr", augment__test_size=12)
    for t in range(2):
        first, *others = [seen() for _ in learner.fit(live.task(learner, t))]
        separated = first.count((False, 12))
        assert first[:separated] == [(False, 12)] * separated  # before the first step
        assert (separated > 0) is (t > 0)
        assert {side for batch in (first[separated:], *others) for _, side in batch} == {8}  # the teacher's views too
        assert set(seen()) == {(False, 12)}  # prototypes and memory, when the task is over
    learner.predict(torch.from_numpy(live.source.test_samples[:50]))
    assert seen() == [(False, 12)]


def test_prototypes_and_separation_are_of_features_at_that_size(live: Live) -> None:
    learner = live.begun("pgdr", augment__test_size=12)
    ctx, views = learner.ctx, Views(AugmentConfig(test_size=12), live.source.mean, live.source.std, "cpu")
    before = live.learner("pgdr", augment__test_size=12, learnt=1)
    mu = known_prototypes(before.ctx.prototypes)
    with torch.no_grad():
        out = before.network.eval()(views.plain(before.ctx.pool.samples[:]))
        chosen = predict_within(out.logits, before.ctx.pool.candidates)
        arrived = before.network(views.plain(ctx.pool.samples[: ctx.pool.incoming]))
    for c in range(before.ctx.seen):
        torch.testing.assert_close(torch.from_numpy(mu[c]).float(), out.features[chosen == c].mean(dim=0))
    separation = part_of(ctx.parts, Separation)
    assert separation is not None
    judged = separation.judge(arrived.features, arrived.logits, ctx.pool.candidates[: ctx.pool.incoming])
    certain = ~(ctx.pool.candidates[: ctx.pool.incoming] & ctx.new_mask).any(dim=1)
    assert torch.equal(ctx.pool.judged_old, judged.old | certain)


def test_0_is_the_images_own_size(live: Live, seen: Seen) -> None:
    learner = live.learner("pgdr", augment__test_size=0)
    for _ in learner.fit(live.task(learner, 0)):
        pass
    assert {side for _, side in seen()} == {8}
    assert resolve("digits", "pgdr").augment.test_size == 0


def test_a_run_on_images_that_are_not_square_says_so(live: Live) -> None:
    config = resolve("digits", "pgdr", overrides={"augment.test_size": 12})
    learner = Learner(config, channels=1, classes=10, mean=live.source.mean, std=live.source.std)
    with pytest.raises(DataError, match="is for square images"):
        learner.predict(torch.zeros(3, 1, 8, 10, dtype=torch.uint8))


def test_images_of_ones_own(seen: Seen, tmp_path: Path) -> None:
    """Fitted, updated, kept and loaded again: predictions are of images at that size."""
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8), digits.target
    settings: dict[str, Any] = {"augment.test_size": 12, "train.batch_size": 32}
    model = ipll.IncrementalClassifier(epochs=8, random_state=0, settings=settings)
    for first in (0, 2):
        rows = np.flatnonzero((labels >= first) & (labels < first + 2))[:120]
        model.partial_fit(images[rows], [[label] for label in labels[rows]])
        sides = seen()
        assert {side for training, side in sides if training} == {8}
        assert (False, 12) in sides
    rows = np.flatnonzero(labels < 4)[-200:]
    assert model.score(images[rows], labels[rows]) > 0.8
    assert set(seen()) == {(False, 12)}
    model.model_.save(tmp_path / "model")
    again = ipll.Model.load(tmp_path / "model")
    assert again.config.augment.test_size == 12
    seen()
    predicted = again.predict(ipll.own.from_arrays(images[rows]), device="cpu")
    assert set(seen()) == {(False, 12)}
    np.testing.assert_allclose(predicted.probabilities, model.predict_proba(images[rows]), atol=1e-6)


def test_features_of_ones_own_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    model = ipll.IncrementalClassifier(epochs=1, settings={"augment.test_size": 12})
    with pytest.raises(ConfigError, match=r"augment\.test_size=12 is for images"):
        model.fit(x, [[0, 1]] * 30 + [[1]] * 30)


# The mirror image beside it


def test_with_the_mirror_image_the_network_says_the_mean_of_both(live: Live) -> None:
    learner = live.learner("pgdr", augment__test_mirror=True, learnt=1)
    views = Views(AugmentConfig(), live.source.mean, live.source.std, "cpu")
    samples = torch.from_numpy(live.source.test_samples[:70])
    with torch.no_grad():
        one, two = (learner.network.eval()(views.plain(images)) for images in (samples, samples.flip(-1)))
    features, logits = learner.ctx.embed(samples)
    torch.testing.assert_close(features, (one.features + two.features) / 2)
    torch.testing.assert_close(logits, (one.logits + two.logits) / 2)
    torch.testing.assert_close(learner.ctx.embed(samples.flip(-1))[0], features)
    assert (one.features - two.features).abs().max() > 0.01


def test_of_features_there_is_no_mirror_image() -> None:
    config = AugmentConfig(weak="identity", strong="noise", test_mirror=True)
    with pytest.raises(ConfigError, match=r"test_mirror=true is for images.*--set augment\.test_mirror=false"):
        make_views("features", config, (0.0,) * 4, (1.0,) * 4, "cpu")
