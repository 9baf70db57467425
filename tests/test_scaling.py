"""Parts that see a whole task: no matrix of all pairs of a class, none of all samples and classes beyond what is given,
and the same choices as plain loops."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ipll.component import Context
from ipll.families import separation as base
from ipll.families.memory import by_class, quotas
from ipll.families.memory.by_class import ByClass, RandomMemory, RepresentativeDiverse, nearest_neighbours
from ipll.families.memory.herding import Herding
from ipll.families.separation import SeparationSettings
from ipll.families.separation.prototype_distance import PrototypeDistance
from ipll.prototypes import class_means
from live import bare_context

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "scaling.py"


class Largest(TorchDispatchMode):
    """Watches the bytes of the largest tensor that an operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {leaf.data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.data_ptr() not in given:  # views and in-place results are not new
                self.bytes = max(self.bytes, leaf.nbytes)
        return out


@contextmanager
def no_tensor_of(limit: int) -> Iterator[None]:
    with Largest() as largest:
        yield
    assert 0 < largest.bytes < limit


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(n: int, classes: int) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(1))


def test_neighbours_of_a_large_class_need_no_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(3000, 8)
    monkeypatch.setattr(by_class, "BLOCK", 3000)
    sums, nearest = nearest_neighbours(x, 5)
    monkeypatch.setattr(by_class, "BLOCK", 100)
    with no_tensor_of(2 * 4 * 100 * 3000):
        in_blocks, same = nearest_neighbours(x, 5)
    assert torch.equal(same, nearest)
    torch.testing.assert_close(in_blocks, sums)


def context(x: Tensor, predicted: Tensor, *, seen: int, old: int = 0) -> Context:
    """A context with the centres of predicted classes as prototypes."""
    ctx = bare_context(classes=seen + 2, dim=x.shape[1], old=old, seen=seen)
    ctx.task = 0
    means, filled = class_means(x, predicted, ctx.capacity)
    ctx.prototypes.mu.copy_(means)
    ctx.prototypes.known.copy_(filled)
    ctx.pool_features = lambda: x  # type: ignore[method-assign]
    ctx.pool_predictions = lambda: predicted  # type: ignore[method-assign]
    return ctx


@pytest.mark.parametrize("member", [RandomMemory, RepresentativeDiverse, Herding])
def test_a_memory_keeps_what_a_loop_over_classes_would_keep(member: type[ByClass]) -> None:
    x, predicted = random(400, 8), labels(400, 12)
    predicted[predicted == 4] = 5  # a class without samples, and one with many
    part = member(member.Settings(size=120))
    part.build(context(x, predicted, seen=12))
    expected: list[int] = []
    for c, quota in enumerate(quotas(predicted.bincount(minlength=12), 120, 12).tolist()):
        rows = [i for i in range(400) if int(predicted[i]) == c]
        expected += [rows[i] for i in part.choose(x[rows], c, quota).tolist()] if quota else []
    assert part.select().tolist() == expected
    assert len(expected) == 120


def test_class_means() -> None:
    x, classes = random(500, 8), labels(500, 20)
    classes[classes == 7] = 8
    means, filled = class_means(x, classes, 22)
    assert filled.tolist() == [c not in (7, 20, 21) for c in range(22)]
    for c in range(22):
        expected = x[classes == c].mean(dim=0) if filled[c] else torch.zeros(8)
        torch.testing.assert_close(means[c], expected)


def test_prototypes_need_no_matrix_of_samples_and_classes() -> None:
    n, classes = 2000, 400
    x, predicted = random(n, 8), labels(n, classes)
    p = torch.rand(n, classes + 2, generator=torch.Generator().manual_seed(2))
    ctx = context(x, predicted, seen=classes)
    ctx.prototypes.known[:3] = False
    predicted[predicted < 3] = 3  # three classes fall back to weighted means
    with no_tensor_of(n * classes):  # one byte an entry, a bool
        ctx.prototypes.update(x, predicted, p)
    torch.testing.assert_close(ctx.prototypes.mu[1], (p[:, 1] @ x) / p[:, 1].sum())


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_separation_in_blocks_judges_alike(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, classes = 2000, 400
    x, predicted = random(n, 8), labels(n, classes)
    candidates = torch.rand(n, classes + 2, generator=torch.Generator().manual_seed(3)) < 0.01
    part = PrototypeDistance(SeparationSettings(metric=metric))
    part.build(context(x, predicted, seen=classes, old=200))
    whole = part.judge(x, x, candidates)
    monkeypatch.setattr(base, "BLOCK", 64)
    with no_tensor_of(2 * n * classes):  # the old candidates are a bool matrix; no float one
        blocks = part.judge(x, x, candidates)
    assert torch.equal(blocks.nearest, whole.nearest)
    torch.testing.assert_close(blocks.probability, whole.probability)
    assert 0 < int(whole.old.sum()) < n


def test_the_benchmark_measures_every_part(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("scaling", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(["--out", str(tmp_path / "scaling.json"), "--device", "cpu", "--largest", "1000", "--dim", "4"])
    result = json.loads((tmp_path / "scaling.json").read_text())
    assert result["environment"]["device"] == "cpu"
    assert {row["part"] for row in result["rows"] if row["sweep"] == "classes"} == set(module.ALL)
    assert all(row["seconds"] > 0 and math.isfinite(row["seconds"]) for row in result["rows"])
