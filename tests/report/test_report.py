"""The report is one file that shows the numbers of the runs and needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import ATTACKS, Page, make_run, report
from PIL import Image

from ipll.errors import RunError
from ipll.report.build import write_report


def test_one_run_shows_its_numbers_and_what_was_done(tmp_path: Path) -> None:
    _, page = report(tmp_path, make_run(tmp_path / "run"))
    assert "pgdr on digits" in page.text
    assert "91.0 %" in page.text  # the average incremental accuracy of 99, 95, 91, 87, 83
    for words in ("q = 0.2", "blurry share is 10 %", "5 tasks", "30 epochs", "10 classes"):
        assert words in page.text
    for number in (
        "83.0",
        "97.2",
        "96.5",
        "1 h 2 min",
        "12,346",
        "512 MiB",
        "0123abcd+",
        "Test Processor",
        "joint_views",
    ):
        assert number in page.text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    order = ["runs", "accuracy", "disambiguation", "details", "gallery", "settings", "environment", "timings"]
    assert [name for name in ids if name in order] == order
    assert [link["href"] for link in page.all("a")][1:] == [f"#{name}" for name in order]


def test_several_runs_are_compared_and_differing_settings_come_first(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", top=99.0),
        make_run(
            tmp_path / "b",
            method="proden",
            top=80.0,
            forgetting=40.5,
            separates=False,
            settings={"memory": {"kind": "none"}},
        ),
    ]
    html, page = report(tmp_path, *runs)
    assert "2 runs compared" in page.text
    assert "91.0 %" in page.text
    assert "72.0 %" in page.text
    settings = html[html.index('id="settings"') :]
    differing = settings[: settings.index("<details")]
    assert "memory.kind" in differing
    assert ">method<" in differing
    assert "train.lr" not in differing
    assert "train.lr" in settings
    assert "Not measured in proden" in page.text
    assert "Compare with care" not in page.text
    best = re.findall(r"<td><b>(\d+\.\d)</b>", html)  # average, last, forgetting: the smallest of the last
    assert best == ["91.0", "83.0", "6.2"]


def test_runs_of_unlike_streams_are_compared_with_a_warning(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", tasks=3, classes=6),
        make_run(tmp_path / "c", tasks=1, classes=4, seed=7),
    ]
    _, page = report(tmp_path, *runs)
    assert "Compare with care" in page.text
    for words in ("10 classes of digits arrive in 5 tasks", "6 classes of digits arrive in 3 tasks", "in 1 task, 30"):
        assert words in page.text


def names_in(html: str) -> list[str]:
    """-> the names in the table of runs."""
    table = html[html.index('<table class="runs">') :]
    return re.findall(r'<th scope="row">(?:<svg.*?</svg>)?(.*?)</th>', table[: table.index("</table>")])


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {"method": "proden"}], ["pgdr", "proden"]),
        ([{}, {"seed": 1}], ["pgdr", "pgdr seed 0", "pgdr seed 1"]),
        ([{}, {"seed": 1, "method": "proden"}], ["pgdr", "proden"]),
        ([{}, {"settings": {"memory": {"size": 9}}}], ["pgdr memory.size=–", "pgdr memory.size=9"]),
        ([{}, {}], ["pgdr run0", "pgdr run1"]),
        ([{"preset": "cifar100"}, {}], ["pgdr on cifar100", "pgdr on digits"]),
    ],
)
def test_runs_go_by_the_shortest_names_that_tell_them_apart(
    tmp_path: Path, changes: list[dict[str, Any]], names: list[str]
) -> None:
    runs = [make_run(tmp_path / f"run{i}", **change) for i, change in enumerate(changes)]
    html, _ = report(tmp_path, *runs)
    assert names_in(html) == names


def test_the_same_folder_twice_still_has_two_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    html, _ = report(tmp_path, run, run)
    assert names_in(html) == ["pgdr (1)", "pgdr (2)"]


def test_names_and_settings_cannot_inject_anything(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "plain", names=list("abcde"), settings={"x": {"y": 1}})
    names = list(ATTACKS)
    hostile = make_run(
        tmp_path / '"><img src=x onerror=alert(1)>', names=names, method=ATTACKS[0], preset=ATTACKS[1],
        settings={"x": {"y": ATTACKS[4]}, ATTACKS[0]: ATTACKS[1]},
    )  # fmt: skip
    expected, _ = report(tmp_path, plain, make_run(tmp_path / "other", names=list("abcde"), settings={"x": {"y": 2}}))
    _, page = report(tmp_path, plain, hostile)
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in Page(expected).elements}
    assert len(page.all("script")) == 1
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for attack in ATTACKS:  # shown as they are, in text or in a tooltip
        assert " ".join(attack.split()) in page.text


def test_names_that_are_not_valid_unicode_do_not_stop_the_report(tmp_path: Path) -> None:
    _, page = report(tmp_path, make_run(tmp_path / "run", names=["caf\udce9"]))
    assert "caf?" in page.text


def test_nothing_is_loaded_from_elsewhere_and_only_its_own_script_may_run(tmp_path: Path) -> None:
    html, page = report(tmp_path, make_run(tmp_path / "run"))
    assert not re.search(r"https?:|url\(|@import|javascript:|[\"'(]//", html)
    assert page.all("script") == [{}]
    assert not page.all("link") + page.all("iframe")
    assert all(attributes.get("href", "#").startswith("#") for _, attributes in page.elements)
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    script = html[html.index("<script>") + 8 : html.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert len(script) < 5000


def test_every_chart_can_be_read_by_a_screen_reader(tmp_path: Path) -> None:
    html, page = report(tmp_path, make_run(tmp_path / "a"), make_run(tmp_path / "b", method="proden", separates=False))
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg class=\"chart.*?</svg>", html, re.S)]
    assert len(drawings) == 2 + 4 + 4 + 2 * (1 + 2 + 2)  # accuracy, disambiguation; matrix, shares, class prior
    for drawing in drawings:
        assert drawing.get("role") == "img"
        assert drawing.findtext("title")
        assert re.search(r"\d", drawing.findtext("desc") or "")
    assert all(
        "aria-label" in box and box["tabindex"] == "0" for box in page.all("div") if box.get("class") == "scroll"
    )
    assert all(image["alt"] for image in page.all("img"))


def test_gallery_shows_every_sample_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", image=(3, 6, 4), samples=3)
    html, page = report(tmp_path, run)
    with np.load(run / "gallery.npz") as file:
        images, samples = file["images"], json.loads(str(file["samples"]))
    drawn = [Image.open(io.BytesIO(base64.b64decode(tag["src"].partition(",")[2]))) for tag in page.all("img")]
    assert len(drawn) == len(samples) == 15
    for picture, image in zip(drawn, images, strict=True):
        assert np.array_equal(np.asarray(picture), image.transpose(1, 2, 0))
    cards = html.split('<li class="card ')[1:]
    for card, sample in zip(cards, samples, strict=True):
        right = sample["settled"] == sample["truth"]
        words = Page(card).text
        assert ("✓ right" in words, "✗ wrong" in words) == (right, not right)
        assert f"settled on class {sample['settled']} , 88 % sure truth: class {sample['truth']}" in words
        assert len(re.findall(r"<li", card)) == len(sample["candidates"])
        assert f"task {sample['task'] + 1}" in words
        assert f"▸ class {sample['settled']} (settled)" in words
        assert ("judged old" in words, "judged new" in words) == (
            sample["judged_old"] is True,
            sample["judged_old"] is False,
        )
    assert "over-represented" in page.text


def test_long_candidate_sets_are_cut_but_keep_the_settled_and_the_true_label(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", samples=0, tasks=1, classes=60)
    sample = {
        "id": 1,
        "task": 0,
        "candidates": list(range(60)),
        "settled": 58,
        "truth": 59,
        "confidence": 0.5,
        "judged_old": None,
    }
    np.savez(run / "gallery.npz", images=np.zeros((1, 1, 2, 2), np.uint8), samples=np.array(json.dumps([sample])))
    _, page = report(tmp_path, run)
    assert "class 58 (settled) class 59 (true) and 46 more" in page.text


def test_large_images_are_shrunk(tmp_path: Path) -> None:
    _, page = report(tmp_path, make_run(tmp_path / "run", image=(3, 224, 112), samples=1))
    picture = Image.open(io.BytesIO(base64.b64decode(page.all("img")[0]["src"].partition(",")[2])))
    assert picture.size == (32, 64)


def test_a_hundred_classes_stay_small(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=10, classes=100, image=(3, 32, 32), samples=10)
    html, _ = report(tmp_path, run)
    assert len(html.encode()) < 3e6


def test_a_run_without_gallery_or_prior_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=1)
    (run / "gallery.npz").unlink()
    _, page = report(tmp_path, run)
    assert "there is no gallery" in page.text
    assert "There is none: it is taken after epochs 1, 2 and 5" in page.text
    assert "the stream has one task" in page.text


def test_a_folder_that_is_no_finished_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    good, empty = make_run(tmp_path / "good"), tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "report.html"
    out.write_text("before")
    for runs, words in (
        ([good, empty], "no result.json"),
        ([tmp_path / "nowhere"], "no such run"),
        ([], "at least one"),
    ):
        with pytest.raises(RunError, match=words):
            write_report(runs, out)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "good", "report.html"]


def test_runs_that_differ_only_in_the_seed_are_a_group_and_shown_one_by_one(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"s{seed}", seed=seed, top=99.0 - seed) for seed in range(3)]
    html, page = report(tmp_path, *runs, make_run(tmp_path / "other", method="proden", top=80.0))
    assert names_in(html) == ["pgdr", "pgdr seed 0", "pgdr seed 1", "pgdr seed 2", "proden"]
    assert "90.0 ± 1.0" in page.text  # the mean of 91, 90 and 89, and its standard deviation
    assert "0, 1, 2" in page.text
    assert len(re.findall(r'class="member"', html)) == 3 * (2 + 4 + 4)
    assert page.all("polygon")
    settings = html[html.index('id="settings"') :]
    assert "<td>0, 1, 2</td>" in settings[: settings.index("<details")]


def test_a_run_tells_what_it_confused_and_how_pseudo_labels_moved(tmp_path: Path) -> None:
    _, page = report(tmp_path, make_run(tmp_path / "run"))
    assert "old 100.0 % 0.0 % 72 new 5.3 % 94.7 % 19" in page.text  # 1 of the last task's 19 samples
    assert "class 9 (5) class 0 (1) 1 of 10 10.0 %" in page.text
    assert "task 1: right all along 88.0 %, wrong, then right 8.5 %, right, then wrong 2.0 %" in page.text
    assert "task 1 88.0 8.5 2.0 1.5 60.0" in page.text
    assert "old, after 2 95.0 3.5 1.5" in page.text
    assert "fell by 28.0" in page.text


def test_results_of_earlier_versions_can_still_be_read(tmp_path: Path) -> None:
    _, page = report(tmp_path, make_run(tmp_path / "run", recent=False))
    assert "Not recorded: the run was made by an earlier version" in page.text
    assert "class 9 (5) class 0 (1)" in page.text


def spoil(result: dict[str, Any], key: str, value: Any) -> str:
    return json.dumps(result | {key: value})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda result: json.dumps(result)[:500], "damaged"),
        (lambda result: "[1, 2]", "not a table"),
        (lambda result: "\x00\x01", "damaged"),
        (lambda result: json.dumps({"method": "pgdr"}), "'accuracy_per_task' is missing"),
        (lambda result: spoil(result, "accuracy_per_task", [1.0, None]), "'accuracy_per_task' is damaged"),
        (lambda result: spoil(result, "accuracy_per_task", []), "'accuracy_per_task' is empty|is damaged"),
        (lambda result: spoil(result, "forgetting", float("nan")), "'forgetting' is damaged"),
        (lambda result: spoil(result, "memory_purity_per_task", [1.0]), "'memory_purity_per_task' is damaged"),
        (lambda result: spoil(result, "config", {"stream": {}}), "'config' is damaged"),
        (lambda result: spoil(result, "class_names", ["a"]), "'class_names' is too short"),
        (lambda result: spoil(result, "confusion", [[1, 2]]), "'confusion' is damaged"),
        (lambda result: spoil(result, "class_prior", {"1": {"predicted": [1], "true": [1, 2]}}), "'class_prior'"),
        (lambda result: spoil(result, "old_as_new_per_task", "x"), "'old_as_new_per_task' is damaged"),
    ],
)
def test_a_corrupt_result_is_named_and_set_aside(
    tmp_path: Path, damage: Callable[[dict[str, Any]], str], words: str
) -> None:
    good, bad, out = make_run(tmp_path / "good"), make_run(tmp_path / "bad"), tmp_path / "report.html"
    file = bad / "result.json"
    file.write_text(damage(json.loads(file.read_text())))
    (warning,) = write_report([bad, good], out)
    assert warning.startswith(f"{file}: ")
    assert re.search(words, warning)
    page = Page(out.read_text())
    assert warning in page.text
    assert "pgdr on digits" in page.text
    out.unlink()
    with pytest.raises(RunError, match=words):  # no run is left
        write_report([bad, bad], out)
    assert not out.exists()


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04 cut short"])
def test_a_damaged_gallery_is_named_and_set_aside(tmp_path: Path, content: bytes) -> None:
    run, out = make_run(tmp_path / "run"), tmp_path / "report.html"
    (run / "gallery.npz").write_bytes(content)
    (warning,) = write_report([run], out)
    assert warning.startswith(f"{run / 'gallery.npz'}: damaged")
    page = Page(out.read_text())
    assert warning in page.text
    assert not page.all("img")


@pytest.mark.parametrize("images", [np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 0, 2), np.uint8)])
def test_a_gallery_of_no_images_is_set_aside(images: np.ndarray, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with np.load(run / "gallery.npz") as file:
        samples = json.loads(str(file["samples"]))
    np.savez(run / "gallery.npz", images=images, samples=np.array(json.dumps(samples[:1])))
    (warning,) = write_report([run], tmp_path / "report.html")
    assert "images that are none" in warning


def test_a_gallery_of_another_run_is_set_aside(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run", classes=6), make_run(tmp_path / "other", classes=60)
    (run / "gallery.npz").write_bytes((other / "gallery.npz").read_bytes())
    (warning,) = write_report([run], tmp_path / "report.html")
    assert "a sample of another run" in warning


def test_many_galleries_are_thinned_evenly_and_the_page_says_so(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), seed=i, samples=12, image=(3, 64, 64)) for i in range(20)]
    html, page = report(tmp_path, *runs)
    cards = page.all("img")
    assert len(cards) == 600
    assert "holds 600 of the 1200 samples" in page.text
    shown = [attributes for tag, attributes in page.elements if attributes.get("class", "").startswith("card ")]
    places = Counter((card["data-run"], card["data-task"]) for card in shown)
    assert set(places.values()) == {6}
    assert len(html) < 10e6


def test_the_command_warns_of_a_corrupt_result_and_goes_on(main: Any, tmp_path: Path) -> None:
    good, bad = make_run(tmp_path / "good"), make_run(tmp_path / "bad [red]")
    (bad / "result.json").write_text("{")
    status, out, err = main("report", bad, good, "--out", tmp_path / "report.html")
    assert status == 0
    assert f"Warning: {bad / 'result.json'}: damaged" in err
    assert str(tmp_path / "report.html") in out
    status, _, err = main("report", bad, "--out", tmp_path / "none.html")
    assert status != 0
    assert "damaged" in err
    assert not (tmp_path / "none.html").exists()
