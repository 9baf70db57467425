"""Further methods beside the paper's, packaged ones and people's own, in tables and figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from ipll.paper.catalogue import ACCURACY, Bench, find_bench
from ipll.paper.figures import draw
from ipll.paper.tables import render

MINE = """
from ipll.method import register_method
register_method("cc+icarl", {"memory.size": 60}, base="proden+icarl", doc="PRODEN with a small memory")
"""


@pytest.fixture
def plugin(tmp_path: Path, forget: Callable[[], None]) -> Path:
    """A method of one's own, in a file that no test before has loaded."""
    file = tmp_path / "cc.py"
    file.write_text(MINE)
    return file


@pytest.fixture
def fill(root: Path, tmp_path: Path) -> Callable[[Bench], None]:
    """A real result for every cell; each entry takes 1 from the average accuracy."""
    real = json.loads((root / "results" / "digits" / "pgdr" / "q0.2-10b-seed0.json").read_text())

    def put(bench: Bench) -> None:
        for place, entry in enumerate(bench.entries):
            folder = entry.cell(0).folder(tmp_path)
            folder.mkdir(parents=True, exist_ok=True)
            own = {"preset": entry.preset, "method": entry.method, "seed": 0, ACCURACY: 90.0 - place}
            (folder / "result.json").write_text(json.dumps(real | own))

    return put


def test_a_method_of_ones_own_from_bench_to_table(
    main: Any, command: Callable[..., list[str]], plugin: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    out = tmp_path / "out"
    words = command("tab3", "--plugin", plugin, "--method", "cc+icarl", "--only", "cc+icarl", "--seeds", 2, "--jobs", 1)
    status, shown, err = main(*words)
    assert status == 0, err
    assert [line.split()[0] for line in shown.splitlines() if "±" in line][:1] == ["cc+icarl"]
    assert "n = 2 (seeds 0, 1)" in shown
    assert "4 done, 0 failed, 0 stopped, 0 open" in main(*words, "--dry-run").out
    assert main("table", "tab3", "--out", out, "--plugin", plugin).out == shown  # the folder knows
    forget()
    status, text, err = main("table", "tab3", "--out", out)
    assert (status, text) == (2, "")
    assert "unknown method 'cc+icarl'" in err
    assert "The file itself is whole. Where its campaign is of a plugin, name that: --plugin FILE." in err


def test_it_joins_every_column_without_a_number_of_the_papers(fill: Callable[[Bench], None], tmp_path: Path) -> None:
    tab1 = find_bench("tab1")
    bench = tab1.beside(["pgdr/best", "pico+wa"])  # the second is there already
    added = bench.entries[len(tab1.entries) :]
    assert {entry.method for entry in added} == {"pgdr/best"}
    assert [entry.column for entry in added] == list(dict.fromkeys(entry.column for entry in tab1.entries))
    assert all(entry.paper is None for entry in added)
    assert bench.entries[: len(tab1.entries)] == tab1.entries
    chosen = bench.only(["pgdr/best", "cifar100"]).with_settings({"train.epochs": 3})
    assert len(chosen.cells((0, 1))) == 4 * 2
    assert {cell.config().train.epochs for cell in chosen.cells()} == {3}
    fill(find_bench("running-time").beside(["pgdr/best"]).only(["cifar100"]))
    text = render(find_bench("running-time").beside(["pgdr/best"]), tmp_path, (0,))
    assert next(line.split()[2:] for line in text.splitlines() if line.startswith("pgdr/best")) == ["-", "-"]


def test_in_a_sweep_it_is_swept_too() -> None:
    rows = [entry.row for entry in find_bench("beta").beside(["pgdr/best"]).entries[5:]]
    assert rows[0] == "pgdr/best, disambiguation.beta_start 0.2, disambiguation.beta_end 0.2"
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("tab3", "cc+icarl", "unknown method 'cc+icarl'. Did you mean 'pico+icarl'?"),
        ("beta", "proden+wa", "--method proden+wa cannot join beta, which varies disambiguation.beta_start"),
        ("memory-size", "proden", "proden cannot join memory-size, which varies memory.size: it has no memory."),
        ("separation-accuracy", "pgdr/best", "separation-accuracy is of one method"),
    ],
)
def test_what_cannot_join_is_refused(name: str, method: str, message: str, main: Any, tmp_path: Path) -> None:
    status, out, err = main("bench", name, "--method", method, "--dry-run", "--out", tmp_path)
    assert (status, out) == (2, "")
    assert message in err


def test_only_tells_how_a_further_method_joins(main: Any) -> None:
    err = main("bench", "tab3", "--only", "pgdr/best", "--dry-run").err
    assert "pgdr/best joins with --method pgdr/best." in err


def test_what_is_missing_is_made_with_its_plugin(
    main: Any, plugin: Path, fill: Callable[[Bench], None], tmp_path: Path
) -> None:
    fill(find_bench("tab3").on("digits").only(["pgdr"]))
    words = ("tab3", "--preset", "digits", "--method", "cc+icarl", "--plugin", plugin, "--seeds", 1)
    text = main("table", *words, "--out", tmp_path).out
    assert f"ipll bench tab3 --preset digits --method cc+icarl --plugin {plugin} --seeds 1 --out {tmp_path}" in text
    err = main("table", *words, "--out", tmp_path / "none").err
    assert "holds no finished run of tab3. Make them with: ipll bench tab3 --preset digits --method cc+icarl" in err


# Figures


def looks(axes: Axes) -> set[tuple[str, ...]]:
    return {tuple(str(getattr(line, f"get_{what}")()) for what in ("color", "marker")) for line in axes.get_lines()}


def test_curves_of_a_further_method_look_like_no_other(fill: Callable[[Bench], None], tmp_path: Path) -> None:
    bench = find_bench("memory-size").on("digits").beside(["pgdr/best"])
    fill(bench)
    axes = draw(bench, tmp_path, (0,)).figure.axes[0]
    names = [str(line.get_label()) for line in axes.get_lines()]
    assert names[0] == "pgdr, memory.size 500"
    assert names[-1] == "pgdr/best, memory.size 4000"
    assert len(looks(axes)) == len(names) == 10


def test_a_sweep_has_a_line_for_each_method(fill: Callable[[Bench], None], tmp_path: Path) -> None:
    bench = find_bench("neighbours").on("digits").beside(["pgdr/best"])
    fill(bench)
    figure = draw(bench, tmp_path, (0,)).figure
    drawn = {str(one.get_label()): list(one[0].get_ydata()) for one in figure.axes[0].containers}
    assert drawn == {"pgdr": [90, 89, 88, 87, 86], "pgdr/best": [85, 84, 83, 82, 81]}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["pgdr", "pgdr/best"]


def test_bars_of_more_methods_than_hatches(fill: Callable[[Bench], None], tmp_path: Path) -> None:
    more = ["pgdr/best", "pgdr/boosted", "proden", "proden+wa", "pico+wa", "papi"]
    bench = find_bench("contrastive").on("digits").beside(more)
    fill(bench)
    assert len(draw(bench, tmp_path, (0,)).figure.axes[0].patches) == 8 * 4


def test_the_prior_of_a_further_method_has_a_panel(fill: Callable[[Bench], None], tmp_path: Path) -> None:
    bench = find_bench("prior").on("digits").beside(["proden"])
    fill(bench)
    panels = [axes.texts[0].get_text() for axes in draw(bench, tmp_path, (0,)).figure.axes]
    assert panels == ["pico+icarl", "pgdr", "proden"]


def test_without_runs_of_it_nothing_published_is_shown_instead(main: Any, tmp_path: Path) -> None:
    status, _, err = main("figure", "contrastive", "--method", "pgdr/best", "--out", tmp_path)
    assert status == 2
    assert "Make them with: ipll bench contrastive --method pgdr/best" in err
