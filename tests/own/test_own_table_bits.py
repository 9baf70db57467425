"""Tables of features: who learns from what, and the same bits however a model came to be."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from ipll.cli.own_output import class_lines, evidence_lines
from ipll.data.stream import Task
from ipll.engine.state import part_of
from ipll.errors import ConfigError, Interrupted
from ipll.estimator import IncrementalClassifier
from ipll.families.classifier.stacked import Stacked
from ipll.families.side_by_side import Members, set_keys
from ipll.learner import Learner, Position
from ipll.networks.network import MembersHead, ModelConfig
from ipll.own import Model, Samples, from_arrays
from ipll.own.defaults import Facts, choose, configure
from ipll.progress import Silent

X, Y = load_iris(return_X_y=True)
QUICK: dict[str, Any] = {"train.epochs": 6, "train.batch_size": 32, "model.width": 16, "train.threads": 1}


def batch(t: int) -> Samples:
    rows = np.arange(t, len(X), 2)
    sets = [sorted({int(Y[i]), int(i) % 3}) for i in rows]
    return from_arrays(X[rows], sets, ids=[f"{t}:{i}" for i in rows])


@cache
def fitted() -> Model:
    return Model.fit(batch(0), device="cpu", settings=QUICK)


class Stop(Silent):
    """Sends this process a signal at the end of an epoch, where it is to; and tells which epochs ended."""

    def __init__(self, after: int = 0) -> None:
        self.after, self.seen = after, []  # type: tuple[int, list[int]]

    def epoch(self, position: Position, record: dict[str, Any]) -> None:
        self.seen.append(position.epoch)
        if position.epoch == self.after:
            os.kill(os.getpid(), signal.SIGINT)


def same(left: Model, right: Model) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]), name
    assert np.array_equal(left.records.confidence, right.records.confidence)
    assert (left.temperature, left.far) == (right.temperature, right.far)


def learner(rows: int = 40, leave_out: str = "samples") -> tuple[Learner, Task]:
    given = QUICK | {"train.epochs": 1, "model.members": 4, "model.folds": 4, "model.leave_out": leave_out}
    config = configure("pgdr/tables", 0, choose(Facts("features", rows, 3, 0, 4, False), given), given)
    sets = np.eye(3, dtype=np.bool_)[np.arange(rows) % 3]
    sets[::2, 0] = True
    task = Task(
        index=0, ids=np.arange(rows), samples=np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32),
        candidates=sets, old=0, seen=3, known=np.zeros(3, np.bool_),
    )  # fmt: skip
    made = Learner(config, channels=4, classes=3, mean=(0.0,) * 4, std=(1.0,) * 4, device=torch.device("cpu"))
    return made, task


@pytest.mark.parametrize("leave_out", ["samples", "sets"])
def test_no_member_learns_from_its_own_fold(leave_out: str) -> None:
    """The targets that a member's loss sees are empty for each sample of its fold, and full for all others."""
    made, task = learner(leave_out=leave_out)
    both = leave_out == "sets"  # two folds of either kind
    members, checked = part_of(made.ctx.parts, Members), []
    assert members is not None
    plain = members.reshape

    def watched(out: Any, targets: Any, batch: Any) -> Any:
        shaped, each = plain(out, targets, batch)
        pool = made.ctx.pool
        ids, sets = pool.ids[batch.rows], pool.candidates[batch.rows]
        mass = each.view(len(ids), members.members, -1).sum(2)
        folds = [members.fold(keys) for keys in (ids, set_keys(ids, sets))]
        own = torch.stack([folds[m // members.folds % members.kinds] == m % members.folds for m in range(4)], dim=1)
        assert torch.equal(mass == 0, own)
        assert torch.allclose(mass[~own], torch.tensor(float(members.members)))
        head = made.ctx.network.head
        assert isinstance(head, MembersHead)
        assert torch.equal(shaped["weak"].shaped, head.each(out["weak"].features).flatten(0, 1))
        checked.append(len(ids))
        return shaped, each

    assert (members.folds, members.kinds) == ((2, 2) if both else (4, 1))
    members.reshape = watched  # type: ignore[method-assign]
    for _ in made.fit(task):
        pass
    assert sum(checked) >= 40


def test_samples_with_the_same_candidates_share_a_number_whatever_classes_come() -> None:
    sets = torch.rand(300, 6, generator=torch.Generator().manual_seed(0)) < 0.4
    ids = torch.arange(300) + 10**12
    keys, wider = set_keys(ids, sets), set_keys(ids, torch.cat([sets, torch.zeros(300, 2, dtype=torch.bool)], dim=1))
    assert torch.equal(keys, wider)
    several = sets.sum(1) > 1
    assert torch.equal(keys[~several], ids[~several])
    alike = (sets[several][:, None] == sets[several]).all(2)
    assert torch.equal(keys[several][:, None] == keys[several], alike)


def test_one_stopped_after_the_last_epoch_still_knows_how_many_sets_have_missed(tmp_path: Path) -> None:
    """Nothing is learnt any more then: what an epoch begins with, the task's end must find by itself."""
    settings = QUICK | {"disambiguation.miss_rate": 0.1}
    with pytest.raises(Interrupted):
        Model.fit(batch(0), device="cpu", settings=settings, pending=tmp_path / "a", reporter=Stop(6))
    resumed = Model.fit(batch(0), device="cpu", settings=settings, pending=tmp_path / "a", reporter=(rest := Stop()))
    assert rest.seen == []
    same(resumed, Model.fit(batch(0), device="cpu", settings=settings))


def test_a_stopped_fit_by_votes_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    voted = replace(batch(0), votes=(batch(0).candidates * np.arange(1, 1 + len(batch(0).names))).astype(np.float32))
    with pytest.raises(Interrupted):
        Model.fit(voted, device="cpu", settings=QUICK, pending=tmp_path / "a", reporter=Stop(4))
    same(
        Model.fit(voted, device="cpu", settings=QUICK, pending=tmp_path / "a"),
        Model.fit(voted, device="cpu", settings=QUICK),
    )


def test_what_teachers_say_of_all_members_at_once_weighs_as_many_times() -> None:
    made, _ = learner()
    members = part_of(made.ctx.parts, Members)
    assert members is not None
    assert members.weights() == {"kd": 4.0, "kd_auxiliary": 4.0}


def test_a_stopped_fit_and_update_go_on_to_the_same_bits(tmp_path: Path) -> None:
    rest = Stop()
    with pytest.raises(Interrupted):
        Model.fit(batch(0), device="cpu", settings=QUICK, pending=tmp_path / "a", reporter=Stop(4))
    same(Model.fit(batch(0), device="cpu", settings=QUICK, pending=tmp_path / "a", reporter=rest), fitted())
    assert rest.seen == [5, 6]
    with pytest.raises(Interrupted):
        fitted().update(batch(1), device="cpu", pending=tmp_path / "b", reporter=Stop(4))
    same(fitted().update(batch(1), device="cpu", pending=tmp_path / "b"), fitted().update(batch(1), device="cpu"))


def test_a_stopped_fit_that_leaves_out_sets_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Labels that are found outside a set join it at the end: who had left it out is remembered."""
    settings = QUICK | {"model.leave_out": "sets", "disambiguation.miss_rate": 0.2}
    whole = Model.fit(batch(0), device="cpu", settings=settings)
    for epoch in (4, 6):
        with pytest.raises(Interrupted):
            Model.fit(batch(0), device="cpu", settings=settings, pending=tmp_path / str(epoch), reporter=Stop(epoch))
        same(Model.fit(batch(0), device="cpu", settings=settings, pending=tmp_path / str(epoch)), whole)
    whole.save(tmp_path / "m")
    same(Model.load(tmp_path / "m").update(batch(1), device="cpu"), whole.update(batch(1), device="cpu"))


def test_a_model_read_back_says_and_learns_the_same(tmp_path: Path) -> None:
    fitted().save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    one, other = (model.predict(from_arrays(X), device="cpu") for model in (fitted(), again))
    assert np.array_equal(one.probabilities, other.probabilities)
    assert np.array_equal(one.unlike, other.unlike)
    assert again.stacking() == fitted().stacking()
    same(again.update(batch(1), device="cpu"), fitted().update(batch(1), device="cpu"))


def test_info_tells_by_what_it_classifies_and_how_many_labels_are_sure() -> None:
    model = fitted()
    used, labels = evidence_lines(model)
    found = model.stacking()
    assert found is not None
    assert used.startswith(f"Classified by {found.used}: ")
    assert f"{found.head:.3f} by the linear head, {found.prototypes:.3f} by prototypes" in used
    sure = int((model.records.confidence >= 0.95).sum())
    assert labels.startswith(f"Labels of all samples: {sure:,} sure, ")


def test_a_class_that_nothing_settled_on_is_named() -> None:
    names = [["a", "ghost"] if i == 0 else ["a"] if Y[i] == 0 else ["b"] for i in range(100)]
    model = Model.fit(from_arrays(X[:100], names), device="cpu", settings=QUICK)
    said = "\n".join(class_lines(model))
    assert model.names.index("ghost") not in model.records.label
    assert "never settled on, and so never predicted: ghost (1)." in said
    assert not model.known[model.names.index("ghost")]


def test_classes_that_are_waiting_are_told_from_those_that_hardly_are() -> None:
    """Of ninety samples with two candidates each, 28 instead of 30 on a class is what the draw of candidates does."""
    sets = [(0, 1), (1, 2), (2, 0)]
    model = Model.fit(
        from_arrays(X[:90], [[str(c) for c in sets[i % 3]] for i in range(90)]), device="cpu", settings=QUICK
    )
    for counts, here, other in (((35, 28, 27), "hardly fewer", "Not yet"), ((50, 30, 10), "since fewer", "An update")):
        label = np.repeat(np.arange(3), counts)
        records = replace(model.records, label=label)
        text = "\n".join(class_lines(replace(model, records=records, known=np.array([True, True, False]))))
        assert f"{here} settled on it than if each had taken one of its candidates at random: 2 (" in text
        assert other not in text


def test_without_evidence_the_head_decides() -> None:
    model = Model.fit(batch(0), device="cpu", settings=QUICK | {"model.members": 1, "model.folds": 0})
    assert model.stacking() is None
    assert Stacked.needs == {"prototypes"}
    assert evidence_lines(model) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"members": 2}, "needs model.backbone=wide-deep"),
        ({"inputs": "quantiles"}, "needs model.backbone=wide-deep"),
        ({"backbone": "wide-deep", "members": 4, "head": "cosine"}, "model.head=linear"),
        ({"backbone": "wide-deep", "members": 4, "folds": 5}, r"at most model\.members \(4\)"),
        ({"backbone": "wide-deep", "members": 4, "folds": 1}, "at least 2"),
    ],
)
def test_members_need_their_backbone(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelConfig(**wrong).check_members()


def test_the_estimator_takes_the_default_for_tables() -> None:
    model = IncrementalClassifier(epochs=4).fit(X[::2], Y[::2])
    assert model.score(X[1::2], Y[1::2]) > 0.8
    assert np.allclose(model.predict_proba(X).sum(1), 1, atol=1e-5)
