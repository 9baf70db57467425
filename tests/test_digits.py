"""Digits end to end: the expectations of the demo, and golden numbers that a change of behaviour would move."""

from __future__ import annotations

import pytest

import ipll
from ipll.config import resolve

GOLDEN = {
    "pgdr": ([97.20, 94.82, 95.28], [98.64, 99.76, 98.03]),
    "proden": ([87.41, 42.63, 23.33], [96.89, 95.67, 86.98]),
}


@pytest.mark.parametrize("method", GOLDEN)
def test_golden_accuracies_of_a_tiny_run(method: str) -> None:
    """Floating point differs a little between processors, and training amplifies it: hence a margin, in points."""
    result = ipll.run("digits", method, seed=0, train__epochs=5, stream__tasks=3)
    accuracies, pseudo_labels = GOLDEN[method]
    assert result.accuracy_per_task == pytest.approx(accuracies, abs=5.0)
    assert result["pseudo_label_accuracy_per_task"] == pytest.approx(pseudo_labels, abs=5.0)


def test_golden_stream_of_the_preset() -> None:
    stream = ipll.Stream.build(ipll.load_source("digits"), resolve("digits").stream, seed=0)
    assert stream.sha256() == "2ac38ccf94620fb6f2b2fa00bfef4a0b7947b7d0fbdf19110c2e88da76e940f3"


def test_pgdr_remembers_what_the_same_learner_without_memory_forgets() -> None:
    """The paper's claim in small: in the nineties, and far above the learner without its memory."""
    pgdr, forgetful = (ipll.run("digits", method, seed=0, train__epochs=12) for method in ("pgdr", "pgdr/no-memory"))
    assert pgdr.average_incremental_accuracy > 95
    assert pgdr.average_incremental_accuracy > forgetful.average_incremental_accuracy + 20
    assert forgetful["forgetting"] > pgdr["forgetting"] + 20
    assert min(pgdr["pseudo_label_accuracy_per_task"]) > 95
    assert min(pgdr["memory_purity_per_task"]) > 95
