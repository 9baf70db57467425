"""The report in a real browser: it opens fast, asks for nothing, works by keyboard, on a phone and in the dark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, chromium
from page_checks import check_contrast, check_keyboard, check_structure, check_width, focus
from pages import ATTACKS, make_run

import ipll
from ipll.engine.sealed import read_sealed, write_sealed
from ipll.report.build import write_report

TASKS, CLASSES, RUNS = 10, 100, 20
SHOWN = "document.querySelectorAll('.card:not([hidden])').length"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of a short run on digits, and the same learner without a memory."""
    folder = tmp_path_factory.mktemp("real")
    chosen = [("pgdr", 0), ("pgdr", 1), ("pgdr/no-memory", 0)]
    runs = [folder / str(i) for i in range(len(chosen))]
    for (method, seed), out in zip(chosen, runs, strict=True):
        ipll.run("digits", method, seed=seed, out=out, **{"train.epochs": 2})
    return runs


@pytest.fixture(scope="module")
def page(real: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert write_report(real, out) == []
    return out


@pytest.fixture(scope="module")
def large(real: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over 20 runs of 10 tasks of 100 classes: four methods, five seeds each."""
    folder = tmp_path_factory.mktemp("large")
    runs = [enlarge(real[0], folder / str(i), f"method{i // 5}", i % 5) for i in range(RUNS)]
    out = folder / "report.html"
    assert write_report(runs, out) == []
    return out


def enlarge(run: Path, out: Path, method: str, seed: int) -> Path:
    """A real run's result and gallery stretched to more tasks and classes, with colour pictures that hardly shrink."""
    rng = np.random.default_rng(seed)
    result: dict[str, Any] = read_sealed(run / "result.json")
    tasks = len(result["accuracy_per_task"])
    for key, values in result.items():
        if key.endswith("_per_task"):
            known = [value for value in values if value is not None] or [0.0]
            later = np.interp(np.linspace(0, 1, TASKS - 1), np.linspace(0, 1, len(known)), known)
            result[key] = [values[0], *np.clip(later - 3 * rng.random(TASKS - 1), 0, 100)]
    width = CLASSES // TASKS
    confusion = 80 * np.eye(CLASSES, dtype=int) + rng.integers(0, 2, (CLASSES, CLASSES))
    counts = rng.integers(20, 500, 2 * width).tolist()
    result |= {
        "method": method,
        "seed": seed,
        "config": result["config"] | {"method": method, "seed": seed},
        "class_names": [f"a class with a name {c}" for c in range(CLASSES)],
        "seen_classes_per_task": [width * (t + 1) for t in range(TASKS)],
        "accuracy_matrix": [[90.0 - t + j if j <= t else None for j in range(TASKS)] for t in range(TASKS)],
        "confusion": confusion.tolist(),
        "class_prior": {epoch: {"predicted": counts, "true": counts[::-1]} for epoch in ("1", "2", "5")},
    }
    with np.load(run / "gallery.npz") as file:
        samples = json.loads(str(file["samples"]))
    for i, sample in enumerate(samples):
        sample["task"] = i * TASKS // len(samples)
        sample["candidates"] = sorted({sample["settled"], sample["truth"], *rng.integers(0, width, 8).tolist()})
    assert tasks < TASKS
    out.mkdir()
    write_sealed(out / "result.json", result)
    images = rng.integers(0, 256, (len(samples), 3, 64, 64), dtype=np.uint8)
    np.savez_compressed(out / "gallery.npz", images=images, samples=np.array(json.dumps(samples)))
    return out


def test_a_page_asks_for_nothing_and_reports_no_error(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab", "Enter", "Tab")
    assert browser.problems() == []
    assert browser.requests() == [page.resolve().as_uri()]


def test_a_report_over_many_runs_opens_fast_and_stays_small(browser: Browser, large: Path) -> None:
    assert large.stat().st_size < 10e6
    assert min(browser.open(large) for _ in range(2)) < 2.0
    assert browser.problems() == []
    assert browser.evaluate("document.querySelector('h1').textContent") == "20 runs compared"
    assert browser.evaluate("document.querySelectorAll('tr.single').length") == RUNS
    assert browser.evaluate("document.querySelectorAll('details.run[open]').length") == 0


@pytest.mark.parametrize("name", ["page", "large"])
@pytest.mark.parametrize("width", [360, 768])
def test_nothing_sticks_out_of_a_narrow_screen(
    browser: Browser, request: pytest.FixtureRequest, name: str, width: int
) -> None:
    browser.open(request.getfixturevalue(name), width=width, height=740)
    check_width(browser)


def test_filters_work_by_keyboard_and_count_what_they_show(browser: Browser, page: Path) -> None:
    browser.open(page)
    total = browser.evaluate("document.querySelectorAll('.card').length")
    wrong = browser.evaluate("document.querySelectorAll('.card.wrong').length")
    assert 0 < wrong < total
    assert browser.evaluate(SHOWN) == 24
    focus(browser, "[name=wrong]")
    browser.press(" ")
    expected = f"{min(wrong, 24)} of {wrong} samples shown that match, of {total} in all"
    assert browser.evaluate("document.getElementById('shown').textContent") == expected
    assert browser.evaluate("document.querySelectorAll('.card.right:not([hidden])').length") == 0
    browser.press("Tab", " ")  # old classes only, as well
    assert browser.evaluate(
        "[...document.querySelectorAll('.card:not([hidden])')].every((c) => c.matches('.wrong[data-born=old]'))"
    )
    browser.press("Tab", "Enter")  # clear
    assert browser.evaluate("document.getElementById('shown').textContent") == f"24 of {total} samples shown"
    assert browser.evaluate("performance.getEntriesByType('navigation').length") == 1
    assert browser.problems() == []


@pytest.mark.parametrize(
    ("name", "keys", "fits"),
    [
        ("run", ["ArrowDown", "ArrowDown"], "c.dataset.run === '1'"),
        ("task", ["End"], "c.dataset.task === '5'"),
        ("label", ["ArrowDown"], "[c.dataset.truth, c.dataset.settled].includes(value)"),
        ("confidence", ["End"], "Number(c.dataset.confidence) >= 95"),
    ],
)
def test_choices_narrow_the_gallery(browser: Browser, page: Path, name: str, keys: list[str], fits: str) -> None:
    browser.open(page)
    focus(browser, f"select[name={name}]")
    browser.press(*keys)
    value = browser.evaluate(f"document.querySelector('select[name={name}]').value")
    assert value
    assert browser.evaluate(
        f"((value) => [...document.querySelectorAll('.card')].filter((c) => {fits}).length)({json.dumps(value)})"
    ) == int(browser.evaluate("document.getElementById('shown').textContent").split(" of ")[1].split(" ")[0])
    assert browser.evaluate(
        f"((value) => [...document.querySelectorAll('.card:not([hidden])')].every((c) => {fits}))({json.dumps(value)})"
    )


def test_more_samples_are_shown_on_demand(browser: Browser, page: Path) -> None:
    browser.open(page)
    focus(browser, "#more")
    browser.press("Enter")
    assert browser.evaluate(SHOWN) == 48
    assert browser.evaluate("document.activeElement === document.querySelectorAll('.card:not([hidden])')[24]")


def test_lines_are_hidden_and_shown_by_their_legend(browser: Browser, page: Path) -> None:
    browser.open(page)
    focus(browser, "[data-toggle='1']")
    hidden = "[...document.querySelectorAll('g[data-group]')].filter((g) => getComputedStyle(g).display === 'none')"
    browser.press("Enter")
    assert browser.evaluate(f"new Set({hidden}.map((g) => g.dataset.group)).size") == 1
    pressed = "[...document.querySelectorAll('[data-toggle]')].map((b) => b.ariaPressed)"
    assert browser.evaluate(pressed) == ["true", "false"] * 2
    browser.press("Enter")
    assert browser.evaluate(f"{hidden}.length") == 0


def test_the_keyboard_goes_through_the_whole_page_and_is_always_seen(browser: Browser, page: Path) -> None:
    browser.open(page, height=600)
    check_keyboard(browser)


def test_it_has_landmarks_labels_and_headings_in_order(browser: Browser, page: Path) -> None:
    browser.open(page)
    check_structure(browser)
    charts = "[...document.querySelectorAll('figure:has(svg.chart), .pair > div:has(svg.chart)')]"
    assert browser.evaluate(f"{charts}.length") >= 9
    assert browser.evaluate(
        f"{charts}.every((e) => e.querySelector('details.data table') || e.closest('.triple')"
        ".nextElementSibling.matches('details.data'))"
    )


@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")])
def test_text_stands_out_from_its_ground(browser: Browser, page: Path, scheme: str, paper: str) -> None:
    browser.open(page, scheme=scheme)
    check_contrast(browser, paper)


def test_hostile_names_run_nothing_and_can_be_chosen(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=list(ATTACKS), method=ATTACKS[0])
    write_report([run], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    focus(browser, "select[name=label]")
    browser.press("ArrowDown")
    assert browser.evaluate("document.querySelector('select[name=label]').value") == ATTACKS[0]
    assert 0 < browser.evaluate(SHOWN) < 60
    assert browser.problems() == []
    assert not browser.named("Page.javascriptDialogOpening")


def test_without_a_browser_the_tests_fail_only_where_one_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("IPLL_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs Chromium"), chromium():
        pass
    monkeypatch.setenv("IPLL_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="forbids to skip"), chromium():
        pass
