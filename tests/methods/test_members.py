"""Networks side by side in the loop: where their buffers lie, what they learn in each pass, and what goes with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch import Tensor

from ipll.config import resolve
from ipll.data.stream import Task
from ipll.engine.state import part_of
from ipll.families.auxiliary.contrastive import Contrastive
from ipll.families.side_by_side import Members
from ipll.learner import Learner
from ipll.networks.wide_deep import WideDeep

X, Y = load_iris(return_X_y=True)
SEVERAL: dict[str, Any] = {
    "model.backbone": "wide-deep", "model.head": "linear", "model.members": 4, "model.folds": 2, "model.width": 8,
    "augment.weak": "identity", "augment.strong": "noise", "train.epochs": 2, "train.batch_size": 30,
}  # fmt: skip


def learner_of(method: str, **settings: Any) -> Learner:
    config = resolve("digits", method, overrides=SEVERAL | {k.replace("__", "."): v for k, v in settings.items()})
    return Learner(config, channels=4, classes=4, mean=tuple(X.mean(0)), std=tuple(X.std(0)))


def task(index: int = 0) -> Task:
    """All irises, each with one false candidate."""
    sets = np.eye(3, dtype=bool)[Y] | np.eye(3, dtype=bool)[(Y + 1) % 3]
    ids = 150 * index + np.arange(150)
    return Task(index, ids, X.astype(np.float32), sets, old=index, seen=3)


def fit(learner: Learner, learnt: Task) -> None:
    for _ in learner.fit(learnt):
        pass


def test_folds_lie_where_the_samples_are() -> None:
    """So that a fit that was stopped goes on on a GPU, which no test here has."""
    members = Members(4, 2)
    members.build(SimpleNamespace(device=torch.device("meta")))  # type: ignore[arg-type]
    assert members.dealt.device.type == "meta"


def test_a_key_encoder_sees_features_as_the_network_does() -> None:
    learner = learner_of("pico", model__inputs="quantiles")
    fit(learner, task())
    contrastive = part_of(learner.ctx.parts, Contrastive)
    assert contrastive is not None
    own, key = learner.network.backbone, contrastive.encoder.backbone
    assert isinstance(own, WideDeep)
    assert isinstance(key, WideDeep)
    assert not torch.equal(own.knots, torch.linspace(-2, 2, own.knots.shape[1]).repeat(4, 1))
    assert torch.equal(own.knots, key.knots)
    assert torch.equal(own.normal, key.normal)


def test_four_passes_over_a_batch_learn_the_same_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    reshape = Members.reshape

    def watch(self: Members, out: Any, targets: Tensor, batch: Any) -> Any:
        found = reshape(self, out, targets, batch)
        seen.append(found[1].clone())
        return found

    learner = learner_of("pgdr/tables", update__kind="c-flat")
    fit(learner, task())
    monkeypatch.setattr(Members, "reshape", watch)
    fit(learner, task(1))
    assert len(seen) > 4
    for first in range(0, len(seen), 4):
        assert all(torch.equal(seen[first], later) for later in seen[first + 1 : first + 4])
