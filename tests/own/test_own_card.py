"""`ipll card`: what a model card says is what the model knows."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from irises import NAMES, QUICK, iris_rows, write_csv

from ipll.engine.sealed import read_sealed, write_sealed
from ipll.errors import DataError
from ipll.own import Model, card, from_arrays, read_table
from ipll.own.history import Score
from ipll.own.markdown import plain_text
from ipll.own.model_card import _decisions, held_out, wilson
from ipll.own.work import keep_score


def test_a_card_with_a_table_of_labels(main: Any, model: Path) -> None:
    status, out, err = main("card", model, "first.csv", "--out", "card.md")
    assert status == 0, err
    assert "Written to card.md" in out
    text = Path("card.md").read_text()
    loaded = Model.load(model)
    assert text.startswith("# Model card: model\n")
    sections = re.findall(r"^## (.+)$", text, re.M)
    assert sections == [
        "Data", "Classes", "Settings, and why", "How good it is", "Calibration", "What it is not good for",
    ]  # fmt: skip
    assert re.search(r"\| 1 \| 20\d\d-\d\d-\d\d \d\d:\d\d \| first.csv \| 80 \|", text)
    for setting, value, _ in loaded.choices():
        assert f"| {plain_text(setting)} | {plain_text(value)} |" in text
    assert "Set by hand: train.epochs=6." in text
    assert re.search(r"Accuracy [\d.]+ % \(95 % interval [\d.]+ to [\d.]+\) on 20 samples of first.csv", text)
    assert re.search(r"[\d,]+ of 80 \([\d.]+ %\) are expected to be wrong, give or take [\d,]+ \(95 %", text)
    assert "Expected calibration error of predictions" in text


def test_a_card_by_what_the_model_keeps(main: Any, model: Path) -> None:
    status, out, _ = main("card", model)
    assert status == 0
    assert "Predictions were not evaluated for this card" in out
    assert "True labels came with 80 samples that were learnt from, and were not used" in out


def test_when_what_was_learnt_and_how_it_scored_then(main: Any, here: Path) -> None:
    """By the name of a file, not by where it lies; of an older model what it keeps."""
    assert main("fit", here / "first.csv", "--out", "m", *QUICK).status == 0
    (here / "said.csv").write_text("id,class,who\nflower0,versicolor,ann\n")
    assert main("update", "m", "--decisions", here / "said.csv", "--device", "cpu").status == 0
    assert main("update", "m", here / "second.csv", "--device", "cpu").status == 0
    before = datetime.now(UTC)
    first, said, second = Model.load(here / "m").history
    assert [(one.update, one.what, one.source, one.samples) for one in (first, said, second)] == [
        (1, "fit", "first.csv", 80), (2, "decisions", "", 0), (3, "update", "second.csv", 37)
    ]  # fmt: skip
    assert (said.decisions, said.decided, first.decided) == ("said.csv", 1, 0)
    times = [datetime.fromisoformat(one.when) for one in (first, said, second)]
    assert times == sorted(times)
    assert timedelta(0) <= before - times[0] < timedelta(minutes=10)
    assert str(here) not in (here / "m" / "model.json").read_text().split('"history"')[1].split('"config"')[0]
    text = card(Model.load(here / "m"))
    assert re.search(r"Decisions of people came in said.csv \(1\) on 20\d\d-\d\d-\d\d", text)
    assert first.score is not None
    assert first.score.samples == 20
    share = f"accuracy {100 * first.score.right / 20:.1f} % (95 % interval"
    assert re.search(rf"- Measured after the fit \(2 updates ago\), on [-: \d]+: {re.escape(share)}", text)
    assert "learnt on 20" in main("info", "m").out


def test_a_model_without_a_history(model: Path) -> None:
    facts = read_sealed(model / "model.json")
    kept = facts.pop("history")
    write_sealed(model / "model.json", facts)
    assert Model.load(model).history == ()
    assert "| 1 | not kept | first.csv | 80 |" in card(Model.load(model))
    for damage in ({"update": 7}, {"samples": -1}, {"when": 3}, {"score": {"samples": 2, "right": 3}}, {"more": 1}):
        write_sealed(model / "model.json", facts | {"history": [kept[0] | damage]})
        with pytest.raises(DataError, match=r"model.json is damaged"):
            Model.load(model)


def test_a_score_is_not_kept_of_a_model_that_learnt_on(model: Path) -> None:
    loaded, score = Model.load(model), Score(4, 3, 0.75, 0.1)
    keep_score(model, loaded, score)
    assert Model.load(model).history[-1].score == score
    keep_score(model, loaded, Score(4, 0, 0.0, 0.1))  # what is there is no longer what this score is of
    assert Model.load(model).history[-1].score == score


def test_samples_that_were_learnt_from_are_not_held_out(model: Path) -> None:
    loaded, rows = Model.load(model), iris_rows(range(80, 120), NAMES)
    both = read_table(write_csv(Path("both.csv"), iris_rows(range(80), NAMES) + rows))
    assert held_out(loaded, both).ids == [row["id"] for row in rows]
    with pytest.raises(DataError, match="all of these samples were learnt from"):
        held_out(loaded, both.take(np.arange(80)))


def test_what_it_is_not_good_for() -> None:
    """A class that vanishes, twins, a class of few samples; names that Markdown would take for commands."""
    x = [[float(k % 3 * 10 + k / 100), float(k)] for k in range(90)]
    y: list[list[str]] = [[("low", "mid", "high")[k % 3]] for k in range(90)]
    for k in range(0, 60, 3):
        y[k] = ["low", "ghost"]
    for k in range(2, 90, 3):
        y[k] = ["high", "<b>twin|*"]
    model = Model.fit(from_arrays(x, y), settings={"train.epochs": 5}, device="cpu")
    text = card(model).split("## What it is not good for")[1]
    assert "No sample tells them apart, since they are always candidates together: high and " in text
    assert "\\<b\\>twin\\|\\*" in text
    gone = set(model.names) - set(model.records.labels(model.names))
    assert gone
    assert all(f"{plain_text(name)} (" in text for name in gone)


def test_what_people_decided() -> None:
    said = [
        (0, "a", "ann", "b", False),
        (0, "b", "ben", "b", False),
        (4, None, "ben", "a", True),
        (7, "c", "", "a", True),
    ]
    made = [SimpleNamespace(row=r, name=n, who=w, was=b, missed=m) for r, n, w, b, m in said]
    text = "\n".join(_decisions(SimpleNamespace(decisions=made)))  # type: ignore[arg-type]
    expected = (
        "- 3 samples, by ben (2), ann (1), somebody (1): 1 as another class, 1 disputed, so that their set is what "
        "people said, 1 none of these, and out of training."
    )
    assert expected in text
    assert "Of these, the class was not among the candidates: 2." in text
    assert not list(_decisions(SimpleNamespace(decisions=())))  # type: ignore[arg-type]


def test_wilson() -> None:
    """Against the textbook's values (8 of 10; 0 of 10)."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
