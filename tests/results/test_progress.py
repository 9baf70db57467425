"""Progress of a run whose later tasks have fewer epochs: shares that only grow and end at 1, each task's own epochs."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

import ipll
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from ipll.learner import Position
from ipll.paper.campaigns import worker
from ipll.progress import LiveProgress, Plan

FEWER = {"train.epochs": 3, "train.later_epochs": 1, "data.validation": 0.3}


class Watched(LiveProgress):
    """Writes down what it shows."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), force_terminal=True, width=120))
        self.shown: list[tuple[Position, float, str]] = []

    def step(self, position: Position, steps: int, phases: int) -> None:
        super().step(position, steps, phases)
        task = self.bar.tasks[0]
        self.shown.append((position, task.completed, task.description))


class Claim:
    """A cell's claim that nobody contests."""

    progress: dict[str, Any]

    def check(self) -> None: ...


class WatchedWorker(worker._Progress):
    def __init__(self) -> None:
        super().__init__(Claim())  # type: ignore[arg-type]
        self.shown: list[dict[str, Any]] = []

    def _show(self, position: Position, steps: int, phases: int) -> None:
        super()._show(position, steps, phases)
        self.shown.append(dict(self.claim.progress))


@pytest.mark.parametrize("method", ["pgdr", "proden+ancl"])
def test_the_share_grows_and_ends_at_1(method: str, quick: dict[str, Any]) -> None:
    reporter = Watched()
    ipll.run("digits", method, reporter=reporter, **quick | FEWER)
    shares = [share for _, share, _ in reporter.shown]
    assert all(before <= after for before, after in pairwise(shares))
    assert shares[-1] == pytest.approx(1.0)
    texts = " ".join(text for _, _, text in reporter.shown)
    epochs = set(re.findall(r"task (\d)/3 · epoch (\d/\d)", texts))
    assert epochs == {("1", "1/3"), ("1", "2/3"), ("1", "3/3"), ("2", "1/1"), ("3", "1/1")}
    assert "task 2/3 · epoch 1/1 · validation accuracy " in texts
    assert "task 3/3 · prototypes, memory and validation · validation accuracy " in texts


def test_a_task_counts_by_its_samples_times_its_epochs() -> None:
    config = resolve("digits", "proden", overrides={"train.epochs": 6, "train.later_epochs": 2, "stream.tasks": 2})
    stream = Stream.build(load_source("digits"), config.stream, 0)
    first, second = (int((stream.task == t).sum()) for t in range(2))
    plan = Plan.of_run(config, stream, [])
    assert plan.share(Position(1)) == pytest.approx(6 * first / (6 * first + 2 * second))
    assert plan.share(Position(1, 0, 1)) == pytest.approx((6 * first + second) / (6 * first + 2 * second))
    assert plan.share(Position(2)) == 1.0


@pytest.mark.parametrize("method", ["pgdr", "proden+ancl"])
def test_a_cells_progress(method: str, quick: dict[str, Any]) -> None:
    reporter = WatchedWorker()
    ipll.run("digits", method, reporter=reporter, **quick | FEWER)
    shares = [at["share"] for at in reporter.shown]
    assert all(before <= after for before, after in pairwise(shares))
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {(at["task"], at["epochs"]) for at in reporter.shown} == {(1, 3), (2, 1), (3, 1)}
    assert all(at["epoch"] <= at["epochs"] for at in reporter.shown)


def test_what_comes_after_an_end_is_shown_too() -> None:
    """Photos are embedded, then a model learns, then it is saved: each with an end of its own."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    reporter, shown = LiveProgress(console), []
    plan = Plan("pgdr", samples=[10], epochs=[2])
    for show in (
        lambda: reporter.photos(5, 10, 1.0),
        lambda: reporter.begin(plan, Position(0)),
        lambda: reporter.stage("the model is saved"),
    ):
        show()
        shown.append(reporter.bar.live.is_started)
        reporter.end()
        assert not reporter.bar.live.is_started
    assert shown == [True, True, True]
