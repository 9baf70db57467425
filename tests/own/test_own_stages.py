"""Whatever a fit or an update is about, Ctrl-C ends it soon, and what was there stays whole."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.datasets import load_iris

from ipll import progress
from ipll.errors import Interrupted
from ipll.own import Model, Samples, fit_folder, from_arrays, update_folder
from ipll.own.defaults import REPLAYED, Facts, choose_again
from ipll.own.work import SAVING
from ipll.progress import Listener, LiveProgress

X, Y = load_iris(return_X_y=True)
QUICK: dict[str, Any] = {"train.epochs": 3, "train.batch_size": 32, "model.width": 16, "train.threads": 1}
BEFORE = ("trying settings", "preparing the samples", "how sure")
SAVED = "saving the model"


def batch(t: int) -> Samples:
    rows = np.arange(t, len(X), 2)
    return from_arrays(X[rows], [sorted({int(Y[i]), int(i) % 3}) for i in rows], ids=[f"{t}:{i}" for i in rows])


class StopsAt(Listener):
    """Sends a signal as a stage begins; writes down what it was told."""

    def __init__(self, stage: str, number: int = signal.SIGINT) -> None:
        self.at, self.number = stage, number
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.ended = 0

    def stage(self, words: str) -> None:
        self.stages.append(words)
        if words.startswith(self.at):
            os.kill(os.getpid(), self.number)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("stage", BEFORE)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fit_ends_at_every_stage(tmp_path: Path, stage: str, number: int) -> None:
    listener, handler = StopsAt(stage, number), signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        fit_folder(tmp_path / "model", batch(0), device="cpu", settings=QUICK, reporter=listener)
    assert caught.value.signal == number
    assert listener.stages[-1].startswith(stage)
    assert listener.ended
    assert signal.getsignal(number) == handler
    assert ("goes on from here" in str(caught.value)) == (tmp_path / "model" / ".pending").exists()
    assert not (tmp_path / "model" / "model.json").exists()


@pytest.mark.parametrize("stage", BEFORE[1:])  # settings are tried for a fit only
def test_an_update_ends_at_every_stage_and_leaves_the_model(tmp_path: Path, stage: str, snapshot: Any) -> None:
    fit_folder(tmp_path, batch(0), device="cpu", settings=QUICK)
    before = snapshot(tmp_path)
    with pytest.raises(Interrupted):
        update_folder(tmp_path, batch(1), device="cpu", reporter=StopsAt(stage))
    after = snapshot(tmp_path)
    assert {name: content for name, content in after.items() if not name.startswith(".pending")} == before


def test_what_is_learnt_is_saved_to_the_end(tmp_path: Path) -> None:
    listener = StopsAt(SAVED)
    fit_folder(tmp_path, batch(0), device="cpu", settings=QUICK, reporter=listener)
    assert [words for words in listener.stages if words.startswith(BEFORE)] == listener.stages[:-1]
    assert listener.notes == [SAVING]
    assert Model.load(tmp_path).updates == 1


def test_a_log_names_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SOON", 0)
    log = io.StringIO()
    fit_folder(tmp_path, batch(0), device="cpu", settings=QUICK, reporter=LiveProgress(Console(file=log, width=200)))
    lines = log.getvalue().splitlines()
    learning = "pgdr/tables: 75 samples, 3 classes: "
    trials = [f"trying settings on 75 samples: {number} of 4" for number in (1, 2, 3, 4)]
    assert lines[:5] == [*trials, "preparing the samples"]
    assert lines[5:7] == [f"{learning}prototypes and memory", f"{learning}how sure the labels are"]
    assert lines[7].startswith(f"{learning}3 epochs")
    assert lines[8:] == [f"{learning}{SAVED}"]


def test_only_a_large_memory_is_replayed_in_part() -> None:
    config = Model.fit(batch(0), device="cpu", settings=QUICK).config
    sizes = ((100, REPLAYED, REPLAYED + 100), (100, 90_000, REPLAYED + 100), (50_000, 90_000, 100_000))
    for new, kept, gone_through in sizes:
        samples = from_arrays(np.zeros((new, 4), np.float32), np.ones((new, 2), bool), ["a", "b"])
        facts = Facts.of(samples, 2, torch.device("cpu"), kept=kept)
        assert facts.samples == gone_through
        chosen = {choice.setting: choice.value for choice in choose_again(config, facts, {})}
        assert chosen.get("memory.replayed") == (None if kept == REPLAYED else REPLAYED)
