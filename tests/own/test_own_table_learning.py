"""Tables of features: members side by side, judged by what they say of samples that they did not learn from."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from digit_tables import QUICK, X, Y, ambiguous, rows_of
from sklearn.datasets import load_breast_cancer, load_iris

from ipll.config import Config
from ipll.families.classifier.stacked import set_losses, set_temperature
from ipll.families.side_by_side import Members
from ipll.networks.network import MembersHead
from ipll.networks.wide_deep import WideDeep, normal_by_rank
from ipll.own import Model, from_arrays
from ipll.own.certainty import FLAGGED, cautious, twins
from ipll.own.decisions import Decisions
from ipll.own.defaults import BUDGET, Choice, reconfigure
from ipll.own.records import Records
from ipll.own.stages import Stages
from ipll.own.trials import TRIED, HeldOut, Tried, _better, likelier, likelier_as_a_whole, try_settings


@cache
def fitted() -> Model:
    return Model.fit(ambiguous(rows_of(range(5), 0, 400), 5), device="cpu", settings=QUICK)


def right(model: Model) -> np.ndarray:
    truth = Y[[int(name.split()[1]) for name in model.records.ids]]
    return np.array(model.records.labels(model.names)).astype(int) == truth


def test_a_head_says_what_its_members_say_on_average() -> None:
    torch.manual_seed(0)
    backbone, head = WideDeep(3, 4, 5), MembersHead(3, 4, 5, 6)
    assert head.birth(0, 5, seed=0) == [0, 1, 2, 3, 4]
    x = torch.randn(7, 3)
    features = backbone(x)
    each = head.each(features)
    assert each.shape == (7, 4, 6)
    assert torch.allclose(head(features)[:, :5], each.log_softmax(2).mean(1)[:, :5], atol=1e-6)
    wide, deep = head.weight[:, :12].view(6, 4, 3), head.weight[:, 12:].view(6, 4, 5)
    hidden = torch.relu(backbone.hidden(x)).view(7, 4, 5)
    by_hand = torch.einsum("nd,cmd->nmc", x, wide) + torch.einsum("nmw,cmw->nmc", hidden, deep) + head.bias
    assert torch.allclose(each[..., :5], by_hand[..., :5], atol=1e-5)


@pytest.mark.parametrize("deal", ["ratio", "blocks"])
def test_every_sample_is_left_out_by_as_many_members_whatever_else_there_is(deal: str) -> None:
    members, ids = Members(10, 5, deal=deal), torch.arange(5000)
    unseen = members.unseen(members.fold(ids)[:, None])
    assert (unseen.sum(1) == 2).all()
    assert (unseen.sum(0) / len(ids) - 0.2).abs().max() < 0.01
    some = torch.tensor([4000, 7, 123])
    assert torch.equal(members.unseen(members.fold(some)[:, None]), unseen[some])
    assert not Members(10, 0).unseen(Members(10, 0).fold(ids)[:, None]).any()


@pytest.mark.parametrize("folds", [2, 4, 5])
def test_rows_that_come_around_do_not_share_a_fold(folds: int) -> None:
    """Multiples of the golden ratio nearly come around after so many, and a class that comes with them had one fold."""
    for period in (8, 13, 21, 34, 55, 89, 144):
        fold = Members(2 * folds, folds, deal="blocks").fold(torch.arange(period * 12).view(12, period))
        most = torch.nn.functional.one_hot(fold.long(), folds).float().mean(0).amax(1)
        assert most.mean() < 1 / folds + 0.25
    assert Members(2 * folds, folds, deal="blocks").fold(torch.arange(60)).bincount().tolist() == [60 // folds] * folds


def test_classes_that_come_around_are_known_to_those_who_leave_some_out() -> None:
    rng, y = np.random.default_rng(0), np.tile(np.arange(34), 16)
    x = (2 * rng.normal(size=(34, 8)))[y] + rng.normal(size=(len(y), 8))
    sets = (rng.random((len(y), 34)) < 0.1) | np.eye(34, dtype=bool)[y]
    given = QUICK | {"augment.drop": 0.0, "model.inputs": "z-scores", "model.leave_out": "samples"}
    learnt = from_arrays(x[:272], sets[:272], [str(k) for k in range(34)])
    model = Model.fit(learnt, device="cpu", settings=given | {"disambiguation.prior": 0.0})
    assert model.config.model.deal == "blocks"
    said = model.predict(from_arrays(x[272:]), device="cpu")
    assert (np.array(said.labels).astype(int) == y[272:]).mean() > 0.7
    assert said.confidence.mean() > 0.5
    table = model.config.to_table()
    del table["model"]["deal"]  # as of a model that was made before: its networks have learnt by the folds of then
    assert Config.from_table(table).model.deal == "ratio"


def test_ranks_do_not_mind_outliers_nor_ties() -> None:
    backbone = WideDeep(2, inputs="quantiles")
    column = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    column[0] = 1e6
    backbone.take_quantiles(torch.stack([column, (column > 1).float()], dim=1))
    probe = torch.tensor([[-3.0, 0.0], [0.0, 0.0], [0.1, 1.0], [9e5, 1.0]])
    seen = normal_by_rank(probe, backbone.knots, backbone.normal)
    assert (seen[1:, 0] > seen[:-1, 0]).all()
    assert seen.abs().max() < 3.2
    assert seen[0, 1] == seen[1, 1] < seen[2, 1] == seen[3, 1]


@pytest.mark.parametrize("inputs", ["quantiles", "z-scores"])
@torch.no_grad()
def test_what_lies_beyond_the_first_samples_is_told_apart_and_never_far(inputs: str) -> None:
    """Classes that come later may lie there; an outlier must not blow up a step."""
    backbone = WideDeep(1, width=1, inputs=inputs)
    column = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    if inputs == "quantiles":
        backbone.take_quantiles(column)
    most = column.max() if inputs == "quantiles" else torch.tensor(10.0)
    probe = torch.stack([most, most + 2, most + 40, most + 1e6])[:, None]
    seen = backbone(torch.cat([probe, -probe]))[:, 0]
    beyond = seen[1:4] - seen[0]
    unit = most - column.median() if inputs == "quantiles" else 1.0  # as far as the last is from the middle
    torch.testing.assert_close(beyond, (torch.tensor([2.0, 40.0, 1e6]) / unit).log1p(), rtol=0.02, atol=0)
    assert (seen[5:].diff() < -1).all()
    constant = WideDeep(1, width=1, inputs="quantiles")
    constant.take_quantiles(torch.ones(50, 1))
    assert constant(torch.tensor([[1.0], [3.0]]))[:, 0].diff() == pytest.approx(math.log1p(2))


def test_classes_that_come_later_may_lie_beyond_the_first() -> None:
    """Fields of A and B, then of C and D, which are larger than any before."""
    generator = np.random.default_rng(0)

    def fields(sizes: dict[str, float], n: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(list(sizes), n)
        size = np.array([sizes[name] for name in y])[:, None] * generator.lognormal(0, 0.25, (len(y), 2))
        return np.column_stack([size, generator.normal(size=(len(y), 2))]), y

    def sets(y: np.ndarray, names: str) -> list[list[str]]:
        return [[name for name in names if name == one or generator.random() < 0.3] for one in y]

    first, second = fields({"A": 10, "B": 20}, 60), fields({"C": 60, "D": 200}, 60)
    model = Model.fit(from_arrays(first[0], sets(first[1], "AB")), device="cpu", settings=QUICK)
    ids = [f"later {i}" for i in range(len(second[1]))]
    model = model.update(from_arrays(second[0], sets(second[1], "ABCD"), ids=ids), device="cpu")
    x, y = fields({"A": 10, "B": 20, "C": 60, "D": 200}, 50)
    assert (np.array(model.predict(from_arrays(x), device="cpu").labels) == y).mean() > 0.9


def test_a_temperature_is_found_by_candidate_sets_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(4000, 6, generator=generator).double()
    labels = torch.multinomial((scores / 2.5).softmax(1), 1, generator=generator)
    sets = (torch.rand(4000, 6, generator=generator) < 0.3).scatter(1, labels, True)
    assert set_temperature(scores, sets) == pytest.approx(2.5, rel=0.15)
    assert (set_losses(scores, torch.ones_like(sets)).abs() < 1e-9).all()


def test_labels_called_sure_are_right_and_the_unsure_are_told() -> None:
    model = fitted()
    sure, wrong = model.records.confidence >= 0.95, ~right(model)
    assert sure.mean() > 0.5
    assert wrong[sure].mean() <= 0.05
    assert abs((1 - model.records.confidence).mean() - wrong.mean()) < 0.1
    told = cautious(torch.tensor([1.0, 0.8, 0.5, 0.2, 0.0]), torch.full((5,), 0.5), 2.0)  # of sets of two
    assert told.tolist() == pytest.approx([1, 5 / 7, 0.5, 0.2, 0])  # not below chance by caution alone
    every = cautious(torch.linspace(0, 1, 101), torch.full((101,), 0.25), 4.0)
    assert (every.diff() > 0).all()  # what is surer stays surer


def test_as_many_known_samples_are_called_unlike_as_is_stated() -> None:
    fresh = rows_of(range(5), 400, 400)
    unlike = fitted().predict(from_arrays(X[fresh]), device="cpu").unlike
    assert 0.2 * FLAGGED < unlike.mean() < 3 * FLAGGED


def test_an_update_with_new_classes_only_finds_nothing_old() -> None:
    model = fitted().update(ambiguous(rows_of(range(5, 10), 0, 300), 10, 0.1), device="cpu")
    new = model.records.update == 2
    assert model.records.judged_old[new].mean() <= 0.02
    assert right(model)[new].mean() > 0.9
    assert right(model)[~new].mean() > 0.9
    test = np.arange(1500, 1700)
    labels = np.array(model.predict(from_arrays(X[test]), device="cpu").labels).astype(int)
    assert (labels == Y[test]).mean() > 0.8


def test_a_false_candidate_is_no_class_and_one_that_comes_is() -> None:
    records = Records.empty()
    sets = [[0], [0], [1], [1], *([[0, 2]] * 6), *([[1, 2]] * 6), *([[3, 1]] * 4)]
    label = [0, 0, 1, 1, *[0, 0, 0, 0, 2, 2], *[1] * 6, *[3] * 4]
    records = replace(
        records, ids=[str(i) for i in range(len(sets))], label=np.array(label), codes=np.concatenate(sets),
        offsets=np.cumsum([0, *map(len, sets)]),
    )  # fmt: skip
    assert records.arrived(4, 2).tolist() == [True, True, False, True]
    assert records.arrived(4, 5).tolist() == [True, True, False, False]
    assert records.twins(4) == []


def test_classes_that_always_come_together_cannot_be_told_apart() -> None:
    rows = rows_of(range(2), 0, 120)
    candidates = [["a", "twin of a"] if label == 0 else ["b"] for label in Y[rows]]
    model = Model.fit(from_arrays(X[rows], candidates), device="cpu", settings=QUICK)
    assert model.twins() == [["a", "twin of a"]]
    assert (model.records.confidence[Y[rows] == 0] <= 0.5).all()
    assert model.records.confidence[Y[rows] == 1].mean() > 0.9
    sets = torch.tensor([[1, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=torch.bool)
    assert [group.tolist() for group in twins(sets)] == [[0, 1]]


def test_rows_are_kept_within_a_budget_or_as_many_as_told() -> None:
    model = fitted()
    assert model.records.in_memory.all()
    row = 4 * 64 + 5 * 8 + 16
    assert ("memory.size", BUDGET // row) in [choice[:2] for choice in model.choices()]
    few = Model.fit(ambiguous(rows_of(range(5), 0, 100), 5), device="cpu", settings=QUICK | {"memory.size": 30})
    assert few.records.in_memory.sum() == 30


def test_rare_classes_are_not_filled_up_with_samples_of_others() -> None:
    """A tenth of the samples is of four rare classes; by their candidates alone it would be more than half."""
    rows = np.concatenate([rows_of(range(k, k + 1), 0, 9) for k in range(1, 5)] + [rows_of(range(5, 10), 0, 300)])
    truth = np.where(Y[rows] < 5, Y[rows], 0)
    sets = np.random.default_rng(0).random((len(rows), 5)) < 0.5
    sets[np.arange(len(rows)), truth] = True
    samples = from_arrays(X[rows], sets, ["many", "1", "2", "3", "4"])
    model = Model.fit(samples, device="cpu", settings=QUICK | {"train.epochs": 50})
    assert (np.array(model.records.labels(model.names)) == np.array(samples.names)[truth]).mean() > 0.92


def test_classes_that_are_never_named_alone_do_not_vanish() -> None:
    """Animals are on grass, and grass is named with whichever animal is in the picture; others have nothing to do with
    it. Who is named with whom tells that animals must not all be called grass, as they are without a prior."""
    rng, grass, animals = np.random.default_rng(1), 0, range(1, 5)
    counts = {grass: 120} | dict.fromkeys(animals, 20) | dict.fromkeys(range(5, 8), 60)
    rows = np.concatenate([rows_of(range(c, c + 1), 0, count) for c, count in counts.items()])
    truth = Y[rows]
    beside = np.where(truth == grass, rng.integers(1, 5, len(rows)), grass)
    beside = np.where(truth < 5, beside, rng.integers(5, 8, len(rows)))
    sets = [{*pair} for pair in np.stack([truth, beside], axis=1).tolist()]
    samples = from_arrays(X[rows] + 8 * rng.normal(size=X[rows].shape), sets)
    model = Model.fit(samples, device="cpu", settings=QUICK | {"train.epochs": 50})
    settled = np.array(model.records.labels(model.names)).astype(int)
    assert (settled == truth).mean() > 0.92
    assert np.isin(animals, settled).all()
    chosen = {setting: (value, why) for setting, value, why in model.choices()}
    assert chosen["disambiguation.prior"][0] == 4
    assert "whole" in chosen["disambiguation.prior"][1]
    # Updates do without; decisions learn all anew, and find out again.
    ids = [f"later {k}" for k in range(20)]
    later = model.update(from_arrays(samples.features[:20], sets[:20], ids=ids), device="cpu")
    assert dict(c[:2] for c in later.choices())["disambiguation.prior"] == 0
    anew = later.decide(Decisions.of(["later 0"], [str(truth[0])]), device="cpu")
    assert anew.config.part("disambiguation").settings.prior == 4


def test_wide_tables_are_settled_by_networks_that_did_not_learn_the_sample() -> None:
    """Of 1,000 features 20 tell the class. All networks together know by heart what they were told, right or wrong."""
    rng = np.random.default_rng(1)
    truth, means = rng.integers(0, 4, 160), np.zeros((4, 1000))
    means[:, :20] = 1.5 * rng.normal(size=(4, 20))
    x = (means[truth] + rng.normal(size=(160, 1000))).astype(np.float32)
    sets = np.eye(4, dtype=bool)[truth] | (rng.random((160, 4)) < 0.2)
    found = {}
    given = QUICK | {"train.epochs": 60, "augment.drop": 0.3, "model.inputs": "z-scores", "disambiguation.prior": 0.0}
    for more in ({}, {"model.settle": "all"}):
        model = Model.fit(from_arrays(x, sets, list("0123")), device="cpu", settings=given | more)
        labels = np.array(model.records.labels(model.names)).astype(int)
        assert sets[np.arange(160), labels].all()
        found[model.config.model.settle] = (labels == truth).mean()
    assert found["held-out"] > 0.85
    assert found["held-out"] > found["all"] + 0.05  # 0.90 and 0.78


def test_a_prior_has_its_price() -> None:
    """Where sets go by looks (a weak model's second thoughts), a prior that calls part of the commonest class something
    else makes whole sets more likely, and labels within them much less: 14 points of accuracy were lost so."""
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=900)) * 0.1

    def said(label: float, whole: float) -> HeldOut:
        found = SimpleNamespace(
            losses=lambda: label + noise.roll(round(1000 * label)), whole_losses=lambda: whole + noise.roll(1) * label
        )
        return cast(HeldOut, found)

    tried = Tried("disambiguation.prior", (0.0, 4.0), likelier_as_a_whole, errors=3)
    assert tried.decide(tried, [said(0.75, 5.4), said(0.81, 5.3)]).value == 4
    refused = tried.decide(tried, [said(0.07, 2.2), said(0.14, 2.1)])
    assert refused.value == 0
    assert "much more surprising" in refused.why
    assert tried.decide(tried, [said(0.001, 2.2), said(0.002, 2.1)]).value == 4  # no difference that could be told


def test_the_choice_of_inputs_and_classifier_is_told_with_its_margin() -> None:
    why = {setting: reason for setting, _, reason in fitted().choices()}
    assert "with quantiles, " in why["model.inputs"]
    assert "with 0.3, " in why["augment.drop"]
    assert "give or take" in why["augment.drop"]
    found = fitted().stacking()
    assert found is not None
    assert set(found.used.split(" and ")) <= {"the linear head", "prototypes", "a forest"}
    assert found.chosen <= max(found.head, found.prototypes)


def test_too_many_classes_for_trials() -> None:
    """They would take minutes each, and learn too little of each class to tell anything."""
    sets = np.zeros((1600, 800), bool)
    sets[np.arange(1600), np.arange(1600) % 800] = True
    config = fitted().config
    began: list[str] = []
    stages = SimpleNamespace(begin=began.append)
    found = try_settings(TRIED, config, X[:1600], sets, (), (), torch.device("cpu"), cast(Stages, stages))
    assert [choice.value for choice in found] == [one.values[0] for one in TRIED]
    assert "800 classes are too many for trials" in found[0].why
    assert not began


def test_the_first_value_that_is_not_clearly_worse_is_taken() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=400)) * 0.1
    for losses, best in (
        ((1.0, 0.9, 0.9), 0.1),
        ((1.0, 1.0, 0.9), 0.0),
        ((1.0, 1.0, 1.0), 0.3),
        ((0.9, 1.0, 1.1), 0.3),
    ):
        told = [mean + noise.roll(k) for k, mean in enumerate(losses)]
        assert _better(Tried("augment.drop", (0.3, 0.1, 0.0), likelier), told, "").value == best
    assert len({setting for setting, _, _ in fitted().choices()}) == len(fitted().choices())


def test_an_update_may_do_without_the_prior_of_the_fit_and_have_it_again() -> None:
    model, given = fitted(), {"disambiguation.prior": 0.0}
    off = replace(model, config=reconfigure(model.config, (Choice(*given.popitem(), ""),)), given=QUICK | given)
    for start in (400, 450):
        off = off.update(ambiguous(rows_of(range(5), start, 50), 5), device="cpu")
        off = replace(off, config=reconfigure(off.config, (Choice("disambiguation.prior", 0.5, ""),)))
    assert len(off.records) == 500


def test_a_class_that_is_named_far_more_often_than_ever_really_comes() -> None:
    """Named by a few false candidates first (c), or as often as when it came (a, b): only c surges."""
    first = from_arrays(np.zeros((60, 1)), [["a", "c"] if k < 6 else ["a"] if k % 2 else ["b"] for k in range(60)])
    second = from_arrays(
        np.zeros((60, 1)), [["c", "a"] if k < 40 else ["b"] for k in range(60)], ids=[f"later {k}" for k in range(60)]
    )
    names = ("a", "b", "c")
    records = Records.empty()
    for update, samples in enumerate((first, second), 1):
        columns = np.array([names.index(name) for name in samples.names])
        records = records.with_samples(samples, columns, update)
    assert records.surging(3, 2).tolist() == [False, False, True]


def test_a_hundred_rows_are_enough() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Model.fit(ambiguous(rows_of(range(3), 0, 100), 3), device="cpu", settings={"train.threads": 1})
    assert right(model).mean() > 0.9


def test_one_who_always_says_the_same_outvotes_nobody() -> None:
    """Beside three who are mostly right, one names the same class for every sample: it is a candidate of all."""
    x, y = load_iris(return_X_y=True)
    generator = np.random.default_rng(0)
    votes = np.zeros((len(x), 3), np.float32)
    for chance in (0.8, 0.75, 0.7):
        said = np.where(generator.random(len(x)) < chance, y, generator.integers(3, size=len(x)))
        votes[np.arange(len(x)), said] += 1
    votes[:, 0] += 1
    samples = from_arrays(x, [np.flatnonzero(row).tolist() for row in votes])
    order = [int(name) for name in samples.names]
    samples = replace(samples, votes=votes[:, order])
    model = Model.fit(samples, device="cpu", settings=QUICK | {"train.epochs": 40})
    settled = np.array([int(model.names[k]) for k in model.records.label])
    assert (settled == y).mean() > 0.85
    assert (np.bincount(settled) > 35).all()


def test_what_people_voted_counts_in_later_updates() -> None:
    """Every sample has both classes for candidates; an update without votes must not make them all alike. What an
    earlier version saved has no votes in its memory, and can be updated all the same."""
    rng = np.random.default_rng(0)
    x, y = load_breast_cancer(return_X_y=True)
    rows = rng.permutation(len(y))[:200]
    votes = np.zeros((200, 2), np.float32)
    for _ in range(12):
        votes[np.arange(200), np.where(rng.random(200) < 0.65, y[rows], 1 - y[rows])] += 0.6
    samples = from_arrays(x[rows], np.ones((200, 2), np.bool_), ["0", "1"], [f"row {row}" for row in rows])
    first, later = (samples.take(np.arange(*ends)) for ends in ((150,), (150, 200)))
    model = Model.fit(replace(first, votes=votes[:150]), device="cpu", settings=QUICK | {"train.epochs": 25})
    updated = model.update(later, device="cpu")

    def told(one: Model) -> tuple[float, float]:
        label = np.array(one.records.labels(one.names)).astype(int)[:150]
        return float((label == y[rows[:150]]).mean()), float(one.records.confidence[:150].mean())

    assert told(model)[0] > 0.93
    assert told(updated)[0] > told(model)[0] - 0.03
    assert told(updated)[1] > 0.85
    before = {name: tensor for name, tensor in model.tensors.items() if "memory.votes" not in name}
    assert told(replace(model, tensors=before).update(later, device="cpu"))[1] < told(updated)[1]
