"""`ipll card`: what a model card says is what the model knows."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from irises import NAMES, iris_rows, write_csv

from ipll.errors import DataError
from ipll.own import Model, card, from_arrays, read_table
from ipll.own.markdown import plain_text
from ipll.own.model_card import _decisions, held_out, wilson


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
    assert "| 1 | first.csv | 80 |" in text
    for setting, value, _ in loaded.choices():
        assert f"| {plain_text(setting)} | {plain_text(value)} |" in text
    assert "Set by hand: train.epochs=6." in text
    assert re.search(r"Accuracy [\d.]+ % \(95 % interval [\d.]+ to [\d.]+\) on 20 samples of first.csv", text)
    assert re.search(r"[\d,]+ of 80 \([\d.]+ %\) are expected to be wrong, judged by networks", text)
    assert "Expected calibration error of predictions" in text


def test_a_card_by_what_the_model_keeps(main: Any, model: Path) -> None:
    status, out, _ = main("card", model)
    assert status == 0
    assert "Predictions were not evaluated for this card" in out
    assert "True labels came with 80 samples that were learnt from, and were not used" in out


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
    assert "- 3 samples, by ben (2), somebody (1): 1 as it had been settled, 1 as another class, 1 as none" in text
    assert "The class of 1 sample had not been among the candidates." in text
    assert not list(_decisions(SimpleNamespace(decisions=())))  # type: ignore[arg-type]


def test_wilson() -> None:
    """Against the textbook's values (8 of 10; 0 of 10)."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
