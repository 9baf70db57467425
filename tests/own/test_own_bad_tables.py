"""Bad tables: each fault is named with file, row and remedy."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipll.own import read_table

Write = Callable[..., Path]
Refused = Callable[..., str]

FAULTS: list[tuple[str, str | bytes | list[dict[str, Any]], list[str]]] = [
    ("t.csv", "features.x,candidates\n1,a|b\n2, | \n", ["t.csv, row 3: no candidates", "at least one"]),
    (
        "t.jsonl",
        '{"features": [1], "candidates": ["a"]}\n{"features": [2], "candidates": []}\n',
        ["line 2: no candidates"],
    ),
    ("t.jsonl", '{"features": [1], "candidates": ["a"]}\n{"features": [2]}\n', ["line 2: no candidates"]),
    (
        "t.parquet",
        [{"features": [1.0], "candidates": ["a"]}, {"features": [2.0], "candidates": []}],
        ["row 2: no candidates"],
    ),
    ("t.csv", "features.x\n1\n", ["no column 'candidates'", "robin|sparrow"]),
    ("t.csv", "features.x,candidats\n1,a\n", ["unknown column 'candidats'", "mean 'candidates'", "features.NAME"]),
    ("t.csv", "sample,annotator,label\ns1,ann,a\n", ["holds votes", "--votes"]),
    ("t.csv", "ID,features.x,candidates\n1,1,a\n", ["unknown column 'ID'", "mean 'id'"]),
    ("t.csv", "width,candidates\n1,a\n", ["unknown column 'width'", "features.NAME"]),
    ("t.csv", ",features.x,candidates\n0,1,a\n", ["column 1 has no name", "pandas' index"]),
    ("t.csv", "features.x,candidates,\n0,a,\n1,b,1\n", ["column 3 has no name. Name it, or remove it"]),
    ("t.csv", "features.x,candidates,,\n0,a,1,\n1,b,1,2\n", ["column 3 has no name"]),
    ("t.csv", "features.x,features.x,candidates\n0,1,a\n", ["two columns", "'features.x'"]),
    ("t.csv", "id,candidates\n1,a\n", ["neither images nor features"]),
    ("t.csv", "image,features.x,candidates\na.png,1,a\n", ["both 'image' and 'features.x'"]),
    ("t.jsonl", '{"image": "a", "features": [1], "candidates": "a"}\n', ["both 'image' and 'features'"]),
    (
        "t.jsonl",
        '{"features": [1, 2], "candidates": "a"}\n' * 2 + '{"features": [1], "candidates": "b"}\n',
        ["line 3: 1 features, but most have 2"],
    ),
    (
        "t.parquet",
        [{"features": [1.0], "candidates": "a"}, {"features": None, "candidates": "b"}],
        ["row 2: 0 features"],
    ),
    (
        "t.csv",
        "features.x,features.y,candidates\n,,a\nnan,,b\n3,,b\n",
        ["2 faults", "row 2: no feature has a number", "row 3"],
    ),
    ("t.csv", "features.x,candidates\n1,a\ninf,b\n", ["row 3: feature 'x' is infinite"]),
    ("t.csv", "features.x,candidates\n1,a\n1e300,b\n", ["row 3: feature 'x' is infinite, or too large"]),
    (
        "t.jsonl",
        '{"features": [NaN, null], "candidates": "a"}\n{"features": [1, 2], "candidates": "b"}\n',
        ["line 1: no feature has a number"],
    ),
    ("t.csv", "features.x,candidates\n1,a\nred,b\n", ["row 3: 'features.x' is the text 'red'", "decimal point"]),
    ("t.csv", "features.x,candidates\n2024-01-01,a\n", ["'features.x' holds date", "not numbers"]),
    ("t.csv", 'features,candidates\n"1 2",a\n', ["not lists of numbers", "features.width"]),
    ("t.csv", "id,features.x,candidates\na,1,a\nb,2,b\na,3,b\n", ["row 4: id 'a' is that of row 2 too"]),
    ("t.csv", "id,features.x,candidates\na,1,a\n,2,b\n", ["row 3: no id"]),
    ("t.csv", "features.x,candidates\n1,a\n2,a\n", ["one class only, 'a'"]),
    (
        "t.csv",
        'features.x,candidates\n1,"robin,wren"\n2,"wren, crow"\n3,robin\n4,"crow,robin"\n',
        ["'robin,wren' would be one candidate", "not ','", "Put '|' between them"],
    ),
    (
        "t.csv",
        "features.x,candidates\n1,\"['a', 'b']\"\n2,\"['b', 'c']\"\n3,\"['c', 'a']\"\n",
        ["would be one candidate", "not ','", "Put '|' between them"],
    ),
    (
        "t.csv",
        'features.x,candidates\n1,"[""a"", ""b""]"\n2,"[""b"", ""c""]"\n3,"[""a""]"\n4,"[""c"", ""a""]"\n',
        ["would be one candidate", "not ','"],
    ),
    ("t.csv", "features.x,candidates\n1,a;b\n2,b;c\n3,c;a\n", ["'a;b' would be one candidate", "not ';'"]),
    *(
        (
            "t.csv",
            f"features.x,candidates\n1,crow\n2,{name}\n3,robin\n4,Wren\n5,gull\n",
            [
                f"'{name}' would be a class of its own beside {parts} (names like it: 1, in 1 rows)",
                "Put '|' between",
            ],
        )
        for name, parts in (
            ("robin or wren", "'robin' and 'Wren'"),
            ("Robin AND wren", "'robin' and 'Wren'"),
            ("robin/wren", "'robin' and 'Wren'"),
            ("robin; crow or wren", "'robin' and 'crow' and 'Wren'"),
            ("robin ?", "'robin'"),
        )
    ),
    ("t.csv", "features.x,candidates\n", ["has no rows"]),
    ("t.csv", "features.x,candidates", ["has no rows"]),
    ("t.csv", "", ["is empty"]),
    ("t.jsonl", "\n\n", ["t.jsonl"]),
    ("t.csv", b"PAR1....", ["is a Parquet file, not CSV"]),
    ("t.csv", b"PK\x03\x04....", ["spreadsheet"]),
    ("t.csv", '{"features": [1], "candidates": "a"}\n', ["holds JSON, not CSV"]),
    ("t.csv", '{"id": 1}\n', ["holds JSON, not CSV", ".jsonl"]),
    ("t.parquet", "features.x,candidates\n1,a\n", ["is not a Parquet file"]),
    ("t.parquet", b"PAR1 and then nothing", ["is damaged"]),
    ("t.jsonl", "features.x,candidates\n1,a\n", ["2 faults", "line 1: not JSON (Expecting value)"]),
    ("t.jsonl", '[{"features": [1]}]\n', ["line 1: a list of an object, not an object"]),
    (
        "t.jsonl",
        '{"features": [1], "candidates": "a"}\n{"features": [1], "candidates": ["a"]}\n',
        ["line 2: 'candidates' is a list of text, but text in line 1"],
    ),
    ("t.csv", "features.x;note\tcandidates\n1,5;a\tb\n", ["separated by a semicolon (;), not by a comma"]),
    ("t.tsv", "features.x;candidates\n1,5;a\n", ["separated by a semicolon (;), not by a tab"]),
    ("t.csv", '"features.x;candidates"\n"1;a"\n', ["separated by a semicolon (;), not by a comma"]),
    ("t.csv", "sep=;\nfeatures.x;candidates\n1;a\n", ["its first line, 'sep=;', is no header. Remove it"]),
    ("t.csv", "features.x;features.y;candidates\n1,5;2.5;a\n2,5;1.5;b\n", ["'features.x' holds", "decimal comma"]),
    (
        "t.csv",
        "features.x;candidates\n1,500;a\n2,700;b\n",
        ["'1,500' and others like it", "if they are decimal commas"],
    ),
    ("t.csv", "features.x;candidates\n1,5;a\n2;b;c\n", ["row 3: 3 cells, but the header has 2"]),
    ("t.csv", gzip.compress(b"features.x,candidates\n1,a\n"), ["is a gzip file, not CSV. Call it t.csv.gz."]),
    ("t.csv.gz", b"features.x,candidates\n1,a\n", ["t.csv.gz cannot be unpacked (Not a gzipped file", "gzip t.csv."]),
    ("t.csv.gz", gzip.compress(bytes(9999))[:-12], ["t.csv.gz cannot be unpacked (Compressed file ended"]),
    ("t.jsonl.gz", gzip.compress(b'{"features": [1], "candidates": "B\xe4r"}\n'), ["line 1: not UTF-8"]),
    ("t.csv.gz", gzip.compress(b"features.x,candidates\n1,a\n\n2,b,c\n"), ["row 4: 3 cells"]),
    ("t.csv.gz", gzip.compress(b""), ["is empty"]),
    ("t.parquet.gz", gzip.compress(b"PAR1"), ["its ending is not that of a table"]),
    ("t.tsv", "features.x,candidates\n1,a\n", ["separated by a comma", ".csv"]),
    ("t.csv", "features.x,candidates\n1,a\n\n2,Robin, European\n", ["row 4: 3 cells, but the header has 2", "quoted"]),
    ("t.csv", "features.x,candidates\n1,Bär\n".encode("cp1252"), ["line 2: not UTF-8", "'1,Bä'", "CSV UTF-8"]),
    ("t.csv", "features.x,candidates\n1ä,a\n".encode("cp1252"), ["line 2: not UTF-8"]),
    ("t.csv", "features.x,candidates\n1,a\n".encode("utf-16"), ["UTF-16"]),
    ("t.jsonl", '{"features": [1], "candidates": "Bär"}\n'.encode("cp1252"), ["line 1: not UTF-8"]),
    (
        "t.csv",
        'features.x,candidates\n\n1,a\n2,"b|c\n3,d\n',
        ["row 4: a line break in 'candidates'", "a quote that never"],
    ),
    ("t.csv", 'features.x,"candidates\n' + "1,a|b\n" * 40_000, ["near line", "a quote that never ends"]),
    ("t.csv", "features.x,candid\xe4tes\n1,a\n".encode("cp1252"), ["line 1: not UTF-8"]),
    ("t.jsonl", '{"features": [1], "k\xe4": 1}\n'.encode("cp1252"), ["line 1: not UTF-8"]),
    ("t.jsonl", '{"features": [1], "candidates": "\\ud800"}\n', ["cannot be used"]),
    ("t.txt", "", ["not that of a table", ".parquet"]),
    ("t.xlsx", "", ["Save the sheet as CSV"]),
    ("t.jsonl", '{"features": [1], "candidates": [1.5]}\n', ["'candidates' holds decimal numbers"]),
]


@pytest.mark.parametrize(("name", "content", "said"), FAULTS, ids=range(len(FAULTS)))
def test_faults(write: Write, refused: Refused, name: str, content: Any, said: list[str]) -> None:
    message = refused(read_table, write(name, content))
    assert name in message
    for part in said:
        assert part in message


def test_a_file_that_is_not_there(tmp_path: Path, refused: Refused) -> None:
    assert "No such file" in refused(read_table, tmp_path / "t.csv")
    (tmp_path / "d.csv").mkdir()
    assert "Is a directory" in refused(read_table, tmp_path / "d.csv")
    assert "is a folder, not a table" in refused(read_table, tmp_path)


def test_several_kinds_of_fault_are_told_at_once(write: Write, refused: Refused) -> None:
    rows = ["7,1,a|b", "7,2,", "8,,c", *(f"x{k},1," for k in range(10))]
    message = refused(read_table, write("t.csv", "id,features.x,candidates\n" + "\n".join(rows) + "\n"))
    lines = message.splitlines()
    assert lines[0].endswith("t.csv: 13 faults.")
    assert [line.split(":")[0] for line in lines[1:6]] == ["  row 3", "  row 3", "  row 4", "  row 5", "  row 6"]
    assert lines[6] == "  and 8 more"
    assert "at least one candidate" in lines[7]
    assert "id of its own" in lines[7]


def test_bad_rows_are_found_in_every_block_of_a_large_file(write: Write, refused: Refused) -> None:
    """Arrow reads a file in blocks of megabytes; the row number is that of the file."""
    rows = [f"{value:.17f},a|b|{'x' * 60}" for value in np.random.default_rng(0).random(150_000)]
    rows[140_000] = "red,a"
    message = refused(read_table, write("t.csv", "features.x,candidates\n" + "\n".join(rows) + "\n"))
    assert "row 140002: 'features.x' is the text 'red'" in message
