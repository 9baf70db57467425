"""Figures: what is drawn is what the runs say; files in three formats, the same bytes each time; missing runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer

import ipll
from ipll.paper.catalogue import ACCURACY, Bench, benches, find_bench
from ipll.paper.figure_kinds import COLOURS
from ipll.paper.figures import draw, save

KINDS = {bench.figure: name for name, bench in benches().items() if bench.figure}  # one figure of each kind
PER_TASK = ("accuracy", "new_accuracy", "old_accuracy", "separation_accuracy", "separation_new_recall")


@pytest.fixture(scope="session")
def real(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "results" / "digits" / "pgdr" / "q0.2-10b-seed0.json").read_text())
    return found


def on_digits(name: str) -> Bench:
    return find_bench(name).on("digits")


def fill(bench: Bench, out: Path, real: dict[str, Any], seeds: Iterable[int] = (0, 1)) -> None:
    """A real result for every cell; each entry takes 3 from all accuracies, and each seed 1."""
    for place, entry in enumerate(bench.entries):
        for seed in seeds:
            less = 3.0 * place + seed
            changed = {f"{name}_per_task": minus(real[f"{name}_per_task"], less) for name in PER_TASK}
            changed |= {"preset": entry.preset, "method": entry.method, "seed": seed, ACCURACY: real[ACCURACY] - less}
            folder = entry.cell(seed).folder(out)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").write_text(json.dumps(real | changed))


def minus(values: list[float | None], less: float) -> list[float | None]:
    return [None if value is None else value - less for value in values]


def lines(axes: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axes.get_lines()}


def check_line(line: Any, values: list[float | None], first: int) -> None:
    """The mean of two seeds, the second of which has 1 less."""
    known = [value - 0.5 for value in values if value is not None]
    assert list(line.get_xdata()) == list(range(first, first + len(known)))
    assert list(line.get_ydata()) == pytest.approx(known)


def test_curves(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("cr-kd")
    fill(bench, tmp_path, real)
    drawing = draw(bench, tmp_path, (0, 1))
    assert drawing.notes == ()
    for axes, field in zip(drawing.figure.axes, ("accuracy", "new_accuracy", "old_accuracy"), strict=True):
        drawn = lines(axes)
        assert list(drawn) == ["pgdr", "pgdr/no-cr", "pgdr/no-kd"]
        for place, line in enumerate(drawn.values()):
            check_line(line, minus(real[f"{field}_per_task"], 3.0 * place), 2 if field == "old_accuracy" else 1)
        band = axes.collections[0].get_paths()[0].vertices
        spread = np.ptp(band[band[:, 0] == 3, 1])
        assert spread == pytest.approx(2 * np.std([0, 1], ddof=1))
    assert "digits, 10-blurry, q 0.2; mean ± std, n = 2" in drawing.figure.get_supxlabel()


def test_series_differ_in_more_than_colour(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("memory-size")
    fill(bench, tmp_path, real)
    drawn = lines(draw(bench, tmp_path, (0, 1)).figure.axes[0])
    assert list(drawn) == [f"memory.size {size}" for size in (500, 1000, 2000, 3000, 4000)]
    for look in ("get_color", "get_marker", "get_linestyle"):
        found = [getattr(line, look)() for line in drawn.values()]
        assert len(set(map(str, found))) >= (5 if look != "get_linestyle" else 4), look
    assert {to_hex(line.get_color()).upper() for line in drawn.values()} <= set(COLOURS)


def test_sweep(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("neighbours")
    fill(bench, tmp_path, real)
    (axes,) = draw(bench, tmp_path, (0, 1)).figure.axes
    line, _, (bars,) = axes.containers[0]
    assert list(line.get_xdata()) == [2, 5, 10, 20, 40]
    assert list(line.get_ydata()) == pytest.approx([real[ACCURACY] - 0.5 - 3 * place for place in range(5)])
    assert np.ptp(bars.get_segments()[0][:, 1]) == pytest.approx(2**0.5)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "5", "10", "20", "40"]
    assert "memory.neighbours" in axes.get_xlabel()


def test_a_sweep_of_one_point_still_knows_what_is_swept(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("diverse")
    fill(Bench(bench.name, bench.title, bench.entries[3:4]), tmp_path, real)
    drawing = draw(bench, tmp_path, (0, 1))
    assert list(drawing.figure.axes[0].containers[0][0].get_xdata()) == [0.67]
    assert len(drawing.notes[0].splitlines()) == 2 + 5 * 2


def test_bars(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("contrastive")
    fill(bench, tmp_path, real)
    (axes,) = draw(bench, tmp_path, (0, 1)).figure.axes
    bars = [drawn for drawn in axes.containers if isinstance(drawn, BarContainer)]
    assert [drawn.get_label() for drawn in bars] == ["pgdr", "pico+pgdr"]
    for i, drawn in enumerate(bars):
        expected = [real[ACCURACY] - 0.5 - 3 * (2 * setting + i) for setting in range(4)]
        assert [bar.get_height() for bar in drawn] == pytest.approx(expected)
    assert bars[0][0].get_hatch() != bars[1][0].get_hatch()
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["10-blurry\nq 0.1", "10-blurry\nq 0.2", "30-blurry\nq 0.1", "30-blurry\nq 0.2"]
    assert axes.get_ylim()[0] == 0


def test_prior(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("prior")
    fill(bench, tmp_path, real)
    figure = draw(bench, tmp_path, (0, 1)).figure
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["pico+icarl", "pgdr"]
    for axes in figure.axes:
        (true,) = [patch for patch in axes.patches if patch.get_label() == "true"]
        assert true.get_data().values.tolist() == real["class_prior"]["1"]["true"]
        predicted = {drawn.get_label(): list(drawn[0].get_ydata()) for drawn in axes.containers}
        assert predicted == {f"predicted, epoch {e}": real["class_prior"][e]["predicted"] for e in ("1", "2", "5")}
        shaded = [patch for patch in axes.patches if patch is not true]
        assert [patch.get_x() + patch.get_width() for patch in shaded] == [1.5, 3.5]  # two old classes, two new ones


def test_separation(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("separation-accuracy")
    fill(Bench(bench.name, bench.title, bench.entries[:1]), tmp_path, real)
    drawn = lines(draw(bench, tmp_path, (0, 1)).figure.axes[0])
    check_line(drawn["all"], real["separation_accuracy_per_task"], 2)
    check_line(drawn["new"], real["separation_new_recall_per_task"], 2)
    assert list(drawn["old"].get_ydata()) == pytest.approx(real["separation_old_recall_per_task"][1:])


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_figures_are_written_in_three_formats_the_same_each_time(
    name: str, tmp_path: Path, real: dict[str, Any]
) -> None:
    bench = on_digits(name)
    fill(bench, tmp_path, real, (0,))
    files = save(draw(bench, tmp_path, (0,)), tmp_path / "one")
    assert [file.name for file in files] == [f"{name}.png", f"{name}.svg", f"{name}.pdf"]
    for file, start in zip(files, (b"\x89PNG", b"<?xml", b"%PDF"), strict=True):
        assert file.read_bytes().startswith(start)
    again = save(draw(bench, tmp_path, (0,)), tmp_path / "two")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_what_is_missing_is_listed(tmp_path: Path, real: dict[str, Any], main: Any) -> None:
    bench = on_digits("cr-kd")
    fill(Bench(bench.name, bench.title, bench.entries[1:]), tmp_path, real)
    damaged = bench.entries[1].cell(1).folder(tmp_path) / "result.json"
    damaged.write_text("{")
    target = tmp_path / "figure.svg"
    options = ("--out", tmp_path, "--preset", "digits", "--seeds", "0,1", "--to", target)
    status, out, err = main("figure", "cr-kd", *options)
    assert status == 0
    assert out.split() == ["Written", "to", str(target)]
    assert target.read_text().startswith("<?xml")
    assert f"Warning: {damaged}: damaged" in err
    missing = [line.strip() for line in err.splitlines() if line.startswith("  ")]
    assert set(missing) == {str(bench.entries[place].cell(seed)) for place, seed in ((0, 0), (0, 1), (1, 1))}
    assert f"Make them: ipll bench cr-kd --preset digits --seeds 2 --out {tmp_path}" in err
    drawing = draw(bench, tmp_path, (0, 1))
    drawn = lines(drawing.figure.axes[0])
    assert list(drawn) == ["pgdr/no-cr", "pgdr/no-kd"]
    assert to_hex(drawn["pgdr/no-cr"].get_color()).upper() == COLOURS[1]  # as where the first one is there
    assert "n = 1 to 2" in drawing.figure.get_supxlabel()
    unlike = "seed 0: pgdr/no-cr; seeds 0, 1: pgdr/no-kd"
    assert f"{unlike} (other class orders and streams)" in " ".join(drawing.figure.get_supxlabel().split())
    assert f"Warning: what is drawn rests on {unlike}. Another seed is another class order" in err


def test_curves_of_the_same_seeds_are_not_warned_of(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("cr-kd")
    fill(bench, tmp_path, real, (1,))
    drawing = draw(bench, tmp_path, (0, 1))
    assert "class orders" not in drawing.figure.get_supxlabel()
    assert len(drawing.notes) == 1  # that the others are missing


def test_the_line_below_tells_the_epochs_and_what_was_scored(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("cr-kd")
    fill(bench, tmp_path, real | {"epochs": 200, "later_epochs": 30, "scored_on": "validation"}, (0,))
    below = draw(bench, tmp_path, (0,)).figure.get_supxlabel()
    assert "200/30 epochs a task" in below
    fill(bench, tmp_path, real | {"epochs": 1}, (1,))
    assert "1 epoch a task" in draw(bench, tmp_path, (1,)).figure.get_supxlabel()
    assert "scored on validation samples, not on the test set" in below
    fill(bench, tmp_path, real, (0,))
    assert "validation" not in draw(bench, tmp_path, (0,)).figure.get_supxlabel()


def test_the_line_below_tells_what_was_set(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("cr-kd").with_settings({"stream.q": 0.4, "train.epochs": 3, "auxiliary.kinds": []})
    fill(bench, tmp_path, real, (0,))
    below = draw(bench, tmp_path, (0,)).figure.get_supxlabel()
    assert "digits, 10-blurry, q 0.4; n = 1" in below
    assert "with stream.q=0.4, train.epochs=3, auxiliary.kinds=[]" in below
    assert "0.2" not in below
    fill(on_digits("cr-kd"), tmp_path, real, (0,))
    assert "with" not in draw(on_digits("cr-kd"), tmp_path, (0,)).figure.get_supxlabel()


def test_validation_and_test_runs_in_one_figure_are_refused(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("cr-kd")
    fill(bench, tmp_path, real, (0,))
    fill(bench, tmp_path, real | {"scored_on": "validation"}, (1,))
    with pytest.raises(ipll.RunError, match=r"not scored alike \(on test samples: .*on validation samples: "):
        draw(bench, tmp_path, (0, 1))


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(ipll.RunError, match="Make them with: ipll bench prior --out"):
        draw(find_bench("prior"), tmp_path)


def test_tables_are_not_figures(main: Any) -> None:
    status, _, err = main("figure", "tab1")
    assert status == 2
    assert "tab1 is a table: see it with: ipll table tab1. Figures: " in err


def test_other_formats_are_refused(tmp_path: Path, real: dict[str, Any]) -> None:
    bench = on_digits("prior")
    fill(bench, tmp_path, real, (0,))
    with pytest.raises(ipll.ConfigError, match=r"\.png, \.svg or \.pdf, or into a folder"):
        save(draw(bench, tmp_path, (0,)), tmp_path / "figure.jpeg")


def test_matplotlib_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ipll.ConfigError, match=r"pip install 'ipll\[figures\]'"):
        draw(find_bench("prior"), tmp_path)
