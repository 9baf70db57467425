"""Deciding in the audit page, in a real browser: by keyboard, undone, kept across reloads, saved and loaded."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audits import make_model
from browser import Browser
from page_checks import focus
from sklearn.datasets import load_iris

from ipll.own import Model, from_arrays, read_decisions
from ipll.own.audit import write_audit
from ipll.own.audit.order import asking_order
from ipll.own.decisions import NONE, audit_id

SHOWN = "document.querySelector('#card h3')?.textContent"
PROGRESS = "document.getElementById('progress').textContent"
TOLD = "document.getElementById('told').textContent"
CANDIDATES = "[...document.querySelectorAll('#card .candidate')].map((one) => one.lastChild.data)"
SAVED = "globalThis.savedText"
CATCH = (  # what a click on 'Save decisions' would download
    "URL.createObjectURL = (blob) => { blob.text().then((text) => { globalThis.savedText = text; }); return '#'; };"
    "HTMLAnchorElement.prototype.click = function () { globalThis.savedName = this.download; }"
)


@pytest.fixture(scope="module")
def model() -> Model:
    X, y = load_iris(return_X_y=True)
    rng, names = np.random.default_rng(0), ["=setosa", "versicolor, a", "virginica"]
    sets = [sorted({names[k], names[rng.integers(3)]}) for k in y]
    samples = from_arrays(X.astype(np.float32), sets, ids=[f"flower {i}" for i in range(len(y))])
    return Model.fit(samples, settings={"train.epochs": 3}, device="cpu")


@pytest.fixture
def page(model: Model, browser: Browser, tmp_path: Path) -> Path:
    write_audit(model, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    browser.evaluate("localStorage.clear()")
    browser.open(tmp_path / "audit.html")
    return tmp_path / "audit.html"


def asked(model: Model) -> list[str]:
    return [model.records.ids[row] for row in asking_order(model).tolist()]


def load(browser: Browser, path: Path) -> None:
    """Gives the page a file, as the file dialogue does."""
    document = browser.call("DOM.getDocument")["root"]["nodeId"]
    field = browser.call("DOM.querySelector", nodeId=document, selector="#load")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=field, files=[str(path)])
    for _ in range(50):
        if browser.evaluate(TOLD):
            return
        time.sleep(0.05)


def save(browser: Browser, path: Path) -> Path:
    browser.evaluate(CATCH)
    focus(browser, "#save")
    browser.press("Enter")
    for _ in range(50):
        if browser.evaluate(f"{SAVED} ?? ''"):
            break
        time.sleep(0.05)
    path.write_bytes(browser.evaluate(SAVED).encode())
    assert browser.evaluate("globalThis.savedName").startswith("decisions-")
    return path


def test_what_would_teach_most_comes_first_and_keys_decide(browser: Browser, page: Path, model: Model) -> None:
    order = asked(model)
    assert browser.evaluate(SHOWN) == order[0]
    assert browser.evaluate("document.querySelectorAll('#card h3').length") == 1
    focus(browser, "#card")
    browser.press("1")
    assert browser.evaluate(SHOWN) == order[1]
    browser.press("0", "ArrowRight")
    assert browser.evaluate(SHOWN) == order[3]
    assert browser.evaluate(PROGRESS).startswith("2 of ")
    before = browser.evaluate(PROGRESS)
    browser.press("2")
    browser.press("u")
    assert browser.evaluate(SHOWN) == order[3]
    assert browser.evaluate(PROGRESS) == before
    browser.press("u", "u", "u")  # the skip, the none, the first
    assert browser.evaluate(SHOWN) == order[0]
    assert browser.evaluate(PROGRESS).startswith("0 of ")
    assert browser.problems() == []


def test_decisions_survive_a_reload_and_go_to_a_file_that_the_model_takes(
    browser: Browser, page: Path, model: Model, tmp_path: Path
) -> None:
    order = asked(model)
    focus(browser, "#who")
    browser.press(*"ann")
    focus(browser, "#card")
    first = browser.evaluate(CANDIDATES)[0]
    browser.press("1", "0")
    browser.open(page)
    assert browser.evaluate(PROGRESS).startswith("2 of ")
    assert browser.evaluate(SHOWN) == order[2]
    file = save(browser, tmp_path / "decisions.csv")
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["id"] for row in rows] == order[:2]
    assert {row["who"] for row in rows} == {"ann"}
    assert {row["audit"] for row in rows} == {audit_id(model.records.ids)}
    said = read_decisions(file)
    assert said.names == [first, None]  # names that look like formulas, or hold commas, come back as they are
    decided = model.decide(said, device="cpu")
    row = model.records.ids.index(order[0])
    assert decided.records.candidates(decided.names)[row] == [first]
    browser.evaluate("localStorage.clear()")
    browser.open(page)
    assert browser.evaluate(PROGRESS).startswith("0 of ")
    load(browser, file)
    assert browser.evaluate(PROGRESS).startswith("2 of ")
    assert browser.evaluate(SHOWN) == order[2]
    assert browser.problems() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,class,audit\nflower 0,virginica,3-abc\n", "row 2 was decided on another audit (3-abc"),
        ("id,class\nflower 0,virginica\nflower 999,virginica\n", "row 3: there is no sample flower 999"),
        ("id,class\nflower 0,tulip\n", "row 2: there is no class tulip"),
        ("name\nflower 0\n", "it has no columns id and class"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_whole(
    browser: Browser, page: Path, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "other.csv").write_text(text)
    load(browser, tmp_path / "other.csv")
    assert said in browser.evaluate(TOLD)
    assert browser.evaluate(PROGRESS).startswith("0 of ")


def test_another_class_is_found_by_typing(browser: Browser, page: Path, model: Model, tmp_path: Path) -> None:
    focus(browser, "#card")
    browser.press("/", *"virg", "Enter")
    assert browser.evaluate(SHOWN) == asked(model)[1]
    assert read_decisions(save(browser, tmp_path / "decisions.csv")).names == ["virginica"]
    assert browser.evaluate("document.activeElement.id") == "save"


def test_the_most_doubtful_is_an_order_too(browser: Browser, page: Path, model: Model) -> None:
    browser.evaluate("order.value = 'doubt'; order.dispatchEvent(new Event('change'))")
    row = int(np.lexsort((-model.records.changed_epoch, np.round(model.records.confidence.astype(float), 4)))[0])
    assert browser.evaluate(SHOWN) == model.records.ids[row]


def test_features_stand_beside_the_nearest_settled_samples(browser: Browser, page: Path) -> None:
    heads = browser.evaluate(
        "[...document.querySelectorAll('#card table tr:first-of-type th')].map((h) => h.textContent)"
    )
    assert heads[:2] == ["feature", "this sample"]
    assert browser.evaluate("document.querySelectorAll('#card table td').length") > 0


def test_fifty_thousand_rows_answer_a_key_at_once(browser: Browser, tmp_path: Path) -> None:
    write_audit(make_model(50_000, classes=50, kept=2_000), tmp_path / "audit.html")
    assert (tmp_path / "audit.html").stat().st_size < 15e6
    browser.open(tmp_path / "audit.html")
    press = (
        "(() => { const begun = performance.now(); document.body.dispatchEvent(new KeyboardEvent('keydown',"
        " { key: '1', bubbles: true })); document.body.offsetHeight; return performance.now() - begun; })()"
    )
    times: list[float] = [browser.evaluate(press) for _ in range(10)]
    assert sorted(times)[5] < 100
    assert browser.evaluate(PROGRESS).startswith("10 of ")
    assert browser.evaluate("document.querySelectorAll('#card h3').length") == 1


@pytest.mark.parametrize("width", [360, 500])
def test_it_fits_a_phone_and_buttons_are_large_enough_to_touch(browser: Browser, tmp_path: Path, width: int) -> None:
    write_audit(make_model(300, classes=12), tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html", width=width, height=740)
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    height = "Math.min(...[...document.querySelectorAll('#card button')].map((b) => b.getBoundingClientRect().height))"
    assert browser.evaluate(height) >= 44


def test_what_was_decided_before_is_shown_and_not_asked_again(browser: Browser, model: Model, tmp_path: Path) -> None:
    from ipll.own import Decisions

    order = asked(model)
    decided: Any = model.decide(Decisions.of(order[:2], ["virginica", None], who="ann"), device="cpu")
    write_audit(decided, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    assert browser.evaluate(SHOWN) not in order[:2]
    assert "2 samples decided before this audit" in browser.evaluate("document.querySelector('#decide').textContent")
    browser.evaluate("document.querySelector('[data-key=decided] button').click()")
    cells = browser.evaluate(
        "[...document.querySelectorAll('#samples td[data-name=decided]')].map((c) => c.firstChild?.data)"
    )
    assert sorted(cells[:2]) == sorted(["virginica", NONE])


def test_a_wrong_label_is_put_right_by_one_key(browser: Browser, tmp_path: Path) -> None:
    """What is expected instead is no candidate, and yet the second choice, with an example beside it."""
    X, y = load_iris(return_X_y=True)
    names, given = ["setosa", "versicolor", "virginica"], y.copy()
    given[:50:10], given[50:100:10] = 2, 0
    samples = from_arrays(X.astype(np.float32), [[names[k]] for k in given], ids=[f"flower {i}" for i in range(150)])
    model = Model.fit(samples, settings={"train.epochs": 30}, device="cpu")
    write_audit(model, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    browser.evaluate("localStorage.clear()")
    browser.open(tmp_path / "audit.html")
    row = int(browser.evaluate(SHOWN).split()[1])
    assert given[row] != y[row]
    assert browser.evaluate(CANDIDATES) == [names[given[row]], names[y[row]]]
    assert names[y[row]] in browser.evaluate("document.querySelector('#card').textContent")
    focus(browser, "#card")
    browser.press("2")
    said = read_decisions(save(browser, tmp_path / "decisions.csv"))
    decided = model.decide(said, device="cpu")
    assert decided.records.labels(decided.names)[row] == names[y[row]]
    assert browser.problems() == []
