"""Compiled code: traced once, whatever the number of seen classes, and the same numbers as without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from ipll.engine import compiler
from ipll.learner import Learner
from ipll.views.augment import AugmentConfig
from ipll.views.images import Views

FIRST_CLOSED = {"pgdr": 1, "pico+pgdr": 1, "papi+pgdr": 1, "pico+ancl": 1, "proden+c-flat": 1}
FIRST_CLOSED["pico+er-ace"] = 2  # its batches are twice as long once there is a memory


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Code is traced and guarded as always; what is traced runs as it is, since building takes minutes."""
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    torch.compiler.reset()
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


def learn(name: str, compile_: str, *, tasks: int = 2, closed: int = 2) -> Learner:
    """Learns some tasks of five; from task `closed` on, counted from 0, it is an error to compile anything."""
    settings = {"train.epochs": 2, "train.batch_size": 32, "train.compile": compile_, "train.steps_per_epoch": 3}
    config = resolve("digits", name, overrides=settings)
    source = load_source("digits")
    stream = Stream.build(source, config.stream, config.seed)
    learner = Learner(config, channels=1, classes=source.classes, mean=source.mean, std=source.std)
    for t in range(tasks):
        torch.compiler.set_stance("fail_on_recompile" if t >= closed else "default")
        for _ in learner.fit(stream.make_task(t, source.train_samples)):
            pass
        learner.predict(torch.from_numpy(source.test_samples[: 50 + 10 * t]))
    return learner


@pytest.mark.parametrize(("name", "closed"), FIRST_CLOSED.items())
def test_later_tasks_compile_nothing(name: str, closed: int) -> None:
    learn(name, "on", tasks=closed + 1, closed=closed)


def test_same_numbers() -> None:
    compiled, plain = learn("pgdr", "on"), learn("pgdr", "off")
    torch.testing.assert_close(compiled.ctx.pool.p, plain.ctx.pool.p)
    torch.testing.assert_close(compiled.ctx.prototypes.mu, plain.ctx.prototypes.mu)


def test_kernels_are_kept_in_one_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Triton has them, whatever the compiler does later; a user's own choice counts."""

    def place() -> str:
        compiler.compiled(torch.relu)
        return os.environ["TRITON_CACHE_DIR"]

    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    assert place() == "mine"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # PyTorch sets it when it is imported
    assert place() == str(tmp_path / ".triton" / "cache")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert place() == str(tmp_path / "triton")


@pytest.mark.parametrize("size", [8, 32, 64])
def test_few_small_images_are_not_filled_up_to_many(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Compiled views are made in blocks of one length."""
    monkeypatch.setattr(compiler, "compiled", lambda function: function)
    views = Views(AugmentConfig(), (0.5,), (0.25,), "cpu", compiled=True)
    lengths: list[int] = []
    render = views.compiled[views.weak_view]

    def watched(samples: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        lengths.append(len(samples))
        return render(samples, numbers)

    views.compiled[views.weak_view] = watched
    samples = torch.randint(256, (300, 1, size, size), dtype=torch.uint8)
    seen = views.weak(samples, torch.Generator().manual_seed(0))
    assert seen.shape == samples.shape
    assert sum(lengths) <= 2048
    views.compiled = {}
    torch.testing.assert_close(seen, views.weak(samples, torch.Generator().manual_seed(0)))
