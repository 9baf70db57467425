"""Charts hold what they are given, whatever it is called, and can be read without colour."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import ATTACKS

from ipll.pages.charts import Series, line_chart, percent_ticks, spread
from ipll.pages.drawings import heat_map, prior_chart, share_bars


def test_charts_escape_names_in_svg() -> None:
    for attack in ATTACKS:
        drawings = (
            line_chart(
                [Series(attack, [50.0, None, 70.0], 0)],
                title=attack,
                unit="%",
                ticks=range(0, 101, 20),
                end_labels=True,
            ),
            heat_map([[1.0]], title=attack),
            prior_chart([attack], [1], [2], old=0, title=attack, most=2),
            share_bars([(attack, [(attack, 40.0)])], title=attack, kinds=["right"], marks=[50.0]),
        )
        for drawing in drawings:
            root = ElementTree.fromstring(drawing)  # well-formed, so nothing has broken out
            assert {element.tag for element in root.iter()} <= {
                "svg",
                "title",
                "desc",
                "g",
                "path",
                "line",
                "rect",
                "text",
            }
            assert root.findtext("title") == attack


def test_lines_differ_in_more_than_colour_and_break_where_a_value_is_missing() -> None:
    series = [Series(str(i), [90.0, None, 80.0, 70.0], i) for i in range(12)]
    root = ElementTree.fromstring(line_chart(series, title="t", unit="%", ticks=range(0, 101, 20)))
    groups = root.findall("g")
    looks = set()
    for group in groups:
        line, mark = group[0], group[1]
        assert re.sub(r"[^ML]", "", line.get("d", "")) == "MML"
        assert len(group.findall("path[@class='mark']")) == 3
        looks.add((line.get("stroke-dasharray"), mark.get("d")))
    assert len(looks) == 12


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([98.6, 100.0], [90, 92, 94, 96, 98, 100]),
        ([None, 3.0], [0, 2, 4, 6, 8, 10]),
        ([41.0, 69.9], [40, 45, 50, 55, 60, 65, 70]),
        ([0.0, 100.0], [0, 20, 40, 60, 80, 100]),
        ([None], [0, 20, 40, 60, 80, 100]),
    ],
)
def test_ticks_are_round_and_hold_all_values(values: list[float | None], ticks: list[int]) -> None:
    assert list(percent_ticks(values)) == ticks


def test_end_labels_do_not_overlap() -> None:
    placed = spread([100.0, 98.0, 99.0, 20.0], 16, 110)
    assert sorted(placed) == [20.0, 78.0, 94.0, 110.0]
    assert np.argsort(placed).tolist() == [3, 1, 2, 0]


def test_a_group_has_a_band_and_its_runs_lines() -> None:
    group = Series("a", [90.0, None, 80.0, 70.0], 0, [1.0, None, 2.0, 3.0], [[91.0, None, 82.0, 73.0]] * 3)
    root = ElementTree.fromstring(line_chart([group], title="t", unit="%", ticks=range(0, 101, 20)))
    (band,) = root.findall("g/polygon")  # a value alone has no band
    corners = np.array(band.get("points", "").split(), dtype=float).reshape(-1, 2)
    assert np.abs(corners[:2, 1] - corners[:1:-1, 1]) == pytest.approx([2 * 2 * 1.6, 2 * 3 * 1.6], abs=0.2)
    assert len(root.findall("g/path[@class='member']")) == 3


def test_shares_fill_their_bar() -> None:
    parts = [("right", 50.0), ("wrong", 30.0), ("lost", 20.0)]
    root = ElementTree.fromstring(share_bars([("task 1", parts)], title="t", kinds=["a", "b", "c"], marks=[25.0]))
    widths = [float(part.get("width", "")) for part in root.findall("rect")]
    assert np.array(widths) / sum(widths) == pytest.approx([0.5, 0.3, 0.2], abs=1e-3)
    assert [part.findtext("title") for part in root.findall("rect")] == [
        "task 1: right 50.0 %",
        "task 1: wrong 30.0 %",
        "task 1: lost 20.0 %",
    ]
    assert "right 50.0 %, wrong 30.0 %, lost 20.0 %" in (root.findtext("desc") or "")
