"""Candidates that miss the true label, and wrong labels, are noticed by networks that did not learn from the sample."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ipll.cli.own_settled import settled_lines
from ipll.families.classifier.stacked import set_temperature
from ipll.families.disambiguation.robust import miss_shares, set_prior
from ipll.own import Model, from_arrays
from ipll.own.audit import audit_table
from ipll.own.folder import read_records, records_table
from ipll.own.missed import COLDER, RATES, Missed, missed

QUICK: dict[str, Any] = {"train.epochs": 30, "model.width": 32, "train.threads": 1, "augment.drop": 0.0}
QUICK |= {"model.inputs": "z-scores", "disambiguation.prior": 0.0, "classifier.trees": 0}
CLASSES = 5


def drawn(misses: float, *, known: float = 3.0, seed: int = 0, n: int = 1500) -> tuple[Tensor, Tensor]:
    """-> what a calibrated network says of samples, and sets: they name others by 30 %, and lack some truths."""
    rng = np.random.default_rng(seed)
    said = torch.from_numpy(known * rng.normal(size=(n, CLASSES))).log_softmax(dim=1)
    truth = torch.multinomial(said.exp(), 1, generator=torch.Generator().manual_seed(seed))[:, 0].numpy()
    sets = rng.random((n, CLASSES)) < 0.3
    sets[np.arange(n), truth] = rng.random(n) >= misses
    sets[np.flatnonzero(~sets.any(1)), (truth[~sets.any(1)] + 1) % CLASSES] = True
    return said, torch.from_numpy(sets)


def found(said: Tensor, sets: Tensor, certain: Tensor | None = None) -> Missed:
    certain = torch.zeros(len(sets), dtype=torch.bool) if certain is None else certain
    return missed(said, set_temperature(said, sets.double()), sets, CLASSES, certain)


@pytest.mark.parametrize("misses", [0.05, 0.1, 0.2])
def test_a_share_of_misses_is_found(misses: float) -> None:
    for seed in range(3):
        one = found(*drawn(misses, seed=seed, n=4000))
        assert one.clear
        assert misses / 2 <= one.rate <= 1.5 * misses
        assert 0.8 < one.temperature < 1.25  # what networks say is calibrated


def test_without_misses_hardly_any_is_expected() -> None:
    """But some: people err, so that what surprises most is least sure."""
    for seed in range(5):
        one = found(*drawn(0.0, seed=seed))
        assert one.rate <= 0.01
        assert not one.clear


def test_of_noise_nothing_is_known() -> None:
    """Networks that know nothing of a sample are no evidence against its set."""
    sets = drawn(0.2)[1]
    for seed in range(5):
        noise = torch.randn(len(sets), CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        assert not found((0.3 * noise).log_softmax(dim=1), sets).clear


def test_it_is_the_likeliest_share_of_all_that_are_tried() -> None:
    """Against the naive sum over classes of what is said times what the set says beforehand."""
    said, sets = drawn(0.1, n=300)
    none, cold = torch.zeros(300, dtype=torch.bool), set_temperature(said, sets.double())

    def likelihood(rate: float, factor: float) -> float:
        prior = set_prior(sets, miss_shares(sets, rate), CLASSES, none).double()
        total = 0.0
        for i in range(300):
            p = (said[i] / (cold * factor)).softmax(dim=0)
            total += float(torch.log((p * prior[i]).sum() * sets[i].sum()))
        return total

    one = found(said, sets)
    best = max((likelihood(rate, factor), rate, factor) for rate in RATES for factor in COLDER)
    assert one.rate == best[1]
    assert one.temperature == pytest.approx(cold * best[2])


def test_what_people_decided_is_not_doubted() -> None:
    said, sets = drawn(0.2)
    assert not found(said, sets, torch.ones(len(sets), dtype=torch.bool)).clear
    prior = Missed(0.2, miss_shares(sets, 0.2), 1.0, True).prior(sets, CLASSES, torch.ones(len(sets), dtype=torch.bool))
    assert not prior[~sets].any()


@cache
def digits(wrong: float) -> tuple[Model, np.ndarray, np.ndarray]:
    """-> a model of an ordinary table, of whose labels some are wrong; its true labels, and which are wrong."""
    x, y = load_digits(return_X_y=True)
    x, y, rng = x[:800], y[:800], np.random.default_rng(0)
    bad = rng.random(800) < wrong
    given = np.where(bad, (y + rng.integers(1, 10, 800)) % 10, y)
    return Model.fit(from_arrays(x, [[str(one)] for one in given]), device="cpu", settings=QUICK), y, bad


def test_wrong_labels_of_an_ordinary_table_are_found() -> None:
    model, y, bad = digits(0.06)
    assert 0.02 < model.missed < 0.12
    sure = model.records.confidence >= 0.95
    assert sure.mean() > 0.8
    assert bad[sure].mean() < 0.02
    first = np.argsort(model.records.confidence)[: bad.sum()]
    assert bad[first].mean() > 0.85
    lines = " ".join(settled_lines(model, None))
    assert f"About {100 * model.missed:.2g} % of the labels seem to be wrong" in lines
    assert "Expected to be wrong" in lines
    names = np.array(model.names)
    assert (model.records.labels(model.names) == names[model.records.label]).all()  # they stay what they were
    expected = np.where(model.records.runner_up >= 0, names[model.records.runner_up], "")
    assert (expected[bad] == y[bad].astype(str)).mean() > 0.6
    table = audit_table(model).slice(0, 20).to_pydict()
    assert all(runner not in ("", label) for runner, label in zip(table["runner_up"], table["label"], strict=True))


def test_of_right_labels_hardly_any_is_doubted() -> None:
    model, _, _ = digits(0.0)
    assert model.missed == 0
    assert (model.records.confidence >= 0.95).mean() > 0.98
    assert "seem to be wrong" not in " ".join(settled_lines(model, None))


def test_mistakes_that_networks_learn_along_come_first_all_the_same() -> None:
    """Where one class is often called another, networks expect it, and nothing tells which of the labels are wrong. But
    these surprise them more than right ones."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:800], y[:800]
    bad = (np.random.default_rng(0).random(800) < 0.3) & (y == 3)
    given = np.where(bad, 5, y)
    model = Model.fit(from_arrays(x, [[str(one)] for one in given]), device="cpu", settings=QUICK)
    first = np.argsort(model.records.confidence)[: bad.sum()]
    assert bad[first].mean() > 0.25  # of all 3 % are


def test_candidates_that_miss_are_told_and_stay_as_they_came() -> None:
    x, y = load_digits(n_class=5, return_X_y=True)
    rng = np.random.default_rng(1)
    sets = rng.random((len(y), 5)) < 0.3
    sets[np.arange(len(y)), y] = rng.random(len(y)) >= 0.1
    sets[np.flatnonzero(~sets.any(1)), (y[~sets.any(1)] + 1) % 5] = True
    missing = ~sets[np.arange(len(y)), y]
    model = Model.fit(from_arrays(x, sets, list("abcde")), device="cpu", settings=QUICK)
    assert 0.03 < model.missed < 0.2
    assert "seem to miss the true label" in " ".join(settled_lines(model, None))
    assert sets[np.arange(len(y)), model.records.label].all()
    assert missing[model.records.confidence >= 0.95].mean() < 0.02
    told = Model.fit(
        from_arrays(x, sets, list("abcde")), device="cpu", settings=QUICK | {"disambiguation.miss_rate": 0.1}
    )
    assert told.missed == 0  # it was said


def test_what_is_expected_is_kept_and_older_models_lack_it(tmp_path: Path) -> None:
    model, _, _ = digits(0.06)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert again.missed == model.missed
    assert np.array_equal(again.records.runner_up, model.records.runner_up)
    older = tmp_path / "older.parquet"
    pq.write_table(records_table(model.records, model.names).drop_columns(["runner_up"]), older)
    assert (read_records(older, model.names).runner_up == -1).all()
