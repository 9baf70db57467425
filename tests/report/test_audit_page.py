"""The audit's page is one file: it counts rightly, holds what its table holds, and no more pictures than the model."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audits import make_model
from pages import ATTACKS, Page
from PIL import Image

from ipll.own.audit import audit_table, write_audit


def audit(tmp_path: Path, model: Any) -> tuple[str, Page, dict[str, Any]]:
    """-> the page, what a browser would find in it, and the samples that it holds."""
    write_audit(model, tmp_path / "audit.html")
    html = (tmp_path / "audit.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert data
    return html, Page(html), json.loads(data[1])


def test_it_sums_up_how_many_are_settled(tmp_path: Path) -> None:
    model = make_model(300)
    _, page, _ = audit(tmp_path, model)
    table = audit_table(model).to_pylist()
    settled = sum(row["confidence"] >= 0.8 for row in table)
    agree = sum(row["label"] == row["given_label"] for row in table)
    late = sum(row["changed_late"] for row in table)
    assert "300 samples in one fit and 2 updates" in page.text
    assert f"Settled {100 * settled / 300:.1f} % {settled} samples, at least 80 % sure" in page.text
    assert f"Doubtful {300 - settled} samples" in page.text
    assert f"Changed late {late} samples" in page.text
    assert f"As the given label {100 * agree / 300:.1f} % {agree} of 300 that have one" in page.text
    assert f"One candidate {sum(len(row['candidates']) == 1 for row in table)} samples" in page.text


@pytest.mark.parametrize("key", ["update", "label"])
def test_numbers_are_given_for_each_update_and_class(tmp_path: Path, key: str) -> None:
    model = make_model(400, classes=30, updates=4)
    html, page, _ = audit(tmp_path, model)
    title = "By batch" if key == "update" else "By class"
    part = html[html.index(f"<b>{title}</b>") :]
    shown = dict(re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', part[: part.index("</table>")]))
    rows = audit_table(model).to_pylist()
    assert set(shown) == {str(row[key]) for row in rows}
    for name, cells in shown.items():
        own = [row for row in rows if str(row[key]) == name]
        settled, late = sum(r["confidence"] >= 0.8 for r in own), sum(r["changed_late"] for r in own)
        mean = 100 * np.mean([r["confidence"] for r in own])
        agree = sum(r["label"] == r["given_label"] for r in own)
        named = [] if key == "update" else [f"{sum(name in r['candidates'] for r in rows)}"]
        words = [*named, f"{len(own)}", f"{settled}", f"{mean:.1f} %", f"{late}", f"{agree} of {len(own)}"]
        assert re.findall("<td>(.*?)</td>", cells) == words
    assert "The 10 other classes are in the numbers below" in page.text


def test_classes_that_nothing_settled_on_come_first(tmp_path: Path) -> None:
    model = make_model(300)
    label, codes = model.records.label, model.records.codes
    gone = (label == 3) | (label == 7)
    model.records = replace(model.records, label=np.where(gone, (label + 1) % 10, label))
    html, page, _ = audit(tmp_path, model)
    part = html[html.index("<b>By class</b>") :]
    shown = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', part[: part.index("</table>")])
    counts = {f"class {c}": int((codes == c).sum()) for c in (3, 7)}
    first = sorted(counts, key=lambda name: -counts[name])
    assert [row[0] for row in shown[:2]] == first
    assert [row[1:] for row in shown[:2]] == [(str(counts[name]), "0") for name in first]
    assert len(shown) == 10
    assert html.count(">no samples<") == 2  # in place of a bar
    assert "candidates and that no sample was settled on come before them" in page.text
    assert "come before them" not in audit(tmp_path, make_model(300))[1].text


def test_it_holds_the_rows_of_the_table_in_their_order(tmp_path: Path) -> None:
    model = make_model(200)
    _, _, data = audit(tmp_path, model)
    for i, row in enumerate(audit_table(model).to_pylist()):
        names = data["names"]
        assert data["id"][i] == row["id"]
        assert [names[c] for c in data["sets"][data["set"][i]]] == row["candidates"]
        assert names[data["label"][i]] == row["label"]
        assert data["confidence"][i] == round(10_000 * row["confidence"])
        assert (names[data["runner"][i]] if data["runner"][i] >= 0 else "") == row["runner_up"]
        assert names[data["given"][i]] == row["given_label"]
        assert (data["update"][i], data["row"][i]) == (row["update"], row["row"])
        assert (data["changed_update"][i], data["changed_epoch"][i]) == (row["changed_update"], row["changed_epoch"])
        assert data["late"][i] + data["memory"][i] == f"{row['changed_late']:d}{row['in_memory']:d}"
        assert data["old"][i] == f"{row['judged'] == 'old':d}"


def test_pictures_are_those_that_the_model_keeps(tmp_path: Path) -> None:
    model = make_model(200, kept=30)
    _, page, data = audit(tmp_path, model)
    assert {data["id"][int(i)] for i in data["pictures"]} == {
        name for name, kept in zip(model.records.ids, model.records.in_memory, strict=True) if kept
    }
    first = int(model.tensors["module.memory.ids"][0])
    place = data["id"].index(model.records.ids[first])
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data["pictures"][str(place)].partition(",")[2]))))
    assert np.array_equal(picture, model.tensors["module.memory.samples"][0].permute(1, 2, 0).numpy())
    assert "Pictures are shown of those samples alone" in page.text
    assert "Nothing is read from your disk" in page.text


def test_only_the_most_doubtful_pictures_find_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipll.own.audit.PICTURES", 12)
    _, page, data = audit(tmp_path, make_model(200, kept=30))
    kept = [i for i, letter in enumerate(data["memory"]) if letter == "1"]
    beside = {row for one in data["beside"].values() for _, row in one["examples"]}
    assert set(map(int, data["pictures"])) == {*kept[:12], *beside}
    assert "in its memory, the most doubtful of them." in page.text


def test_without_pictures_given_labels_or_judgements_there_are_no_empty_columns(tmp_path: Path) -> None:
    model = make_model(200, kind="features", given=False, updates=1)
    model.records = replace(model.records, judged_old=np.zeros(200, np.bool_))
    html, page, data = audit(tmp_path, model)
    assert data["pictures"] is None
    assert "It holds no pictures. Of features it holds the few" in page.text
    heads = [head.get("data-key") for head in page.all("th") if head.get("role") == "columnheader"]
    assert heads == ["id", "label", "confidence", "runner", "candidates", "update", "changed", "memory"]
    assert not [field for field in page.all("input") if field.get("name") == "differs"]
    assert "iVBORw0KGgo" not in html
    assert "200 samples in one fit" in page.text


def test_names_and_ids_cannot_inject_anything(tmp_path: Path) -> None:
    plain, _, _ = audit(tmp_path, make_model(100))
    html, page, data = audit(tmp_path, make_model(100, names=ATTACKS, ids=ATTACKS))
    assert len(re.findall(r"<script[ >]", html)) == len(re.findall(r"<script[ >]", plain)) == 2
    assert "<img" not in html
    assert set(ATTACKS) <= set(data["id"])
    assert ATTACKS[0] in page.text
    script = html[html.rindex("<script>") + 8 : html.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(meta["content"] for meta in page.all("meta") if "content" in meta and "script-src" in meta["content"])
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_a_hundred_thousand_samples_stay_light(tmp_path: Path) -> None:
    write_audit(make_model(100_000, classes=50, kept=500), tmp_path / "audit.html")
    assert (tmp_path / "audit.html").stat().st_size < 10e6
