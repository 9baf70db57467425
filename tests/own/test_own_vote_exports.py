"""Raw votes from where they are made: exports of Label Studio, CVAT and COCO, told by their content."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipll.errors import DataError
from ipll.own import read_votes

Write = Callable[..., Path]
Refused = Callable[..., str]

HERE = Path(__file__).parent / "exports"
KEYS = ("id", "data", "image", "annotations", "result", "type", "value", "choices", "completed_by", "from_name", "name")
SAMPLES = "id,features.x\ns1,1\ns2,2\n"
STUDIO: list[Any] = json.loads((HERE / "label_studio.json").read_text())
COCO: dict[str, Any] = json.loads((HERE / "coco.json").read_text())
CVAT = (HERE / "cvat_jobs" / "job_ann.xml").read_text()


@pytest.fixture
def exports(tmp_path: Path, photos: Path) -> Path:
    """-> a folder with the exports beside ten photos."""
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True)
    shutil.copytree(photos, tmp_path / "cvat_jobs" / "images" / "photos")  # as CVAT packs them
    shutil.copy(photos / "0.png", tmp_path / "0.png")
    return tmp_path


@pytest.fixture(autouse=True)
def equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vote counts one."""
    monkeypatch.setattr(
        "ipll.own.reading.votes.reliability", lambda sample, annotator, label: np.ones(annotator.max() + 1)
    )


def shares(samples: Any) -> dict[str, dict[str, float]]:
    return {
        name: {samples.names[k]: round(float(row[k] / row.sum()), 3) for k in np.flatnonzero(row)}
        for name, row in zip(samples.ids, samples.votes, strict=True)
    }


def test_label_studio(exports: Path, write: Write) -> None:
    """Skipped annotations and predictions are no votes; a task that nobody labelled is not learnt from."""
    export = exports / "label_studio.json"
    assert shares(read_votes(export)) == {
        "0.png": {"robin": 0.667, "sparrow": 0.333},
        "photos/1.png": {"sparrow": 1.0},
    }
    by_id = read_votes(export, samples=write("samples.csv", SAMPLES))
    assert shares(by_id) == {"s1": {"robin": 0.667, "sparrow": 0.333}, "s2": {"sparrow": 1.0}}


def test_label_studio_with_reviews_and_a_history(exports: Path) -> None:
    """As a team's server writes it: annotators are objects, and what was chosen before stands there, too."""
    content: list[Any] = json.loads(json.dumps(STUDIO))
    for annotation in (one for task in content for one in task["annotations"]):
        who = annotation["completed_by"]
        before = {"id": 1, "action": "submitted", "created_by": 3, "result": [RESULT], "comment": None}
        annotation["completed_by"] = {"id": 3, "email": f"{who}@example.org", "first_name": "", "last_name": ""}
        annotation |= {"history": [before], "reviews": [], "draft_created_at": None, "unique_id": "a-b"}
    for task in content:
        task |= {"drafts": [{"result": [RESULT]}], "comment_authors": [], "meta": {}, "inner_id": 1}
    (exports / "team.json").write_text(json.dumps(content))
    assert shares(read_votes(exports / "team.json")) == shares(read_votes(exports / "label_studio.json"))


def test_coco(exports: Path) -> None:
    """The same annotator's same label twice is one vote."""
    assert shares(read_votes(exports / "coco.json")) == {
        "0.png": {"robin": 0.5, "sparrow": 0.5},
        "photos/1.png": {"sparrow": 1.0},
    }


def test_coco_without_annotators(write: Write, photos: Path) -> None:
    """Each annotation is somebody's."""
    content = json.loads(json.dumps(COCO).replace('"file_name": "0.png"', '"file_name": "photos/0.png"'))
    for annotation in content["annotations"]:
        del annotation["annotator"]
    found = shares(read_votes(write("votes.json", json.dumps(content))))
    assert found["photos/0.png"] == {"robin": 0.667, "sparrow": 0.333}


def test_cvat_one_file_for_each_annotator(exports: Path) -> None:
    """Images are where CVAT packs them, in 'images'. An image without tags is not learnt from."""
    found = read_votes(exports / "cvat_jobs")
    assert shares(found) == {
        "images/photos/0.png": {"robin": 0.5, "sparrow": 0.5},
        "images/photos/1.png": {"sparrow": 1.0},
    }
    assert found.images is not None
    assert found.images.load(8).shape == (2, 1, 8, 8)


def test_cvat_annotators_within_a_file(write: Write, photos: Path) -> None:
    said = '<tag label="{}"><attribute name="annotator">{}</attribute></tag>'
    tags = "".join(said.format(*one) for one in (("a", "ann"), ("a", "ben"), ("b", "cem"), ("a", "ann")))
    text = f'<annotations><image id="0" name="photos/0.png">{tags}</image></annotations>'
    assert shares(read_votes(write("votes.xml", text))) == {"photos/0.png": {"a": 0.667, "b": 0.333}}


def test_cvat_annotators_of_a_project(write: Write, photos: Path) -> None:
    """Each task has its own, and the same images may be in several of them."""
    who = {"3": "<assignee><username>ann</username><email/></assignee>", "5": "<assignee></assignee>"}
    tasks = "".join(f"<task><id>{number}</id><name>t</name>{one}</task>" for number, one in who.items())
    said = '<image id="0" name="photos/{}.png" subset="default" task_id="{}"><tag label="{}" source="manual"/></image>'
    tags = [said.format(*one) for one in ((0, 3, "a"), (1, 3, "b"), (0, 5, "b"), (1, 5, "b"), (0, 3, "a"))]
    meta = f"<meta><project><id>1</id><tasks>{tasks}</tasks></project></meta>"
    found = read_votes(write("votes.xml", f"<annotations>{meta}{''.join(tags)}</annotations>"))
    assert shares(found) == {"photos/0.png": {"a": 0.5, "b": 0.5}, "photos/1.png": {"b": 1.0}}


def test_choices_for_regions_are_no_votes(exports: Path) -> None:
    """Nor are the boxes that they are about; choices for the whole image beside them are."""
    content: list[Any] = json.loads(json.dumps(STUDIO))
    box = {"x": 10.0, "y": 20.0, "width": 30.0, "height": 5.0, "rotation": 0}
    of_region = {"id": "r1", "type": "choices", "from_name": "blurred", "value": box | {"choices": ["yes"]}}
    content[0]["annotations"][0]["result"] += [{"id": "r1", **BOXES, "value": box | BOXES["value"]}, of_region]
    (exports / "more.json").write_text(json.dumps(content))
    assert shares(read_votes(exports / "more.json")) == shares(read_votes(exports / "label_studio.json"))


def test_votes_as_json(write: Write) -> None:
    votes = [{"sample": "s1", "annotator": k, "label": label} for k, label in enumerate(["a", "a", "b"])]
    votes.append({"sample": "s2", "annotator": 0, "label": "b"})
    found = read_votes(write("votes.json", json.dumps(votes)), samples=write("samples.csv", SAMPLES))
    assert shares(found) == {"s1": {"a": 0.667, "b": 0.333}, "s2": {"b": 1.0}}


def changed(content: Any, **fields: Any) -> str:
    return json.dumps(content | fields)


RESULT = {"type": "choices", "from_name": "sex", "value": {"choices": ["male"]}}
REGION = RESULT | {"value": {"points": [[1.0, 2.0], [3.0, 4.0], [5.0, 1.0]], "choices": ["male"]}}
BAD = {"type": "choices", "from_name": "bird", "value": 1}
BOXES: dict[str, Any] = {"type": "rectanglelabels", "from_name": "box", "value": {"rectanglelabels": ["robin"]}}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("v.json", '{"a": 1, "b": 2}', ["an object with the keys 'a', 'b'", "Label Studio's JSON", "COCO", "CVAT"]),
        ("v.json", '[{"image": "x", "choice": "robin"}]', ["a list of 1, the first of them an object with the keys"]),
        ("v.json", "[]", ["an empty list"]),
        ("v.json", '"votes"', ["text"]),
        ("v.json", '{"a": 1}\n{"a": 2}\n', ["neither JSON nor XML", ".jsonl"]),
        ("v.json", b"\xff\xfe[", ["neither JSON nor XML"]),
        ("v.json", "[" * 200_000, ["neither JSON nor XML"]),
        ("v.xml", "<html><body/></html>", ["XML, <html> with <body> in it", "CVAT for images 1.1"]),
        ("v.xml", "<annotations><track/></annotations>", ["<track>", "CVAT for images 1.1"]),
        ("v.xml", '<annotations><image name="a"><box label="b"/></image></annotations>', ["no tags, but <box>"]),
        ("v.xml", "<annotations><image>", ["not XML, or damaged"]),
        ("v.xml", CVAT.replace("<annotations>", '<!DOCTYPE a [<!ENTITY x "y">]><annotations>'), ["<!DOCTYPE>"]),
        ("v.xml", '<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotations/>', ["<!DOCTYPE>"]),
        ("v.json", json.dumps([task | {"annotations": []} for task in STUDIO]), ["nobody has labelled anything"]),
        (
            "v.json",
            json.dumps([{"id": 1, "data": {"image": "a.png"}, "annotations": [{"result": [BOXES]}]}]),
            ["results are of the type 'rectanglelabels' (1)", "'choices'"],
        ),
        (
            "v.json",
            json.dumps([*STUDIO, {"id": 1, "data": {"image": "a.png"}, "annotations": [{"result": [RESULT]}]}]),
            ["choices for 2 questions: 'bird' (3), 'sex' (1)", "from_name"],
        ),
        (
            "v.json",
            json.dumps([STUDIO[0] | {"data": {"text": "a bird"}}]),
            ["task 1: no image is named: 'data' has 'text'"],
        ),
        (
            "v.json",
            json.dumps([*STUDIO, {"data": {}, "annotations": [{"result": [BAD]}]}]),
            ["task 4: not a task"],
        ),
        (
            "v.json",
            json.dumps([{"id": 1, "data": {"image": "a.png"}, "annotations": [{"result": [REGION]}]}]),
            ["results are of the type 'choices of a region' (1)"],
        ),
        (
            "v.json",
            changed(COCO, annotations=[{"image_id": 1, "segments_info": [{"id": 7, "category_id": 1}]}]),
            ["annotation 1: it has 'segments_info', which is no vote", "Export classes of images"],
        ),
        (
            "v.json",
            changed(COCO, annotations=[{"image_id": 1, "category_id": 0, "caption": "a bird"}]),
            ["annotation 1: it has 'caption', which is no vote"],
        ),
        ("v.json", changed(COCO, categories=[]), ["annotation 1: 'category_id' 1 is not in the file"]),
        ("v.json", changed(COCO, images=COCO["images"] * 2), ["two of the 'images' have the id 1"]),
        (
            "v.json",
            changed(COCO, annotations=[{"image_id": 1, "category_id": 1, "bbox": [1, 1, 3, 3]}]),
            ["annotation 1: it is of a part of the image", "[1, 1, 3, 3]"],
        ),
    ],
)  # fmt: skip
def test_what_is_no_export(write: Write, refused: Refused, name: str, content: str | bytes, says: list[str]) -> None:
    """The message shows what was found, and what is expected."""
    message = refused(read_votes, write(name, content))
    for words in says:
        assert words in message
    assert name in message


def test_a_folder_without_exports(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no exports in it (.json, .xml)" in refused(read_votes, tmp_path / "empty")


def test_an_image_that_is_missing_is_named(write: Write, refused: Refused) -> None:
    message = refused(read_votes, write("votes.json", json.dumps(STUDIO)))
    assert re.search(r"task 1: .*0\.png", message)
    assert re.search(r"task 2: .*photos/1\.png", message)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["choices", "/data/upload/a", "x" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, where=st.integers(0, 2**30))
def test_whatever_stands_in_an_export_is_read_or_refused(tmp_path: Path, value: Any, where: int) -> None:
    """A value of a real export is replaced by any other."""
    content: Any = json.loads(json.dumps([STUDIO, COCO][where % 2]))
    place, key = _somewhere(content, where // 2)
    place[key] = value
    (tmp_path / "samples.csv").write_text(SAMPLES)
    (tmp_path / "votes.json").write_text(json.dumps(content))
    with suppress(DataError):
        read_votes(tmp_path / "votes.json", samples=tmp_path / "samples.csv")
    with suppress(DataError):
        read_votes(tmp_path / "votes.json")


def _somewhere(content: Any, where: int) -> tuple[Any, Any]:
    """-> a list or object within, and a key of it."""
    places = [content]
    for place in places:
        places += [
            one
            for one in (place.values() if isinstance(place, dict) else place)
            if isinstance(one, dict | list) and one
        ]
    place = places[where % len(places)]
    keys = list(place) if isinstance(place, dict) else range(len(place))
    return place, keys[where // len(places) % len(keys)]


def test_fit_reads_an_export(main: Any, exports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(exports)
    options = ("--set", "train.epochs=1", "--device", "cpu")
    status, out, err = main("fit", "--votes", "label_studio.json", "--out", "m", *options)
    assert status == 0, err
    assert "Read label_studio.json: 2 images to learn from, 2 classes" in out
