"""A fit or an update that is stopped, and gone on with by the same call."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from ipll.errors import Interrupted
from ipll.learner import Position
from ipll.own import Model, Samples, from_arrays
from ipll.progress import Plan, Silent

X, Y = load_iris(return_X_y=True)
EPOCHS = {"train.epochs": 6, "train.batch_size": 16}


def batch(t: int) -> Samples:
    rows = np.arange(t, len(X), 2)
    sets = [sorted({int(Y[i]), int(i) % 3}) for i in rows]
    return from_arrays(X[rows], sets, ids=[f"{t}:{i}" for i in rows])


class StopAfter(Silent):
    """Sends this process a signal at the end of an epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.seen = epochs, []  # type: tuple[int, list[int]]

    def epoch(self, position: Position, record: dict[str, Any]) -> None:
        self.seen.append(position.epoch)
        if position.epoch == self.epochs:
            os.kill(os.getpid(), signal.SIGINT)


class Told(Silent):
    """Writes down how many epochs there are to be, and those that ended."""

    def __init__(self) -> None:
        self.epochs, self.seen = 0, []  # type: tuple[int, list[int]]

    def begin(self, plan: Plan, position: Position) -> None:
        self.epochs = plan.epochs[0]

    def epoch(self, position: Position, record: dict[str, Any]) -> None:
        self.seen.append(position.epoch)


def assert_same(left: Model, right: Model) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]), name
    for name, column in vars(left.records).items():
        assert np.array_equal(column, getattr(right.records, name)), name
    assert (left.temperature, left.far) == (right.temperature, right.far)


def fit(**more: Any) -> Model:
    return Model.fit(batch(0), device="cpu", settings=EPOCHS, **more)


@pytest.fixture(scope="module")
def first() -> Model:
    return fit()


@pytest.mark.parametrize("method", ["pgdr", "proden+ancl", "pgdr/robust"])
def test_a_fit_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = fit(method=method)
    for epochs in (2, 5):  # stopped twice
        with pytest.raises(Interrupted, match="The same command goes on"):
            fit(method=method, pending=tmp_path / "p", reporter=StopAfter(epochs))
    rest = StopAfter(0)
    assert_same(fit(method=method, pending=tmp_path / "p", reporter=rest), whole)
    assert rest.seen == [6]


def test_an_update_goes_on_to_the_same_bits(first: Model, tmp_path: Path) -> None:
    whole = first.update(batch(1), device="cpu")
    with pytest.raises(Interrupted):
        first.update(batch(1), device="cpu", pending=tmp_path, reporter=StopAfter(3))
    assert_same(first.update(batch(1), device="cpu", pending=tmp_path), whole)


def test_later_updates_have_epochs_of_their_own(tmp_path: Path) -> None:
    """The first fit is the first task. Progress counts by them, also where an update is gone on with."""
    settings = EPOCHS | {"train.later_epochs": 4}
    told = Told()
    model = Model.fit(batch(0), device="cpu", settings=settings, reporter=told)
    assert (told.epochs, told.seen) == (6, [1, 2, 3, 4, 5, 6])
    whole = model.update(batch(1), device="cpu", reporter=told)
    assert (told.epochs, told.seen[6:]) == (4, [1, 2, 3, 4])
    with pytest.raises(Interrupted):
        model.update(batch(1), device="cpu", pending=tmp_path, reporter=StopAfter(2))
    rest = Told()
    assert_same(model.update(batch(1), device="cpu", pending=tmp_path, reporter=rest), whole)
    assert (rest.epochs, rest.seen[-1]) == (4, 4)


def test_what_belongs_to_other_samples_or_settings_is_not_gone_on_with(first: Model, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(pending=tmp_path / "p", reporter=StopAfter(3))
    other = from_arrays(X[::2] + 0.01, [sorted({int(Y[i]), int(i) % 3}) for i in range(0, len(X), 2)])
    seen = StopAfter(0)
    Model.fit(other, device="cpu", settings=EPOCHS, pending=tmp_path / "p", reporter=seen)
    assert seen.seen == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "p").exists()


def test_checkpoints_are_kept_as_often_as_the_settings_say(tmp_path: Path) -> None:
    """As after a crash: nothing was caught, and the last checkpoint is gone on with."""

    class Crash(Silent):
        def epoch(self, position: Position, record: dict[str, Any]) -> None:
            if position.epoch == 4:
                raise RuntimeError("the machine is gone")

    settings = EPOCHS | {"train.checkpoint_seconds": 0}
    with pytest.raises(RuntimeError):
        Model.fit(batch(0), device="cpu", settings=settings, pending=tmp_path / "p", reporter=Crash())
    rest = StopAfter(0)
    Model.fit(batch(0), device="cpu", settings=settings, pending=tmp_path / "p", reporter=rest)
    assert rest.seen[0] == 4
