"""Sources and settings of streams for tests."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from ipll.data.source import Source
from ipll.data.stream import StreamConfig


def make_source(
    labels: np.ndarray, superclasses: np.ndarray | None = None, samples: np.ndarray | None = None
) -> Source:
    labels = np.asarray(labels, dtype=np.int64)
    if samples is None:
        samples = (np.arange(len(labels)) % 251).astype(np.uint8).reshape(-1, 1, 1, 1)
    names = tuple(f"class {c}" for c in range(labels.max() + 1))
    return Source("toy", samples, labels, samples, labels, names, (0.5,), (0.25,), superclasses)


def cifar_like() -> Source:
    """CIFAR-100's label counts and superclass sizes: 100 classes of 500, 20 superclasses of 5."""
    return make_source(np.arange(50_000) % 100, superclasses=np.arange(100) % 20)


CIFAR = cifar_like()


UNTIMED = settings(deadline=None)  # a busy machine is no failure


@st.composite
def cases(draw: st.DrawFn) -> tuple[Source, StreamConfig, int]:
    counts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=9))
    classes = len(counts)
    labels = draw(st.randoms(use_true_random=False)).sample(list(np.repeat(np.arange(classes), counts)), sum(counts))
    groups = draw(st.lists(st.integers(0, 3), min_size=classes, max_size=classes))
    order = draw(st.sampled_from(["random", "superclass", "natural"]))
    config = StreamConfig(
        tasks=draw(st.integers(1, len(set(groups)) if order == "superclass" else classes)),
        blurry=draw(st.floats(0, 99.9)),
        q=draw(st.floats(0, 0.9)),
        candidates=draw(st.sampled_from(["uniform", "banded"])),
        order=order,
        last_leftover=draw(st.sampled_from(["keep", "drop"])),
        min_candidates=draw(st.sampled_from([1, 2])),
        flip_scope=draw(st.sampled_from(["seen", "superclass"])),
    )
    return make_source(labels, superclasses=np.array(groups)), config, draw(st.integers(0, 1000))
