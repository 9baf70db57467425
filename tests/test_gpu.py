"""On a CUDA device: the same code learns, and a run that was stopped goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import ipll
from ipll.config import Config
from ipll.data.stream import Stream
from ipll.learner import Position
from ipll.results.progress import Silent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


class StopAt(Silent):
    """Asks the run to stop in the middle of its second task."""

    def begin(self, config: Config, stream: Stream, position: Position, accuracies: Sequence[float]) -> None:
        self.seen = False

    def step(self, position: Position, steps: int, phases: int) -> None:
        if position.task == 1 and position.epoch == 2 and not self.seen:
            self.seen = True
            os.kill(os.getpid(), signal.SIGINT)


def test_digits_on_the_gpu() -> None:
    result = ipll.run("digits", device="cuda")
    assert result.average_incremental_accuracy > 95
    assert result["environment"]["device"] == "cuda"


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """Momenta come back in the layout of their weights, which fused kernels insist on."""
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=tmp_path / "run", device="cuda", reporter=StopAt())
    assert ipll.resume(tmp_path / "run", device="cuda").average_incremental_accuracy > 95
