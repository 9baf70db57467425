"""A forest beside the networks of a table: what axes part, trees find out, where held-out candidate sets say so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

from ipll.cli.own_output import evidence_lines
from ipll.engine.state import part_of
from ipll.families.classifier.forest import DEEPEST, Forest, grown_tree
from ipll.families.classifier.stacked import Stacked
from ipll.families.side_by_side import Members
from ipll.own import Model, Samples, export, from_arrays
from ipll.own.exporting.parts import ready

QUICK: dict[str, Any] = {"train.epochs": 30, "model.width": 32, "train.threads": 1, "augment.drop": 0.0}
QUICK |= {"model.inputs": "z-scores", "disambiguation.prior": 0.0}


def boxes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and which of four classes: by a few axis-aligned cuts, which a network blurs."""
    x = np.random.default_rng([seed, 7]).normal(size=(count, 6))
    left, up, near = x[:, 0] < -0.2, x[:, 1] > 0.3, np.abs(x[:, 2]) < 0.6
    return x, np.where(left, np.where(up, 0, np.where(near, 1, 2)), np.where(near, np.where(up, 3, 0), 1 + up))


def ambiguous(x: np.ndarray, y: np.ndarray, names: str = "abcd", ids: str = "row") -> Samples:
    rng = np.random.default_rng(len(x))
    sets = [[name for k, name in enumerate(names) if k == label or rng.random() < 0.25] for label in y]
    return from_arrays(x, sets, ids=[f"{ids} {i}" for i in range(len(x))])


@cache
def fitted(trees: int) -> Model:
    x, y = boxes(700, 0)
    return Model.fit(ambiguous(x, y), device="cpu", settings=QUICK | {"classifier.trees": trees})


def right(model: Model) -> float:
    x, y = boxes(1000, 1)
    said = model.predict(from_arrays(x), device="cpu")
    return float((np.array(said.labels) == np.array(list("abcd"))[y]).mean())


def test_where_axes_part_classes_a_forest_is_asked_and_helps() -> None:
    with_trees, without = fitted(32), fitted(0)
    assert right(with_trees) > right(without) + 0.04
    found, before = with_trees.stacking(), without.stacking()
    assert found is not None
    assert before is not None
    assert found.used.endswith("a forest")
    assert found.chosen < found.head
    assert "forest" not in before.used
    assert any(line.startswith(f"Classified by {found.used}: ") for line in evidence_lines(with_trees))
    assert with_trees.records.confidence.mean() > without.records.confidence.mean()


def test_where_a_line_parts_classes_there_is_none() -> None:
    """And then no tree is kept."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    y = np.digitize(x @ rng.normal(size=6), [-1.5, 0, 1.5])
    model = Model.fit(ambiguous(x, y), device="cpu", settings=QUICK)
    found = model.stacking()
    assert found is not None
    assert "forest" not in found.used
    assert not model.tensors["module.classifier.forest.roots"].numel()
    assert model.tensors["module.classifier.forest_weight"] == 0
    none = Model.fit(ambiguous(x, y), device="cpu", settings=QUICK | {"classifier.trees": 0})
    assert np.array_equal(none.records.confidence, model.records.confidence)


def test_labels_by_trees_are_those_that_the_memory_keeps() -> None:
    """It was chosen before them."""
    model = fitted(32)
    kept = model.tensors["module.memory.p"].argmax(1).numpy()
    assert np.array_equal(kept, model.records.label[model.tensors["module.memory.ids"].numpy()])
    truth = np.array(list("abcd"))[boxes(700, 0)[1]]
    settled, without = (np.array(one.records.labels(one.names)) == truth for one in (model, fitted(0)))
    assert settled.mean() > without.mean() + 0.01


@pytest.mark.parametrize("leave_out", ["samples", "sets"])
@pytest.mark.parametrize("sets", [["ab"], ["ab", "abc"], ["ab", "a"]])
def test_a_fold_may_hold_all_there_is(leave_out: str, sets: list[str]) -> None:
    """All samples with the same candidates lie in one fold; a single sample, too. Trees without a row say nothing."""
    x = boxes(40, 0)[0]
    for rows in (40, 1):
        given = [list(sets[i % len(sets)]) for i in range(rows)]
        settings = QUICK | {"train.epochs": 2, "model.leave_out": leave_out}
        model = Model.fit(from_arrays(x[:rows], given), device="cpu", settings=settings)
        assert np.isfinite(model.predict(from_arrays(x), device="cpu").probabilities).all()


def test_votes_leave_no_forest_not_even_an_earlier_one() -> None:
    """What members say then rests on what all have heard."""
    x, y = boxes(200, 6)
    more = ambiguous(x, y, ids="voted")
    votes = replace(more, votes=2 * more.candidates.astype(np.float32))
    for model in (fitted(32).update(votes, device="cpu"), Model.fit(votes, device="cpu", settings=QUICK)):
        found = model.stacking()
        assert found is not None
        assert "forest" not in found.used
        assert not model.tensors["module.classifier.forest.roots"].numel()


def forest_of(model: Model) -> tuple[Forest, Any]:
    learner = ready(model)
    classifier = part_of(learner.ctx.parts, Stacked)
    assert classifier is not None
    assert classifier.forest is not None
    return classifier.forest, learner


def test_trees_are_those_of_scikit_learn() -> None:
    """Shares of leaves, summed over trees; one more tree that knows nothing."""
    x, y = boxes(400, 2)
    x = x.astype(np.float32)
    forest, learner = forest_of(fitted(32))
    rows = [np.random.default_rng(t).choice(400, 400) for t in range(3)]
    forest.plant([grown_tree(x, y.astype(np.int64), rows[t], 8, 10**9, np.random.default_rng(t)) for t in range(3)])
    probe, wanted = boxes(500, 3)[0].astype(np.float32), np.full((500, 4), 1 / 4)
    for t in range(3):
        number = int(np.random.default_rng(t).integers(2**31))
        tree = DecisionTreeClassifier(max_features="sqrt", max_depth=DEEPEST, random_state=number)
        wanted += tree.fit(x[rows[t]], y[rows[t]]).predict_proba(probe)
    said = forest.says(torch.from_numpy(probe)).exp()
    assert np.allclose(said[:, :4].numpy(), wanted / 4, atol=1e-6)
    assert not said[:, 4:].any()
    assert int(learner.ctx.network.head.born.sum()) == 4


def test_a_threshold_parts_the_values_that_it_was_found_between() -> None:
    """scikit-learn's lie in float64: rounded to the upper one of two neighbours, they would part nothing."""
    low = np.float32(1e6)
    high = np.nextafter(low, np.float32(2e6))
    x = np.array([[low], [high]] * 20, np.float32)
    tree = grown_tree(x, np.tile([0, 1], 20), np.arange(40), 2, 10**9, np.random.default_rng(0))
    assert (low <= tree.threshold[0] < high).all()


def test_leaves_are_bounded() -> None:
    x, y = boxes(400, 2)
    tree = grown_tree(x.astype(np.float32), y, np.arange(400), 4, 10, np.random.default_rng(0))
    assert len(tree.values) <= 10


@pytest.mark.parametrize("leave_out", ["samples", "sets"])
def test_no_tree_learns_from_what_its_members_leave_out(monkeypatch: pytest.MonkeyPatch, leave_out: str) -> None:
    """Neither from its samples, nor from labels that members settled who learnt from them."""
    asked: list[tuple[np.ndarray, np.ndarray]] = []

    def spy(x: Any, labels: Any, rows: Any, *rest: Any) -> Any:
        asked.append((rows, labels))
        return grown_tree(x, labels, rows, *rest)

    monkeypatch.setattr("ipll.families.classifier.forest.grown_tree", spy)
    members_of: list[tuple[Members, list[torch.Tensor]]] = []
    plain = Forest.grow

    def keep(self: Forest, members: Members, settled: list[torch.Tensor], trees: int) -> None:
        members_of.append((members, settled))
        plain(self, members, settled, trees)
        assert len(asked) % members.groups == 0

    monkeypatch.setattr(Forest, "grow", keep)
    x, y = boxes(200, 0)
    given = {"train.epochs": 2, "classifier.trees": 2, "model.leave_out": leave_out}
    Model.fit(ambiguous(x, y), device="cpu", settings=QUICK | given)
    members, settled = members_of[0]
    assert members.kinds == (2 if leave_out == "sets" else 1)
    for number, (rows, labels) in enumerate(asked):
        group = number % members.groups
        kind, fold = divmod(group, members.folds)
        unseen = members.unseen(members.dealt)[:, group].numpy()
        assert unseen.any()
        assert not unseen[rows].any()
        assert np.array_equal(labels, settled[kind][:, fold].numpy())


def test_a_forest_is_kept_goes_on_and_leaves(tmp_path: Path) -> None:
    """Saved and loaded it says the same; an update with a new class grows a new one; an ONNX file has it, too."""
    model, x = fitted(32), boxes(300, 4)[0]
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    before = model.predict(from_arrays(x), device="cpu")
    assert np.array_equal(again.predict(from_arrays(x), device="cpu").probabilities, before.probabilities)
    more, y = boxes(200, 5)
    more[100:, 4] += 6  # a class of its own
    y[100:] = 4
    names = "abcdefghi"  # more than there was room for
    updated = again.update(ambiguous(more, y, names, "later"), device="cpu")
    found = updated.stacking()
    assert found is not None
    assert found.used.endswith("a forest")
    assert right(updated) > 0.75
    said = updated.predict(from_arrays(more[100:]), device="cpu")
    assert (np.array(said.labels) == "e").mean() > 0.9
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    export(updated, tmp_path / "model.onnx")
    import onnx
    import onnxruntime

    used = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert not used & {"Loop", "Scan", "If"}, "samples one by one would take many times as long"
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    probabilities = session.run(["probabilities"], {"input": more.astype(np.float32)})[0]
    wanted = updated.predict(from_arrays(more), device="cpu").probabilities
    assert np.abs(probabilities - wanted).max() < 1e-4
