"""How sure labels of a table are: what is said is not more than can be known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from digit_tables import QUICK, X, Y, ambiguous, rows_of
from sklearn.datasets import load_iris

from ipll.cli.own_output import class_lines
from ipll.own import Model, from_arrays
from ipll.own.certainty import at_most, hidden_errors, lead_on_new_sets, silent_odds, trusted, unheard_odds


def test_errors_towards_what_is_always_named_along_do_not_show() -> None:
    sets = torch.rand(40, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    sets[:, 1] |= sets[:, 0]  # sheep are never without grass
    found = hidden_errors(sets)
    for called in range(5):
        for true in range(5):
            named = sets[sets[:, true]]
            lacking = int((~named[:, called]).sum())
            assert found[called, true] == (len(named) + 2) / (lacking + 1)
    assert found[1, 0] == sets[:, 0].sum() + 2
    assert found[0, 1] < found[1, 0] / 3


def test_a_class_that_is_named_in_every_set_may_be_wrong_in_each() -> None:
    """As on a form on which 'normal' is never excluded: that all are, no set contradicts."""
    rows = rows_of(range(2), 0, 100)
    samples = from_arrays(X[rows], [{"normal", "ill"} if y else {"normal"} for y in Y[rows]])
    model = Model.fit(samples, device="cpu", settings=QUICK)
    several = Y[rows] == 1
    settled = np.array(model.records.labels(model.names))[several]
    assert (model.records.confidence[several][settled == "normal"] <= 0.5).all()
    assert (np.sort(model.records.confidence[~several])[1:] > 0.95).all()  # one iris is unlike all others of its kind
    assert model.companions() == [("ill", "normal")]
    assert any(
        "Never a candidate without another" in line and "ill (with normal)" in line for line in class_lines(model)
    )
    assert Model.fit(ambiguous(rows, 2), device="cpu", settings=QUICK).companions() == []
    sets = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]], dtype=torch.bool)
    odds = silent_odds(sets)
    assert torch.allclose(odds[0], torch.tensor([0, 1, 1 / 3], dtype=torch.double))
    assert torch.allclose(odds[1], torch.tensor([1 / 5, 0, 1 / 5], dtype=torch.double))


def test_of_what_is_above_chance_a_share_counts() -> None:
    sure, chance = torch.tensor([0.9, 0.9, 0.9, 0.2]), torch.full((4,), 0.5)
    found = trusted(sure, chance, torch.tensor([1.0, 0.25, 0.0, 0.1]))
    assert torch.allclose(found, torch.tensor([0.9, 0.6, 0.5, 0.2]))


def test_how_well_sets_are_expected_that_were_never_seen() -> None:
    sets = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)  # the last tells nothing
    surely = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]])
    assert lead_on_new_sets(surely, sets) == 1
    assert lead_on_new_sets(torch.full((3, 4), 0.25), sets) == 0
    assert lead_on_new_sets((surely + 0.25) / 2, sets) == pytest.approx(0.5)
    assert lead_on_new_sets(surely.flip(1), sets) == 0
    assert lead_on_new_sets(surely[2:], sets[2:]) == 1


def test_where_looks_tell_the_set_those_with_the_same_are_left_out_together() -> None:
    """Some digits are written in ways that tell which two candidates they have, as a word tells its parts of speech.
    Whatever those of a way are called, they are called it together, and no set speaks against it. Who has seen none of
    them does not take it for certain."""
    rng, ways = np.random.default_rng(0), 12
    rows = np.concatenate([rows_of(range(c, c + 1), 0, 150) for c in range(6)])
    truth, way = Y[rows], np.tile(np.r_[np.full(90, -1), np.repeat([0, 1], 30)], 6)  # -1: plain, and named alone
    way = np.where(way < 0, -1, 2 * truth + way)
    style, other = rng.normal(scale=6, size=(ways, X.shape[1])), (np.arange(ways) // 2 + rng.integers(1, 6, ways)) % 6
    x = X[rows] + np.where(way[:, None] < 0, 0, style[way])
    samples = from_arrays(x, [{int(t), int(t if w < 0 else other[w])} for t, w in zip(truth, way, strict=True)])
    models = [
        Model.fit(samples, device="cpu", settings=QUICK | {"train.epochs": 40} | how)
        for how in ({}, {"model.leave_out": "samples"})
    ]
    assert models[0].config.model.leave_out == "sets"
    why = next(why for setting, _, why in models[0].choices() if setting == "model.leave_out")
    assert "the most similar sample with the same label tells" in why
    wrong = []
    for model in models:
        sure = model.records.confidence >= 0.95
        wrong.append(int((np.array(model.records.labels(model.names)).astype(int) != truth)[sure].sum()))
    assert wrong[0] < 20, wrong
    assert wrong[1] > 60, wrong


def test_of_noise_nothing_is_said_to_be_known() -> None:
    """Of features that tell nothing: who knows more of a held-out sample than chance has heard of its candidates."""
    rng = np.random.default_rng(0)
    sets = rng.random((300, 6)) < 0.3
    sets[np.arange(300), rng.integers(0, 6, 300)] = True
    noise = rng.normal(size=(300, 100))
    model = Model.fit(from_arrays(noise, sets, list("abcdef")), device="cpu", settings=QUICK | {"train.epochs": 40})
    found, several = model.stacking(), sets.sum(1) > 1
    assert found is not None
    assert found.chosen > -np.log(sets.sum(1) / 6).mean() - 0.02
    assert model.records.confidence[several].mean() < (1 / sets.sum(1)[several]).mean() + 0.05
    assert model.predict(from_arrays(noise + rng.normal(size=noise.shape)), device="cpu").confidence.mean() < 0.25


def test_samples_without_votes_are_judged_by_their_sets_whatever_came_before() -> None:
    """Votes on other samples say nothing of two classes that come in an update and are always named together."""
    first, later = rows_of(range(2), 0, 60), rows_of(range(2, 4), 0, 60)
    known = from_arrays(X[first], Y[first].astype(str))
    voted = replace(known, votes=3 * known.candidates.astype(np.float32))
    update = from_arrays(X[later], [["x", "y"]] * len(later))
    for samples in (known, voted):
        model = Model.fit(samples, device="cpu", settings=QUICK).update(update, device="cpu")
        assert (model.records.confidence[model.records.update == 2] <= 0.5).all()
        assert (model.records.confidence[model.records.update == 1] > 0.8).all()
        assert model.twins() == [["x", "y"]]


def test_of_two_who_never_agree_nobody_knows_who_is_right() -> None:
    """One always names the true class, the other always the next one: a world in which it is the other way round gives
    the very same votes. Where they agree now and then, they can be told apart."""
    x, y = load_iris(return_X_y=True)
    votes = np.zeros((150, 3), np.float32)
    votes[np.arange(150), y] = votes[np.arange(150), (y + 1) % 3] = 0.3
    samples = from_arrays(x, votes > 0, list("abc"))
    model = Model.fit(replace(samples, votes=votes), device="cpu", settings=QUICK)
    assert (model.records.confidence <= 0.5 + 1e-6).all()
    agreed = np.random.default_rng(0).random(150) < 0.6
    votes[agreed, (y[agreed] + 1) % 3] = 0
    samples = from_arrays(x, votes > 0, list("abc"))
    model = Model.fit(replace(samples, votes=votes), device="cpu", settings=QUICK)
    sure = model.records.confidence >= 0.95
    right = np.array([list("abc").index(name) for name in model.records.labels(model.names)]) == y
    assert sure.mean() > 0.4
    assert right[sure].mean() > 0.95


def test_of_one_annotator_whom_nobody_checks_no_label_is_sure() -> None:
    """Who errs half of the time may take all of one class for another, and the labels follow."""
    x, y = load_iris(return_X_y=True)
    votes = 0.9 * np.eye(3, dtype=np.float32)[y]
    samples = from_arrays(x, votes > 0, list("abc"))
    model = Model.fit(replace(samples, votes=votes), device="cpu", settings=QUICK)
    assert 0.85 < np.median(model.records.confidence) < 0.95
    assert (model.records.confidence < 0.95).all()
    twice = Model.fit(replace(samples, votes=2 * votes), device="cpu", settings=QUICK)  # of two who agree
    assert (twice.records.confidence >= 0.95).mean() > 0.5


def test_what_is_contested_is_as_sure_as_either_class_was_heard_alone() -> None:
    shown = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 1]], dtype=torch.bool)
    odds = unheard_odds(shown)
    assert torch.allclose(odds, torch.tensor([1 / 5, 1, 1], dtype=torch.double))
    most = at_most(odds * shown, torch.tensor([0, 0, 0, 1]))
    assert torch.allclose(most, torch.tensor([1 / 2, 1, 1, 1 / 2], dtype=torch.double))
