"""The real CIFAR-100, where IPLL_DATA points to it: the paper's presets run on it as they stand, on a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import ipll
from ipll.benchmark.run import execute
from ipll.config import resolve
from ipll.data.source import SOURCES
from ipll.data.sources import default_data_root
from ipll.progress import Silent

pytestmark = [
    pytest.mark.cifar,
    pytest.mark.skipif(
        not SOURCES["cifar100"]().available(default_data_root()), reason="CIFAR-100 is not under IPLL_DATA"
    ),
]


def few_of_each_class(source: ipll.Source, train: int, test: int) -> ipll.Source:
    """The first samples of each class: all classes in a size that a CPU gets through."""

    def rows(labels: np.ndarray, count: int) -> np.ndarray:
        return np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(source.classes)])

    kept, tested = rows(source.train_labels, train), rows(source.test_labels, test)
    return replace(
        source,
        train_samples=source.train_samples[kept],
        train_labels=source.train_labels[kept],
        test_samples=source.test_samples[tested],
        test_labels=source.test_labels[tested],
    )


@pytest.mark.parametrize("preset", ["cifar100", "cifar100-h"])
def test_a_short_run_on_a_cpu(preset: str) -> None:
    quick = {"train.epochs": 1, "train.steps_per_epoch": 1, "train.batch_size": 8, "memory.size": 100}
    config = resolve(preset, overrides=quick)
    source = few_of_each_class(ipll.load_source(config.data.source), train=4, test=1)
    stream = ipll.Stream.build(source, config.stream, seed=0)
    result = execute(config, source, stream, torch.device("cpu"), None, Silent())
    assert len(result.accuracy_per_task) == 10
    assert result["seen_classes_per_task"] == list(range(10, 101, 10))
    assert np.array(result["confusion"]).sum() == 100
    if preset == "cifar100-h":
        groups = source.superclasses[stream.class_order].reshape(10, 10)
        assert all(len(set(task)) == 2 for task in groups)


def test_the_papers_stream_has_the_papers_sizes() -> None:
    """Expected counts at 10-blurry: 4,500 new samples a task, 56, 273, 915 and 1,415 old ones in tasks 2, 5, 9, 10."""
    source = ipll.load_source("cifar100")
    rows = ipll.Stream.build(source, resolve("cifar100").stream, seed=0).summary(source.train_labels)
    assert [row.new for row in rows] == [4500] * 9 + [5000]
    assert [rows[t].old for t in (1, 4, 8, 9)] == pytest.approx([56, 273, 915, 1415], abs=15)
    assert rows[9].mean_candidates == pytest.approx(10.9, abs=0.1)
