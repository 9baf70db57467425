"""What we publish: the numbers are those of the files, each says how it was trained, and protocols stay apart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest
from matplotlib.patches import Rectangle

import ipll
from ipll.config import resolve
from ipll.method import method_table, our_methods
from ipll.paper import measured as shipped
from ipll.paper.catalogue import ACCURACY, find_bench
from ipll.paper.figures import draw_published
from ipll.paper.measured import Protocol, line_of, measured, place, published_numbers
from ipll.paper.overview import overview
from scripts import load_script

Main = Callable[..., Any]
Made = Callable[..., dict[str, Any]]
PAPERS = "the paper's protocol: 200 epochs a task, batches of 256"
FAST = "our training, preset cifar100-fast: 200 epochs in the first task, 30 in each later one, batches of 64"


@pytest.fixture(scope="session")
def publish(root: Path) -> ModuleType:
    if not (root / "results").is_dir():
        pytest.skip("the results lie in the repository, not in the source distribution")
    return load_script("publish", "results")


@pytest.fixture(scope="session")
def made(root: Path) -> Made:
    """A result, as a run of these settings would leave it."""
    real = json.loads((root / "results" / "digits" / "pgdr" / "q0.2-10b-seed0.json").read_text())

    def make(preset: str, method: str, accuracy: float = 50.0, seed: int = 0, **settings: Any) -> dict[str, Any]:
        overrides = {key.replace("__", "."): value for key, value in settings.items()}
        config = resolve(preset, method, seed=seed, overrides=overrides)
        epochs = {"epochs": config.train.epochs, "later_epochs": config.train.later_epochs}
        own = {"preset": preset, "method": method, "seed": seed, "config": config.to_table(), ACCURACY: accuracy}
        environment = {"hardware": "H200", "commit": "c0ffee", "packages": {"torch": "2.11.0"}}
        return real | own | epochs | {"environment": environment}

    return make


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """As if just these results were published."""

    def put(*results: dict[str, Any]) -> None:
        lines = [line_of(one, f"results/{i}.json") + "\n" for i, one in enumerate(results)]
        (tmp_path / "measured.jsonl").write_text("".join(lines))
        monkeypatch.setattr(shipped, "FILE", str(tmp_path / "measured.jsonl"))
        measured.cache_clear()

    yield put
    measured.cache_clear()


@pytest.fixture
def some(ship: Callable[..., None], made: Made) -> None:
    best = [made("cifar100-fast", "pgdr/best", accuracy, seed) for seed, accuracy in enumerate((75.0, 76.0, 77.0))]
    more = [made("cifar100", "pgdr", 65.0, stream__blurry=30), made("cifar100-fast", "pgdr", 69.0)]
    ship(made("cifar100", "pico+pgdr", 61.5), made("cifar100-fast", "pico+pgdr", 69.0), *best, *more)


# The files


def test_what_ships_is_what_the_files_hold(publish: ModuleType, root: Path) -> None:
    """After a change of either: python results/publish.py."""
    assert (root / "src" / "ipll" / shipped.FILE).read_text() == publish.lines()


def test_the_page_is_what_the_commands_print(publish: ModuleType, root: Path, main: Main) -> None:
    page = publish.PAGE.read_text()
    assert publish.filled(page, lambda words: main(*words).out) == page
    shown = set(re.findall(r"<!-- ipll table published --preset (\S+)", page))
    assert shown == {one.protocol.preset for one in measured()}
    assert all(f"(../{file})" in page for one in measured() for file in one.files)


def test_a_number_is_the_mean_of_its_files(root: Path, publish: ModuleType) -> None:
    for one in measured():
        results = [json.loads((root / file).read_text()) for file in one.files]
        assert one.ours == pytest.approx(mean(result[ACCURACY] for result in results), abs=1e-4)
        assert one.last == pytest.approx(mean(result["accuracy_per_task"][-1] for result in results), abs=1e-4)
        assert len({result["seed"] for result in results}) == len(results)
        assert (one.paper is None) or one.method not in our_methods()
        for result in results:
            stream = result["config"]["stream"]
            assert result["config"]["data"]["source"] == one.setting.dataset
            assert (stream["tasks"], stream["blurry"]) == (one.setting.tasks, one.setting.blurry)
            assert one.setting.q in (stream["candidates"], f"{stream['q']:g}")
            assert resolve("digits", result["method"]).parts == resolve("digits", one.method).parts
    assert {one.method for one in measured()} <= set(method_table())


def test_numbers_on_validation_samples_are_not_published(made: Made) -> None:
    with pytest.raises(ValueError, match="scored on validation samples"):
        line_of(made("cifar100", "pgdr") | {"scored_on": "validation"}, "x.json")


# Settings and protocols


@pytest.mark.parametrize(
    ("preset", "settings", "setting", "words"),
    [
        ("cifar100", {}, "cifar100, 10 tasks, 10-blurry, q 0.1", PAPERS),
        ("cifar100", {"stream__q": 0.2, "stream__tasks": 20}, "cifar100, 20 tasks, 10-blurry, q 0.2", PAPERS),
        ("cifar100", {"stream__candidates": "banded"}, "cifar100, 10 tasks, 10-blurry, banded", PAPERS),
        ("cifar100", {"memory__size": 500}, "cifar100, 10 tasks, 10-blurry, q 0.1, memory.size 500", PAPERS),
        ("cifar100-h", {"train__threads": 3}, "cifar100-h, 10 tasks, 10-blurry, q 0.1", PAPERS),
        ("cifar100-fast", {"stream__q": 0.0}, "cifar100, 10 tasks, 10-blurry, q 0", FAST),
        (
            "cifar100-fast",  # the stream of that data set, which the paper has
            {"data__source": "cifar100-h", "stream__order": "superclass"},
            "cifar100-h, 10 tasks, 10-blurry, q 0.1",
            FAST,
        ),
        (
            "digits",
            {"train__epochs": 1},
            "digits, 5 tasks, 10-blurry, q 0.2",
            "our training, preset digits, train.epochs=1: 1 epoch a task, batches of 128",
        ),
        (
            "cifar100",
            {"train__epochs": 40},
            "cifar100, 10 tasks, 10-blurry, q 0.1",
            "our training, preset cifar100, train.epochs=40: 40 epochs a task, batches of 256",
        ),
    ],
)
def test_where_a_run_belongs(made: Made, preset: str, settings: dict[str, Any], setting: str, words: str) -> None:
    found, protocol = place(made(preset, "pgdr", **settings)["config"], preset, "pgdr")
    assert (str(found), str(protocol)) == (setting, words)
    assert protocol.is_papers == (words == PAPERS)


def test_weights_are_told_by_their_name(made: Made) -> None:
    config = made("cub200", "pgdr")["config"]
    config["model"] |= {"weights": "/home/me/resnet.pt", "weights_sha256": "abc"}
    _, protocol = place(config, "cub200", "pgdr")
    assert protocol == Protocol("cub200", (("model.weights", "resnet.pt"),))
    assert not protocol.is_papers


def test_what_was_done_otherwise_before_there_was_a_setting_is_told(made: Made) -> None:
    """C-Flat's terms weighed as WA's do."""
    for method, told in (("pico+c-flat", (("retention.weighting", "classes"),)), ("pico+wa", ())):
        config = made("cifar100-fast", method)["config"]
        del config["retention"]["weighting"]
        assert place(config, "cifar100-fast", method)[0].swept == told


def test_settings_that_an_old_file_does_not_know_are_as_now(made: Made) -> None:
    config = made("cifar100-fast", "pgdr")["config"]
    del config["memory"]["compared"], config["train"]["graphs"]
    assert place(config, "cifar100-fast", "pgdr")[1] == Protocol("cifar100-fast")


@pytest.mark.usefixtures("some")
def test_the_methods_listing_tells_how_a_number_was_trained(main: Main) -> None:
    text = main("methods", "pgdr").out
    assert "  65.00 (paper 65.54), cifar100, 10 tasks, 30-blurry, q 0.1, 200 epochs, n = 1: results/5.json\n" in text
    text = main("methods", "pgdr/best").out
    assert "q 0.1, 200/30 epochs, our training, preset cifar100-fast, n = 3: results/2.json and 2 more" in text
    text = main("methods").out
    assert "76.00* / -" in text
    assert "61.50 / 69.84 (+1)" in text


# Tables without runs of one's own


def blocks(text: str) -> dict[str, list[str]]:
    """-> the rows below each line that says how ours were trained."""
    found: dict[str, list[str]] = {}
    for part in text.split("\n\n"):
        for line in part.splitlines():
            if line.startswith("ours under "):
                found.setdefault(line.removeprefix("ours under "), []).extend(part.splitlines()[2:])
    return found


@pytest.mark.usefixtures("some")
def test_a_table_without_runs_shows_what_is_published(main: Main, tmp_path: Path) -> None:
    status, out, err = main("table", "tab1", "--out", tmp_path / "runs")
    assert (status, err) == (0, "")
    papers, ours = (" ".join(" ".join(rows).split()) for rows in map(blocks(out).get, (PAPERS, FAST)) if rows)
    assert "pico+pgdr 61.50 [1] 69.84 -8.34 " in papers
    assert "pico+wa - 67.31 - " in papers
    assert "pico+pgdr 69.00 [2] 69.84 -0.84" in ours
    assert "pgdr/best 76.00 ± 1.00 [3] - -" in ours
    assert "pgdr/best" not in papers
    assert "papi+bic" not in ours
    assert "[3] n = 3 (seeds 0, 1, 2), 200/30 epochs a task, H200, torch 2.11.0, commit c0ffee." in out
    assert "Ours are the numbers that ipll publishes" in out
    assert f"A dash: not published; this makes them: ipll bench tab1 --out {tmp_path / 'runs'}" in out
    assert "Paper: of 3 runs, always under its own protocol." in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("some")
@pytest.mark.parametrize("fmt", ["markdown", "latex", "csv"])
def test_every_format_tells_the_protocol(main: Main, tmp_path: Path, fmt: str) -> None:
    text = main("table", "tab1", "--only", "cifar100", "--out", tmp_path, "--format", fmt).out
    assert PAPERS in text
    assert FAST in text


@pytest.mark.usefixtures("some")
def test_of_a_table_some_rows(main: Main, tmp_path: Path) -> None:
    out = main("table", "tab1", "--only", "pgdr/best", "--out", tmp_path).out
    assert list(blocks(out)) == [FAST]
    assert "--only wa: no cell of tab1" in main("table", "tab1", "--only", "wa", "--out", tmp_path).err


@pytest.mark.usefixtures("some")
def test_a_table_of_which_nothing_is_published_has_the_papers_numbers(main: Main, tmp_path: Path) -> None:
    status, out, _ = main("table", "running-time", "--out", tmp_path)
    assert status == 0
    assert "We have published none of these numbers." in out
    assert "8.50" in out
    status, _, err = main("table", "memory-size", "--out", tmp_path)  # of which the paper prints no numbers
    assert status == 2
    assert f"Make them with: ipll bench memory-size --out {tmp_path}" in err


def test_other_data_sets_sweeps_and_settings_find_their_place(
    ship: Callable[..., None], made: Made, tmp_path: Path
) -> None:
    swept = {"disambiguation__beta_start": 0.4, "disambiguation__beta_end": 0.4, "stream__q": 0.2}
    usual = made("cifar100", "pgdr", 62.0, stream__q=0.2)  # also the middle of the sweep of alpha
    short = made("cifar100", "pgdr", 41.0, stream__q=0.2, train__epochs=40)
    ship(made("cifar100", "pgdr", **swept), usual, short, made("cifar100-h", "pico+pgdr"))
    found = {
        name: [(n.entry.row, n.entry.column, n.protocol) for n in published_numbers(find_bench(name)) if n.runs]
        for name in ("alpha", "beta", "tab2", "tab3")
    }
    column, less = "cifar100, 10 tasks, 10-blurry, q 0.2", str(Protocol("cifar100", (("train.epochs", 40),)))
    beta = "pgdr, disambiguation.beta_start 0.4, disambiguation.beta_end 0.4"
    assert found["beta"] == [(beta, column, PAPERS)]
    assert found["alpha"] == [("pgdr, separation.alpha 0.8", column, which) for which in (PAPERS, less)]
    assert found["tab2"] == [("pico+pgdr", "cifar100-h, 10 tasks, 10-blurry, q 0.1", PAPERS)]
    assert found["tab3"] == [("pgdr", column, which) for which in (PAPERS, less)]


# All of it


@pytest.mark.usefixtures("some")
def test_the_overview(main: Main) -> None:
    status, out, err = main("table", "published", "--format", "csv")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 1 + 5
    text = main("table", "published").out
    assert text.index(f"Ours under {PAPERS}") < text.index(f"Ours under {FAST}")
    assert re.search(r"q 0.1 +pgdr/best +76.00 ± 1.00 +3 +98.1 +- +69.84 pico\+pgdr", text)
    assert (
        "[75.00](../results/2.json), [76.00](../results/3.json)"
        in main("table", "published", "--format", "markdown").out
    )
    assert overview("text", preset="cifar100").count("Ours under") == 1
    assert len(overview("csv", only=["pgdr/best"]).splitlines()) == 1 + 1
    both = main("table", "published", "--preset", "cifar100", "--only", "pgdr/best").err
    assert "--preset cifar100 --only pgdr/best: nothing of that kind was published" in both
    assert "--format must be one of text, markdown, csv" in main("table", "published", "--format", "latex").err


@pytest.mark.usefixtures("some")
def test_the_overview_of_a_preset_without_numbers(main: Main) -> None:
    status, _, err = main("table", "published", "--preset", "cifar10")
    assert (status, "unknown preset 'cifar10'. Did you mean 'cifar100'?" in err) == (2, True)
    status, _, err = main("table", "published", "--preset", "digits")
    assert (status, "no number of it was published. There are some of cifar100, cifar100-fast." in err) == (2, True)


@pytest.mark.usefixtures("some")
def test_links_of_the_overview_lead_to_files(main: Main, tmp_path: Path) -> None:
    """Where there is none to lead to, the number stands by itself."""
    (tmp_path / "checkout" / "results").mkdir(parents=True)
    (tmp_path / "checkout" / "results" / "2.json").touch()
    for to, expected in {
        "checkout/all.md": "[75.00](results/2.json), 76.00, 77.00",
        "checkout/docs/deeper/all.md": "[75.00](../../results/2.json), 76.00, 77.00",
        "checkout/../elsewhere/too.md": "| 75.00, 76.00, 77.00 |",
        "elsewhere/all.md": "| 75.00, 76.00, 77.00 |",
    }.items():
        assert main("table", "published", "--format", "markdown", "--to", tmp_path / to).status == 0
        assert expected in (tmp_path / to).read_text()


@pytest.mark.parametrize("option", [("--seeds", "2"), ("--set", "train.epochs=2")])
def test_the_overview_takes_no_option_that_it_would_ignore(main: Main, option: tuple[str, str]) -> None:
    status, _, err = main("table", "published", *option)
    assert status == 2
    assert "it takes --preset and --only alone" in err


# Figures


@pytest.mark.usefixtures("some")
def test_a_figure_is_of_one_protocol(main: Main, tmp_path: Path) -> None:
    drawing = draw_published(find_bench("contrastive"), tmp_path)
    assert PAPERS in drawing.figure.get_supxlabel()
    heights = [bar.get_height() for bar in drawing.figure.axes[0].patches if isinstance(bar, Rectangle)]
    assert sorted(height for height in heights if height) == [61.5, 65.0]
    assert any(FAST in note for note in drawing.notes)
    status, out, err = main("figure", "contrastive", "--out", tmp_path, "--to", tmp_path / "a.svg")
    assert (status, "runs that ipll publishes" in err) == (0, True)
    assert "a.svg" in out


@pytest.mark.usefixtures("some")
def test_a_figure_of_which_nothing_is_published(tmp_path: Path) -> None:
    for name in ("memory-size", "prior"):
        with pytest.raises(ipll.RunError, match=f"Make them with: ipll bench {name}"):
            draw_published(find_bench(name), tmp_path)
