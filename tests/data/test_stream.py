"""Streams: the blurry split loses nothing, candidates are legal, files come back as they were."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from streams import CIFAR, UNTIMED, cases, make_source

from ipll.data.source import Source
from ipll.data.stream import Stream, StreamConfig, Task
from ipll.errors import ConfigError, DataError


def birth_of_classes(stream: Stream) -> np.ndarray:
    """-> [classes], the task in which each class is born, by a plain loop."""
    birth = np.empty(len(stream.class_order), int)
    for place, c in enumerate(stream.class_order):
        birth[c] = next(t for t in range(len(stream)) if place < stream.seen(t))
    return birth


@UNTIMED
@given(cases())
def test_every_sample_arrives_once_and_never_before_its_class(case: tuple[Source, StreamConfig, int]) -> None:
    source, config, seed = case
    stream = Stream.build(source, config, seed)
    birth = birth_of_classes(stream)
    tasks = [stream.make_task(t, source.train_samples) for t in range(len(stream))]
    arrived = np.concatenate([task.ids for task in tasks])
    dropped = np.flatnonzero(stream.task == -1)
    np.testing.assert_array_equal(np.sort(np.concatenate([arrived, dropped])), np.arange(len(source.train_labels)))
    if config.last_leftover == "keep":
        assert len(dropped) == 0
    assert (birth[source.train_labels[dropped]] == len(stream) - 1).all()
    for task in tasks:
        assert (birth[source.train_labels[task.ids]] <= task.index).all()
        assert set(np.flatnonzero(birth == task.index)) <= set(source.train_labels[task.ids])
    assert (birth[source.train_labels[tasks[0].ids]] == 0).all()


@UNTIMED
@given(cases())
def test_leftovers_are_spread_evenly_over_the_later_tasks(case: tuple[Source, StreamConfig, int]) -> None:
    source, config, seed = case
    stream = Stream.build(source, config, seed)
    last = config.tasks - 1
    for c, birth in enumerate(birth_of_classes(stream)):
        own = stream.task[source.train_labels == c]
        leftover = min(round(len(own) * config.blurry / 100), len(own) - 1)
        if birth == last:
            assert (own == -1).sum() == (leftover if config.last_leftover == "drop" else 0)
            continue
        later = np.bincount(own, minlength=config.tasks)[birth + 1 :]
        assert (own == birth).sum() == len(own) - leftover
        assert later.sum() == leftover
        assert later.max() - later.min() <= 1


@UNTIMED
@given(cases())
def test_candidates_hold_the_truth_and_only_seen_classes(case: tuple[Source, StreamConfig, int]) -> None:
    source, config, seed = case
    stream = Stream.build(source, config, seed)
    labels = source.train_labels
    assert stream.candidates[np.arange(len(labels)), labels].all()
    birth = birth_of_classes(stream)
    for row, t, label in zip(stream.candidates, stream.task, labels, strict=True):
        if t == -1:
            assert row.sum() == 1
            continue
        assert (birth[row] <= t).all()
        assert row.sum() >= min(config.min_candidates, stream.seen(int(t)))
        if config.flip_scope == "superclass" and config.min_candidates == 1:
            assert source.superclasses is not None
            assert (source.superclasses[row] == source.superclasses[label]).all()


@UNTIMED
@given(cases())
def test_a_task_is_the_stream_seen_in_order_of_arrival(case: tuple[Source, StreamConfig, int]) -> None:
    source, config, seed = case
    stream = Stream.build(source, config, seed)
    assert len(stream) == config.tasks == len(stream.classes_per_task)
    np.testing.assert_array_equal(stream.arrival[stream.class_order], np.arange(source.classes))
    for t in range(len(stream)):
        task = stream.make_task(t, source.train_samples)
        assert (task.index, task.old, task.seen) == (t, sum(stream.classes_per_task[:t]), stream.seen(t))
        assert task.candidates.shape == (len(task.ids), task.seen)
        np.testing.assert_array_equal(task.samples, source.train_samples[task.ids])
        restored = np.zeros((len(task.ids), source.classes), bool)
        for column in range(task.seen):
            restored[:, stream.class_order[column]] = task.candidates[:, column]
        np.testing.assert_array_equal(restored, stream.candidates[task.ids])


def test_a_task_has_no_field_for_the_truth() -> None:
    given = {"index", "ids", "samples", "candidates", "old", "seen", "known", "votes", "certain"}
    assert {field.name for field in fields(Task)} == given


@pytest.mark.parametrize(("classes", "tasks"), [(100, 10), (100, 7), (10, 3), (5, 5), (8, 1)])
@pytest.mark.parametrize("order", ["random", "natural"])
def test_task_sizes_differ_by_at_most_one_larger_first(classes: int, tasks: int, order: str) -> None:
    source = make_source(np.repeat(np.arange(classes), 2))
    stream = Stream.build(source, StreamConfig(tasks=tasks, order=order), seed=0)
    more = classes % tasks
    assert stream.classes_per_task == (classes // tasks + 1,) * more + (classes // tasks,) * (tasks - more)
    np.testing.assert_array_equal(np.sort(stream.class_order), np.arange(classes))
    assert (stream.class_order == np.arange(classes)).all() == (order == "natural")


@pytest.mark.parametrize("seed", range(3))
def test_superclass_order_brings_two_unseen_superclasses_a_task(seed: int) -> None:
    stream = Stream.build(CIFAR, StreamConfig(order="superclass"), seed)
    assert stream.classes_per_task == (10,) * 10
    assert CIFAR.superclasses is not None
    met: set[int] = set()
    for t in range(10):
        here = set(CIFAR.superclasses[stream.class_order[10 * t : 10 * (t + 1)]].tolist())
        assert len(here) == 2
        assert not here & met
        met |= here


def test_superclass_order_deals_a_remainder_to_the_first_tasks() -> None:
    stream = Stream.build(CIFAR, StreamConfig(order="superclass", tasks=6), seed=0)
    assert stream.classes_per_task == (20, 20, 15, 15, 15, 15)


@pytest.mark.parametrize("blurry", [0.0, 10.0, 30.0])
def test_cifar_counts_and_candidates_are_those_of_the_paper(blurry: float) -> None:
    q = 0.2
    stream = Stream.build(CIFAR, StreamConfig(blurry=blurry, q=q), seed=0)
    rows = stream.summary(CIFAR.train_labels)
    leftover = round(5 * blurry)
    assert [row.new for row in rows] == [10 * (500 - leftover)] * 9 + [5000]
    for t, row in enumerate(rows):
        expected_old = sum(10 * leftover / (9 - birth) for birth in range(t))
        assert row.old == pytest.approx(expected_old, abs=10 * t)
        assert row.samples == row.new + row.old
        negatives = stream.seen(t) - 1
        standard_error = np.sqrt(q * (1 - q) * negatives / row.samples)
        assert row.mean_candidates == pytest.approx(1 + q * negatives, abs=5 * standard_error)
    alone = (1 - q) ** 9
    assert rows[0].singletons / rows[0].samples == pytest.approx(
        alone, abs=5 * np.sqrt(alone * (1 - alone) / rows[0].samples)
    )


@pytest.mark.parametrize("last_leftover", ["keep", "drop"])
def test_last_leftover(last_leftover: str) -> None:
    stream = Stream.build(CIFAR, StreamConfig(blurry=30.0, last_leftover=last_leftover), seed=0)
    kept = stream.summary(CIFAR.train_labels)[-1].new
    assert kept == (5000 if last_leftover == "keep" else 3500)
    assert (stream.task == -1).sum() == 5000 - kept


def test_which_tasks_get_the_remainder_is_random() -> None:
    """Fifty over nine tasks is five or six; no later task is favoured over the others for all classes of a task."""
    stream = Stream.build(CIFAR, StreamConfig(blurry=10.0), seed=0)
    first = stream.class_order[:10]
    counts = np.stack([np.bincount(stream.task[CIFAR.train_labels == c], minlength=10)[1:] for c in first])
    assert set(counts.ravel().tolist()) == {5, 6}
    assert len({tuple(row) for row in counts.tolist()}) > 3


def test_banded_candidates_point_to_classes_that_arrived_just_before() -> None:
    stream = Stream.build(CIFAR, StreamConfig(candidates="banded"), seed=0)
    place = stream.arrival[CIFAR.train_labels]
    rows, columns = np.nonzero(stream.candidates)
    lag = place[rows] - stream.arrival[columns]
    assert lag.min() == 0
    assert lag.max() == 5
    rates = np.bincount(lag)[1:] / [(place >= k).sum() for k in range(1, 6)]
    np.testing.assert_allclose(rates, [0.5, 0.4, 0.3, 0.2, 0.1], atol=5 * np.sqrt(0.25 / 47_000))


def test_flip_scope_superclass_keeps_flips_at_home() -> None:
    stream = Stream.build(CIFAR, StreamConfig(order="superclass", flip_scope="superclass", q=0.2), seed=0)
    assert CIFAR.superclasses is not None
    rows, columns = np.nonzero(stream.candidates)
    assert (CIFAR.superclasses[columns] == CIFAR.superclasses[CIFAR.train_labels[rows]]).all()
    # Whole superclasses arrive together, so each sample has four possible false positives.
    assert stream.candidates.sum(1).mean() == pytest.approx(1.8, abs=5 * np.sqrt(4 * 0.2 * 0.8 / 50_000))


@settings(UNTIMED, max_examples=30)
@given(cases(), st.floats(0, 0.9))
def test_q_changes_nothing_but_the_candidates(case: tuple[Source, StreamConfig, int], q: float) -> None:
    source, config, seed = case
    one, other = Stream.build(source, config, seed), Stream.build(source, replace(config, q=q), seed)
    np.testing.assert_array_equal(one.class_order, other.class_order)
    np.testing.assert_array_equal(one.task, other.task)
    if config.min_candidates == 1:
        small, large = (one, other) if config.q <= q else (other, one)
        assert (small.candidates <= large.candidates).all()


def test_same_seed_same_stream_other_seed_other_stream() -> None:
    config = StreamConfig()
    one, again, other = (Stream.build(CIFAR, config, seed) for seed in (0, 0, 1))
    assert one.sha256() == again.sha256()
    for name in ("class_order", "task", "candidates"):
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    assert one.sha256() != other.sha256()


def test_golden_stream() -> None:
    """Published numbers rest on these arrays: if this fails, streams changed, and so did every result."""
    stream = Stream.build(CIFAR, StreamConfig(), seed=0)
    assert stream.sha256() == "0bcde07f3614f1d460155ca98e242a4268d17ab8bda3069246b33b6c4cf2557b"


def test_real_digits() -> None:
    digits = load_digits()
    source = make_source(digits.target, samples=digits.images[:, None].astype(np.uint8))
    stream = Stream.build(source, StreamConfig(tasks=5, blurry=30.0, q=0.2), seed=4)
    assert stream.classes_per_task == (2,) * 5
    assert sum(row.samples for row in stream.summary(source.train_labels)) == 1797
    task = stream.make_task(4, source.train_samples)
    assert task.samples.shape[1:] == (1, 8, 8)
    assert task.candidates.shape[1] == 10


# Bad values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tasks", 0),
        ("tasks", 2.5),
        ("blurry", -1.0),
        ("blurry", 100.0),
        ("blurry", float("nan")),
        ("q", -0.1),
        ("q", 1.0),
        ("q", float("nan")),
        ("miss", -0.1),
        ("miss", 1.0),
        ("miss", float("nan")),
        ("min_candidates", 0),
        ("min_candidates", 3),
        ("candidates", "unifrom"),
        ("order", "randm"),
        ("last_leftover", "keeps"),
        ("flip_scope", "sen"),
    ],
)
def test_a_bad_value_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^stream\.{key} (must|takes) ") as caught:
        StreamConfig(**{key: value})  # type: ignore[arg-type]
    if isinstance(value, str):
        assert "Did you mean" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (StreamConfig(tasks=7), r"stream\.tasks is 7, but 'toy' has 6 classes: choose at most 6"),
        (StreamConfig(tasks=2, order="superclass"), r"stream\.order is 'superclass', but 'toy' has no superclasses"),
        (StreamConfig(tasks=2, flip_scope="superclass"), r"stream\.flip_scope is 'superclass', but 'toy' has no"),
    ],
)
def test_settings_that_do_not_fit_the_source(config: StreamConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Stream.build(make_source(np.repeat(np.arange(6), 3)), config, seed=0)


def test_more_tasks_than_superclasses() -> None:
    with pytest.raises(ConfigError, match=r"stream\.tasks is 21, but 'toy' has 20 superclasses"):
        Stream.build(CIFAR, StreamConfig(tasks=21, order="superclass"), seed=0)


def test_a_class_without_samples_is_named() -> None:
    with pytest.raises(DataError, match="'class 1' of 'toy' has no training samples"):
        Stream.build(make_source(np.array([0, 0, 2, 2])), StreamConfig(tasks=2), seed=0)


def test_a_class_without_test_samples_is_refused_before_anything_is_learnt() -> None:
    """Its task could not be scored; of those set apart for validation every class has some."""
    whole = make_source(np.arange(40) % 4)
    lacking = replace(whole, test_samples=whole.test_samples[:2], test_labels=whole.test_labels[:2])
    with pytest.raises(DataError, match=r"'class 2' of 'toy' has no test samples.*--set data\.validation=0\.1"):
        Stream.build(lacking, StreamConfig(tasks=4), seed=0)
    assert len(Stream.build(lacking.validating(0.1), StreamConfig(tasks=4), seed=0)) == 4


def test_samples_of_another_source_are_refused() -> None:
    stream = Stream.build(make_source(np.repeat(np.arange(4), 5)), StreamConfig(tasks=2), seed=0)
    with pytest.raises(DataError, match="built for 20 samples of 'toy', but 50000"):
        stream.make_task(0, CIFAR.train_samples)
    with pytest.raises(IndexError, match="task 2 of a stream of 2"):
        stream.make_task(2, CIFAR.train_samples)
