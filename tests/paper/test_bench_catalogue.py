"""The catalogue: every number of the paper has its runs, tables share them, and a folder's name tells its settings."""

from __future__ import annotations

import csv
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ipll.errors import ConfigError
from ipll.paper.campaigns.plan import Plan, parse_seeds
from ipll.paper.catalogue import Cell, benches, find_bench
from ipll.paper.wording import freeze

LABELS = {
    "tab1": ["tab:tab1"], "tab2": ["tab:tab2"], "tab3": ["tab:tab3"], "non-blurry": ["tab:non-blurry"],
    "banded": ["tab:fig_non"], "tasks": ["tab:tasks"], "proden": ["tab:table7", "tab:table8"],
    "c-flat": ["tab:c-flat"], "terial": ["tab:terial"], "beta": ["tab:beta"], "alpha": ["tab:alpha"],
    "classification": ["tab:classification"], "pgdr-cl": ["tab:pgdr_cl"], "separation": ["tab:separation"],
    "running-time": ["tab:results"], "std": ["tab:std"], "separation-accuracy": ["sec:separation"],
}  # fmt: skip
OUT = Path("out")


def rows_of_the_paper() -> Counter[str]:
    text = resources.files("ipll").joinpath("paper/paper_results.csv").read_text(encoding="utf-8")
    return Counter(row["table"] for row in csv.DictReader(text.splitlines()))


@pytest.mark.parametrize(("name", "labels"), LABELS.items())
def test_every_number_of_a_table_is_an_entry(name: str, labels: list[str]) -> None:
    entries = find_bench(name).entries
    assert len(entries) == sum(rows_of_the_paper()[label] for label in labels)
    assert all(entry.paper is not None for entry in entries)


def test_every_table_of_the_paper_is_there() -> None:
    assert set(rows_of_the_paper()) == {label for labels in LABELS.values() for label in labels}
    figures = {"prior", "new-old", "disambiguation", "memory", "neighbours", "diverse", "memory-size", "cr-kd"}
    assert set(benches()) == {*LABELS, *figures, "contrastive"}


def test_every_cell_is_a_run_that_can_be_made() -> None:
    """All tables and figures, on the data sets that are there; one seed stands for all."""
    for bench in benches().values():
        for cell in bench.cells((0,)):
            assert cell.config().method == cell.method


def test_how_many_runs_a_table_takes() -> None:
    assert len(find_bench("tab3").cells()) == 12 * 3
    assert len(find_bench("tab3").cells((7,))) == 12
    assert len(find_bench("separation-accuracy").cells()) == 3  # three numbers of the same runs
    assert len(find_bench("tab1").cells((0,))) == 112


@pytest.mark.usefixtures("fewer_presets")
def test_without_a_preset_there_is_nothing_to_run() -> None:
    assert len(find_bench("tab1").cells((0,))) == 56


def test_tables_and_figures_share_runs() -> None:
    def folders(name: str) -> set[Path]:
        return {cell.folder(OUT) for cell in find_bench(name).cells((0,))}

    plain = OUT / "cifar100" / "pgdr" / "default" / "seed0"
    for name in ("tab3", "prior", "new-old", "memory-size", "cr-kd", "contrastive", "classification"):
        shared = [folder for folder in folders(name) if folder.parts[:3] == plain.parts[:3]]
        assert shared, name
    assert len(folders("prior") & folders("new-old")) == 2
    assert folders("tab3") & folders("memory-size")
    assert folders("tab3") & folders("contrastive")


def test_a_folder_is_named_after_what_differs() -> None:
    def folder(**settings: object) -> str:
        cell = Cell("digits", "pgdr/mp", 4, freeze({key.replace("__", "."): v for key, v in settings.items()}))
        return cell.folder(OUT).relative_to(OUT / "digits" / "pgdr--mp").as_posix()

    assert folder() == folder(train__epochs=20) == "default/seed4"  # the preset's own
    assert folder(train__epochs=5, stream__q=0.1) == "stream.q=0.1,train.epochs=5/seed4"
    assert folder(train__lr=0.1234567) != folder(train__lr=0.1234568)
    assert folder(auxiliary__kinds=["consistency"]) == "default/seed4"
    assert folder(auxiliary__kinds=[]) != "default/seed4"
    assert folder(model__backbone="small-cnn", train__epochs=5) == folder(train__epochs=5)


def test_many_settings_make_no_name_that_the_disk_refuses() -> None:
    keys = [
        "lr",
        "momentum",
        "weight_decay",
        "epochs",
        "batch_size",
        "steps_per_epoch",
        "threads",
        "checkpoint_seconds",
    ]
    settings = {f"train.{key}": 0.123456789 if key in keys[:3] else 123456789 for key in keys}
    settings |= {"stream.q": 0.987654321, "stream.blurry": 12.3456789, "prototypes.gamma": 0.123456789}
    names = {
        Cell("digits", "pgdr", 0, freeze(settings | {"train.threads": n})).folder(OUT).parent.name for n in (1, 2, 3)
    }
    assert len(names) == 3
    assert all(len(name) < 255 for name in names)


def test_on_another_data_set() -> None:
    tasks = find_bench("tasks").on("digits")
    assert len(tasks.entries) == 14  # 20 and 25 tasks are one setting there
    assert {entry.preset for entry in tasks.entries} == {"digits"}
    assert all(entry.paper is None for entry in tasks.entries)


def test_only() -> None:
    tab1 = find_bench("tab1")
    assert {entry.method for entry in tab1.only(["pico+icarl"]).entries} == {"pico+icarl"}
    assert {entry.preset for entry in tab1.only(["cifar100"]).entries} == {"cifar100"}
    assert {entry.settings["stream.q"] for entry in tab1.only(["q 0.2"]).entries} == {0.2}
    assert tab1.only([]) == tab1
    with pytest.raises(ConfigError, match="no cell of tab1"):
        tab1.only(["resnet"])


def test_own_settings_win() -> None:
    bench = find_bench("tab3").on("digits").with_settings({"stream.q": 0.05, "train.epochs": 3})
    cells = bench.cells((0,))
    assert {(cell.config().stream.q, cell.config().train.epochs) for cell in cells} == {(0.05, 3)}
    assert len(cells) == 12
    assert {entry.column for entry in bench.entries} == {"digits, 10-blurry, q 0.05", "digits, 30-blurry, q 0.05"}


@pytest.mark.parametrize(
    ("name", "preset", "settings", "message"),
    [
        (
            "tab3", "digits", {"stream.blurry": 50},
            "--set stream.blurry=50: tab3 itself varies stream.blurry (10, 30), so its labels would be false. Choose a "
            "column with --only 10-blurry or --only 30-blurry, or make a run of your own: ipll run digits --method "
            "pgdr --set stream.blurry=50",
        ),
        ("tab3", "digits", {"stream.blurry": 30}, "itself varies stream.blurry"),
        (
            "memory-size", None, {"memory.size": 30},
            "varies memory.size (500, 1000, 2000, 3000, 4000), so its labels would be false. Make a run of your own: ",
        ),
        ("beta", None, {"train.epochs": 2, "disambiguation.beta_start": 0.5}, "--set disambiguation.beta_start=0.5: "),
        ("tab1", None, {"stream.candidates": "banded"}, "--set stream.candidates=banded: tab1 itself varies stream.q"),
        ("tab1", None, {"data.source": "digits"}, "varies data.source (cifar100, tiny-imagenet)"),
        (
            "tab3", None, {"stream.q": 0.1},
            "tab3 is of stream.q=0.2, as the paper's numbers in it are. Leave the paper's numbers out with --preset "
            "cifar100, or make a run",
        ),
        ("tab3", None, {"data.source": "digits"}, "tab3 is of data.source=cifar100, as the paper's numbers"),
        ("tasks", None, {"stream.tasks": 5}, "or leave the paper's numbers out with --preset cifar100, or"),
    ],
)  # fmt: skip
def test_what_a_table_varies_cannot_be_set(
    name: str, preset: str | None, settings: dict[str, Any], message: str
) -> None:
    bench = find_bench(name).on(preset) if preset else find_bench(name)
    with pytest.raises(ConfigError, match=re.escape(message)):
        bench.with_settings(settings)


def test_what_a_table_says_already_may_be_set() -> None:
    assert len(find_bench("tab3").with_settings({"stream.q": 0.2, "stream.tasks": 10}).cells((0,))) == 12


def test_labels_tell_what_was_set() -> None:
    def labels(**settings: object) -> tuple[str, str]:
        options = {key.replace("__", "."): value for key, value in settings.items()}
        entry = find_bench("cr-kd").on("digits").with_settings(options).entries[1]
        return entry.column, entry.row

    assert labels(stream__q=0.4, train__epochs=3) == ("digits, 10-blurry, q 0.4", "pgdr/no-cr")
    assert labels(stream__candidates="banded") == ("digits, 10-blurry, banded", "pgdr/no-cr")  # which has no q
    assert labels(data__source="folder") == ("folder (preset digits), 10-blurry, q 0.2", "pgdr/no-cr")
    assert labels(data__source="digits") == ("digits, 10-blurry, q 0.2", "pgdr/no-cr")


@pytest.mark.parametrize(
    ("text", "found"), [("3", (0, 1, 2)), ("1", (0,)), ("0,4", (0, 4)), ("5,", (5,)), ("2,2", (2,))]
)
def test_seeds(text: str, found: tuple[int, ...]) -> None:
    assert parse_seeds(text) == found


@pytest.mark.parametrize("text", ["", "0", "a", "1.5", "-1", "0,-1", "1,b", ","])
def test_bad_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds takes how many"):
        parse_seeds(text)


@pytest.mark.usefixtures("fewer_presets")
def test_a_plan_has_each_run_once_and_counts_what_is_missing(tmp_path: Path) -> None:
    plan = Plan.make(find_bench("tab1"), (0, 1), tmp_path)
    assert len(plan.tracks) == 112
    assert plan.missing == {"tiny-imagenet": 112}
    assert "not available here: 112 cells on tiny-imagenet" in next(iter(plan.warnings()))
    assert not list(tmp_path.iterdir())
