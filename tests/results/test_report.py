"""The report is one file that shows the numbers of the runs, needs nothing else, and runs nothing."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ipll.errors import RunError
from ipll.results.charts import Series, heat_map, line_chart, percent_ticks, prior_chart, spread
from ipll.results.report import write_report

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "{{ 7 * 7 }}",
    "</title></svg>",
)


def make_run(
    folder: Path,
    *,
    method: str = "pgdr",
    preset: str = "digits",
    seed: int = 0,
    tasks: int = 5,
    classes: int = 10,
    names: list[str] | None = None,
    separates: bool = True,
    image: tuple[int, int, int] = (1, 8, 8),
    samples: int = 12,
    top: float = 99.0,
    forgetting: float = 6.25,
    settings: dict[str, Any] | None = None,
) -> Path:
    """A finished run folder as `ipll run` leaves it, with made-up numbers; `samples` of the gallery per task."""
    rng = np.random.default_rng(seed + tasks)
    seen = [classes * (t + 1) // tasks for t in range(tasks)]
    names = (names or []) + [f"class {c}" for c in range(len(names or []), classes)]
    accuracy = [round(top - 4.0 * t, 2) for t in range(tasks)]
    later = [None, *accuracy[1:]]
    counts = rng.integers(20, 140, size=(3, seen[1] if tasks > 1 else 0))
    result = {
        "average_incremental_accuracy": float(np.mean(accuracy)),
        "last_accuracy": accuracy[-1],
        "accuracy_per_task": accuracy,
        "old_accuracy_per_task": later,
        "new_accuracy_per_task": [a - 1.0 for a in accuracy],
        "linear_accuracy_per_task": [a - 2.0 for a in accuracy],
        "accuracy_matrix": [
            [accuracy[t] - 3.0 * (t - j) if j <= t else None for j in range(tasks)] for t in range(tasks)
        ],
        "seen_classes_per_task": seen,
        "forgetting": forgetting,
        "confusion": np.eye(classes, dtype=int).tolist(),
        "class_names": names,
        "pseudo_label_accuracy_per_task": [96.5 - t for t in range(tasks)],
        "separation_old_recall_per_task": later if separates else [None] * tasks,
        "separation_new_recall_per_task": later if separates else [None] * tasks,
        "separation_accuracy_per_task": later if separates else [None] * tasks,
        "memory_purity_per_task": [97.25 - t for t in range(tasks)] if separates else [None] * tasks,
        "class_prior": {
            epoch: {"predicted": counts[i].tolist(), "true": counts[2].tolist()}
            for i, epoch in enumerate(("1", "2"))
            if tasks > 1
        },
        "seconds_per_epoch": 0.125,
        "samples_per_second": 12345.6,
        "peak_memory_bytes": 512 * 2**20,
        "wall_seconds": 3725.0,
        "preset": preset,
        "method": method,
        "seed": seed,
        "epochs": 30,
        "config": {
            "preset": preset,
            "method": method,
            "seed": seed,
            "data": {"source": preset},
            "stream": {"tasks": tasks, "blurry": 10.0, "q": 0.2, "candidates": "uniform", "flip_scope": "seen"},
            "train": {"epochs": 30, "lr": 0.05, "joint_views": True},
            "auxiliary": {"kinds": ["consistency"], "consistency": {"weight": 1.0}},
            **(settings or {}),
        },
        "environment": {"commit": "0123abcd+", "hardware": "Test Processor", "packages": {"torch": "2.13.0"}},
    }
    gallery = []
    for i in range(samples * tasks):
        task = i // samples
        truth = int(rng.integers(seen[task]))
        candidates = sorted({truth, *(c for c in range(seen[task]) if rng.random() < 0.3)})
        settled = candidates[0] if i % 3 == 0 else truth
        gallery.append(
            {
                "id": i,
                "task": task,
                "candidates": candidates,
                "settled": settled,
                "confidence": 0.876,
                "truth": truth,
                "judged_old": bool(i % 2) if separates and task else None,
            }
        )
    folder.mkdir(parents=True)
    images = rng.integers(0, 256, size=(len(gallery), *image), dtype=np.uint8)
    np.savez_compressed(folder / "gallery.npz", images=images, samples=np.array(json.dumps(gallery)))
    (folder / "result.json").write_text(json.dumps(result))
    return folder


class Page(HTMLParser):
    """What a browser would find: every element with its attributes, and the text that is not style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._stack: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attributes}))
        self._stack.append(tag)

    def handle_data(self, data: str) -> None:
        if self._stack[-1:] != ["style"]:
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._stack:
            while self._stack.pop() != tag:
                pass

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(tmp_path: Path, *runs: Path) -> tuple[str, Page]:
    out = tmp_path / "report.html"
    write_report(runs, out)
    html = out.read_text(encoding="utf-8")
    return html, Page(html)


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
    order = [
        "accuracy",
        "numbers",
        "disambiguation",
        "matrix",
        "prior",
        "gallery",
        "settings",
        "environment",
        "timings",
    ]
    assert ids == order
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
    differing = settings[: settings.index("<details>")]
    assert "memory.kind" in differing
    assert ">method<" in differing
    assert "train.lr" not in differing
    assert "train.lr" in settings
    assert "Not measured in proden" in page.text
    assert "Compare with care" not in page.text
    best = re.findall(r"<b>(\d+\.\d)</b>", html)  # the larger accuracies, the smaller forgetting
    assert best == ["99.0", "95.0", "91.0", "87.0", "83.0", "91.0", "83.0", "6.2"]


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


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {"method": "proden"}], ["pgdr", "proden"]),
        ([{}, {"seed": 1}], ["pgdr seed 0", "pgdr seed 1"]),
        ([{}, {}], ["pgdr run0", "pgdr run1"]),
        ([{"preset": "cifar100"}, {}], ["pgdr on cifar100", "pgdr on digits"]),
    ],
)
def test_runs_go_by_the_shortest_names_that_tell_them_apart(
    tmp_path: Path, changes: list[dict[str, Any]], names: list[str]
) -> None:
    runs = [make_run(tmp_path / f"run{i}", **change) for i, change in enumerate(changes)]
    html, _ = report(tmp_path, *runs)
    assert re.findall(r'<p class="who"><svg.*?</svg>(.*?)</p>', html) == names


def test_the_same_folder_twice_still_has_two_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    html, _ = report(tmp_path, run, run)
    assert re.findall(r'<p class="who"><svg.*?</svg>(.*?)</p>', html) == ["pgdr (1)", "pgdr (2)"]


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
    assert not page.all("script")
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for attack in ATTACKS:  # shown as they are, in text or in a tooltip
        assert " ".join(attack.split()) in page.text


def test_names_that_are_not_valid_unicode_do_not_stop_the_report(tmp_path: Path) -> None:
    _, page = report(tmp_path, make_run(tmp_path / "run", names=["caf\udce9"]))
    assert "caf?" in page.text


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


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs(tmp_path: Path) -> None:
    html, page = report(tmp_path, make_run(tmp_path / "run"))
    assert not re.search(r"https?:|url\(|@import|javascript:|[\"'(]//", html)
    assert not page.all("script") + page.all("link") + page.all("iframe")
    assert all(attributes.get("href", "#").startswith("#") for _, attributes in page.elements)
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")


def test_every_chart_can_be_read_by_a_screen_reader(tmp_path: Path) -> None:
    html, page = report(tmp_path, make_run(tmp_path / "a"), make_run(tmp_path / "b", method="proden", separates=False))
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg class=\"chart.*?</svg>", html, re.S)]
    assert len(drawings) == 2 + 2 + 4 + 2 + 4
    for drawing in drawings:
        assert drawing.get("role") == "img"
        assert drawing.findtext("title")
        assert re.search(r"\d", drawing.findtext("desc") or "")
    assert all(
        "aria-label" in box and box["tabindex"] == "0" for box in page.all("div") if box.get("class") == "scroll"
    )
    assert all(image["alt"] for image in page.all("img"))


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
        assert f"▸ class {sample['settled']} (settled)" in words
        assert ("judged old" in words, "judged new" in words) == (
            sample["judged_old"] is True,
            sample["judged_old"] is False,
        )
    assert "over-represented" in page.text
    assert "pseudo-label accuracy 95.5 % in the whole task" in page.text


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
    (good / "result.json").write_text(json.dumps({"method": "pgdr"}))
    with pytest.raises(RunError, match=r"result\.json: 'accuracy_per_task' is missing"):
        write_report([good], out)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "good", "report.html"]


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04 cut short"])
def test_a_damaged_gallery_is_named(tmp_path: Path, content: bytes) -> None:
    run = make_run(tmp_path / "run")
    (run / "gallery.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"gallery\.npz: damaged"):
        write_report([run], tmp_path / "report.html")
