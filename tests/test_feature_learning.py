"""Learning from feature vectors: their views, the network for them, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ipll.config import resolve
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream, Task
from ipll.engine import checkpoint
from ipll.errors import ConfigError, DataError
from ipll.learner import Learner, Position
from ipll.networks.backbones import build_backbone
from ipll.views.augment import AugmentConfig
from ipll.views.features import FeatureViews

VIEWS = {"model.backbone": "mlp", "augment.weak": "identity", "augment.strong": "noise"}
QUICK = {"stream.tasks": 3, "train.epochs": 2, "train.batch_size": 64, "train.lr": 0.05, "memory.size": 60}


class Features:
    """The digits as 64 grey levels each, in columns of very different scales."""

    def __init__(self) -> None:
        self.source: Source = load_source("digits")
        scales = 10.0 ** np.random.default_rng(0).uniform(-3, 3, 64)
        self.train, self.test = (
            (samples.reshape(len(samples), -1) * scales + 5 * scales).astype(np.float32)
            for samples in (self.source.train_samples, self.source.test_samples)
        )
        self.mean, self.std = tuple(self.train.mean(0).tolist()), tuple(self.train.std(0).tolist())

    def learner(self, method: str = "pgdr", seed: int = 0, **settings: Any) -> Learner:
        overrides = VIEWS | QUICK | {name.replace("__", "."): value for name, value in settings.items()}
        config = resolve("digits", method, seed=seed, overrides=overrides)
        return Learner(config, channels=64, classes=10, mean=self.mean, std=self.std)

    def stream(self, learner: Learner) -> Stream:
        return Stream.build(self.source, learner.config.stream, learner.config.seed)

    def task(self, learner: Learner, t: int) -> Task:
        return self.stream(learner).make_task(t, self.train)  # type: ignore[arg-type]

    def accuracy(self, learner: Learner) -> float:
        truth = torch.from_numpy(self.stream(learner).arrival[self.source.test_labels])
        seen = truth < learner.ctx.seen
        predicted = learner.predict(torch.from_numpy(self.test)).classes
        return float((predicted == truth)[seen].float().mean())


@pytest.fixture(scope="module")
def features() -> Features:
    return Features()


def fit(learner: Learner, task: Task) -> None:
    for _ in learner.fit(task):
        pass


# Views


def views(mean: list[float], std: list[float], **settings: Any) -> FeatureViews:
    return FeatureViews(AugmentConfig(**{"weak": "identity", "strong": "noise"} | settings), mean, std, "cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_weak_view_is_the_standardised_sample() -> None:
    samples = torch.tensor([[3.0, 7.0, 4.0], [5.0, 7.0, 4.5]])
    made = views([4.0, 7.0, 4.0], [0.5, 0.0, 1e-3])
    expected = torch.tensor([[-2.0, 0.0, 0.0], [2.0, 0.0, 500.0]])  # the second does not vary, and is only centred
    assert torch.allclose(made.weak(samples, generator()), expected)
    assert torch.equal(made.plain(samples), made.weak(samples, generator()))


def test_the_strong_view_is_noise_and_dropped_features() -> None:
    samples = 3 + 2 * torch.randn(20_000, 5, generator=generator(1))
    made = views([3.0] * 5, [2.0] * 5, noise=0.2, drop=0.3)
    strong, plain = made.strong(samples, generator()), made.plain(samples)
    dropped = strong == 0
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.float().mean(dim=0).tolist() == pytest.approx([0.3] * 5, abs=0.02)
    noise = (strong - plain)[~dropped]
    assert noise.mean().item() == pytest.approx(0, abs=0.005)
    assert noise.std().item() == pytest.approx(0.2, abs=0.005)


def test_a_generator_decides_the_strong_view() -> None:
    samples, made = torch.randn(10, 4), views([0.0] * 4, [1.0] * 4)
    one, again, other = (made.strong(samples, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_strengths_of_zero_leave_the_sample() -> None:
    samples, made = torch.randn(10, 4), views([0.0] * 4, [1.0] * 4, noise=0.0, drop=0.0)
    assert torch.equal(made.strong(samples, generator()), samples)


@pytest.mark.parametrize(
    "samples",
    [torch.zeros(3, 5), torch.zeros(3, 4, dtype=torch.uint8), torch.zeros(3, 4, 1), torch.zeros(3, 4).double()],
)
def test_other_samples_are_refused(samples: Tensor) -> None:
    with pytest.raises(DataError, match=r"takes float32 features \[n, 4\]"):
        views([0.0] * 4, [1.0] * 4).plain(samples)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augment.weak": "sim"}, "augment.weak 'sim' is a view of images, but model.backbone takes features"),
        ({"augment.strong": "warp"}, "augment.strong 'warp' is a view of images"),
        ({"model.backbone": "small-cnn"}, "augment.strong 'noise' is a view of features, but model.backbone takes ima"),
    ],
)
def test_views_must_be_of_what_the_backbone_takes(settings: dict[str, Any], message: str) -> None:
    config = resolve("digits", overrides=VIEWS | settings)
    with pytest.raises(ConfigError, match=message):
        Learner(config, channels=1, classes=2, mean=(0.0,), std=(1.0,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": -0.1}, "augment.noise must not be negative"),
        ({"drop": 1.0}, r"augment.drop must be in \[0, 1\)"),
        ({"strong": "nois"}, "augment.strong must be one of .*Did you mean 'noise'"),
    ],
)
def test_bad_strengths(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentConfig(**settings)


# The network


def test_a_sample_does_not_depend_on_its_batch() -> None:
    """In training too: a batch may be one sample, and views may share a pass."""
    backbone = build_backbone("mlp", 6, generator()).train()
    samples = torch.randn(9, 6, generator=generator(1))
    together = backbone(samples)
    assert together.shape == (9, backbone.dim)
    assert torch.allclose(torch.cat([backbone(sample[None]) for sample in samples]), together, atol=1e-5)


# Learning


@pytest.mark.parametrize(
    "method",
    [
        *("pgdr", "pgdr/pp", "pico+pgdr", "papi+pgdr", "pico+icarl", "papi+bic", "terial+ancl", "proden+wa"),
        *("proden+er-ace", "proden+c-flat", "terial"),
    ],
)
def test_methods_learn_from_features(features: Features, method: str) -> None:
    learner = features.learner(method)
    fit(learner, features.task(learner, 0))
    assert features.accuracy(learner) > 0.8  # chance is 25 %
    fit(learner, features.task(learner, 1))
    assert all(tensor.isfinite().all() for tensor in learner.state_dict().values() if tensor.is_floating_point())
    if "memory" in learner.memory.provides:
        kept = learner.memory
        assert kept.samples.dtype == torch.float32
        assert torch.equal(kept.samples, torch.from_numpy(features.train)[kept.ids])


def test_old_classes_are_remembered(features: Features) -> None:
    learner = features.learner(train__epochs=5)
    for t in range(3):
        fit(learner, features.task(learner, t))
    assert features.accuracy(learner) > 0.85


@pytest.mark.parametrize("within", [False, True])
def test_a_checkpoint_restores_features(features: Features, tmp_path: Path, within: bool) -> None:
    """Stopped between or within tasks, written to disk and read again, training ends in the same bits."""
    learner = features.learner()
    fit(learner, features.task(learner, 0))
    steps, task, stop = learner.fit(features.task(learner, 1)), features.task(learner, 1), Position(1, 0, 1, 2)
    if within:
        while next(steps) != stop:
            pass
    checkpoint.save(tmp_path / "kept", learner.tensors(within=within), {})
    found = checkpoint.load_latest(tmp_path / "kept")
    assert found is not None
    resumed = features.learner()
    resumed.restore(found.tensors, task, within=within)
    assert resumed.memory.samples.dtype == torch.float32
    for _ in steps:
        pass
    for _ in resumed.fit(task, stop if within else None):
        pass
    for name, tensor in learner.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name


def test_a_task_of_one_sample_is_learnt(features: Features) -> None:
    learner = features.learner()
    fit(learner, features.task(learner, 0))
    whole = features.task(learner, 1)
    one = Task(1, whole.ids[:1], whole.samples[:1], whole.candidates[:1], old=whole.old, seen=whole.seen)
    fit(learner, one)
    assert len(learner.ctx.pool) == 61


def test_scales_of_the_columns_do_not_matter(features: Features) -> None:
    """Standardised by its own statistics, a column may be in metres or millimetres."""
    plain = features.learner()
    fit(plain, features.task(plain, 0))
    scaled = Learner(
        plain.config, channels=64, classes=10, mean=tuple(1024 * m for m in features.mean),
        std=tuple(1024 * s for s in features.std),
    )  # fmt: skip
    task = features.task(plain, 0)
    fit(scaled, Task(0, task.ids, task.samples * np.float32(1024), task.candidates, old=0, seen=task.seen))
    samples = torch.from_numpy(features.test)
    assert torch.equal(plain.predict(samples).classes, scaled.predict(1024 * samples).classes)
