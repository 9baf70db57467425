"""What strangers put into names: terminals show it and obey none of it, spreadsheets run none of it."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from rich.console import Console
from rich.table import Table

from ipll.engine.cells import guard
from ipll.messages import cell, print_visible, tell, visible
from ipll.own import Model, from_arrays, read_table
from ipll.own.reading.guarded import guarded, unguarded

CLEAR = "\x1b[2J"
LINK = "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\"
BIDI = "\u202egnp.exe\u2066"
LIVE = "=1+1"
HOSTILE = (CLEAR, LINK, BIDI, "\x9b31m", "a\rb", "\x07", "[link=https://evil.example]x[/link]")
SIGNS = ("\x1b", "\u202e", "\u2066", "\x9b", "\r", "\x07")


def test_what_commands_a_terminal_is_shown() -> None:
    assert visible(CLEAR) == "\\x1b[2J"
    assert visible("\u202ea\x9b\udcff\n") == "\\u202ea\\x9b\\udcff\\x0a"
    assert visible("a\nb", keep="\n") == "a\nb"
    plain = "Größe 猫 👨\u200d👩 λ [bold]"
    assert visible(plain) == plain
    assert cell("[bold]") == "\\[bold]"


@pytest.mark.parametrize("terminal", [True, False])
def test_messages_and_tables(terminal: bool) -> None:
    for text in HOSTILE:
        bare, table = Table("id"), Table("id")
        bare.add_row("x")
        table.add_row(cell(text))
        for one, other in ((bare, table), (bare, Table(cell(text)))):
            outs = []
            for renderable in (one, other):
                file = io.StringIO()
                print_visible(Console(file=file, force_terminal=terminal, width=100), renderable)
                outs.append(file.getvalue())
            assert "evil.example\x1b" not in outs[1]
            assert "\x1b]8" not in outs[1]
            assert (set("\x1b\r\x07\x9b\u202e") & set(outs[1])) <= set(outs[0])
        file = io.StringIO()
        tell(text, Console(file=file, force_terminal=terminal))
        assert not set(SIGNS) & set(file.getvalue())


def test_a_cell_that_was_not_escaped_is_caught_all_the_same() -> None:
    table, file = Table("id", title=CLEAR), io.StringIO()
    table.add_row(CLEAR)
    print_visible(Console(file=file), table)
    assert "\x1b" not in file.getvalue()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Any) -> Path:
    """A model whose classes and ids are hostile, and the table that it was made of, without its test rows."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for index in range(30):
        name = (f"{CLEAR}cat", LIVE, f"@{BIDI}")[index % 3]
        rows.append({"id": f"-{index}{LINK}", "features": [3.0 * (index % 3), index / 30], "candidates": [name]})
        rows[-1] |= {"label": name}
    Path("table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out, err = main("fit", "table.jsonl", "--out", "model", "--set", "train.epochs=1")
    assert status == 0, err
    assert not set(SIGNS) & set(out + err)
    return Path("model")


def test_no_command_lets_them_through(main: Any, model: Path) -> None:
    for command in (
        ("info", model),
        ("audit", model),
        ("predict", model, "table.jsonl"),
        ("evaluate", model, "table.jsonl"),
        ("update", model, "table.jsonl"),
        ("info", f"no{CLEAR}where"),
        ("run", f"digi{CLEAR}ts"),
        ("run", "digits", "--set", f"tra{CLEAR}in.epochs=1"),
    ):
        _, out, err = main(*command)
        assert not set(SIGNS) & set(out + err), command
        assert "\\x1b" in out + err, command


def test_files_keep_what_they_were_given(main: Any, model: Path) -> None:
    assert main("predict", model, "table.jsonl", "--out", "p.jsonl").status == 0
    found = {json.loads(line)["class"] for line in Path("p.jsonl").read_text().splitlines()}
    assert found <= set(Model.load(model).names)
    assert any("\x1b" in name or "\u202e" in name or name == LIVE for name in found)


# Spreadsheets


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("=HYPERLINK(\"http://x\")", "'=HYPERLINK(\"http://x\")"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("'=1+1", "''=1+1"),
        ("-5|+3", "'-5|+3"),
        *((same, same) for same in ("-5", "+0.5", "-1e-3", "-.5", "-inf", "-", "cat", "", "'tis", "'-5", "a=b", "007")),
    ],
)  # fmt: skip
def test_what_is_guarded(text: str, written: str) -> None:
    assert guard(text) == written
    column = pa.array([text, None])
    assert guarded(column).to_pylist() == [written, None]
    assert unguarded(guarded(column)).equals(column)


def test_numbers_are_not_touched() -> None:
    column = pa.array([-1.5, 2.0])
    assert guarded(column) is column
    assert unguarded(column) is column


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_no_csv_has_a_live_formula(main: Any, model: Path) -> None:
    assert main("audit", model, "--out", "audit.csv").status == 0
    assert main("predict", model, "table.jsonl", "--top", 3, "--out", "p.csv").status == 0
    for file in ("audit.csv", "p.csv"):
        texts = [text for row in cells(Path(file)) for text in row.values()]
        assert not [text for text in texts if text[:1] in "=@\t\r" and text]
        assert f"'{LIVE}" in texts
    assert all(row["id"].startswith("'-") for row in cells(Path("p.csv")))


def test_a_class_called_like_a_formula_comes_back(main: Any, model: Path) -> None:
    """From the audit's CSV, with its features beside, to the same ids and classes."""
    assert main("audit", model, "--out", "audit.csv").status == 0
    names = ("id", "candidates", "label")
    rows = [[*(row[name] for name in names), str(n)] for n, row in enumerate(cells(Path("audit.csv")))]
    with Path("again.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[*names, "features.n"], *rows])
    first, again = read_table("table.jsonl"), read_table("again.csv")
    assert set(again.names) == set(first.names)
    assert set(again.ids) == set(first.ids)
    assert set(again.label_names) == set(Model.load(model).names) & set(again.label_names)


def test_a_file_whose_name_is_no_text(main: Any, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are shown: no table could hold them."""
    monkeypatch.chdir(tmp_path)
    images = np.zeros((12, 8, 8), np.uint8)
    images[::2] += 200
    settings = {"train.epochs": 1, "data.size": 8}
    Model.fit(from_arrays(images, ["a", "b"] * 6), device="cpu", settings=settings).save("model")
    folder = tmp_path / "strange"
    folder.mkdir()
    Image.fromarray(images[0]).save(os.fsencode(folder) + b"/\xff.png")
    for more in ((), ("--out", "p.csv")):
        status, _, err = main("predict", "model", folder, *more)
        assert status == 0, err
    assert "\\xff.png" in Path("p.csv").read_text()
    assert "\\xff.png" in main("predict", "model", folder).out
