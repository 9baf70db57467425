"""The walk-throughs of README and docs/own_data.md are run as they stand, and what is shown is what they print."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"\d[\d,.]*\b")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def shape(line: str) -> str:
    """A line without its numbers, and without the spaces and rules by which a table is drawn."""
    return " ".join(NUMBER.sub("#", re.sub("[│┃─━┏┓┡┩└┘┳╇┴]", " ", line)).split())


def follow(text: str, main: Any) -> str:
    """Writes the scripts, runs the commands in the working folder, and compares outputs with those shown."""
    printed = everything = ""
    for language, content in BLOCK.findall(text):
        if language == "python":
            Path(content.splitlines()[0].removeprefix("# ")).write_text(content)
        elif language == "sh":
            printed = "\n".join(_run(line, main) for line in content.splitlines())
            everything += printed
        elif language == "text":
            _is_shown(content, printed)
    return everything


def _run(line: str, main: Any) -> str:
    program, *arguments = shlex.split(line, comments=True)
    if program == "python":
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert program == "ipll"
    status, out, err = main(*arguments)
    assert status == 0, f"{line}: {err}"
    return str(out)


def _is_shown(content: str, printed: str) -> None:
    """All lines of the document are in the output, in their order, but for the numbers."""
    lines = iter([shape(line) for line in printed.splitlines()])
    for line in content.splitlines():
        if line.strip() != "...":
            assert shape(line) in lines, f"not printed, or not in this order: {line!r}\n{printed}"


@pytest.fixture
def document(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return (root / "docs" / "own_data.md").read_text()


def accuracy(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"Accuracy ([\d.]+) %", printed)]


def test_three_people_vote_on_images(document: str, main: Any) -> None:
    printed = follow(section(document, "Three people vote on images, three weeks long"), main)
    assert accuracy(printed)[-1] > 95
    agreement = {name: float(share) for name, share in re.findall(r"(ann|ben|cem): ([\d.]+) %", printed)}
    assert agreement["cem"] < 75 < 85 < agreement["ben"]
    assert "<html" in Path("audit.html").read_text()
    assert len(Path("predictions.csv").read_text().splitlines()) == 241


def test_a_table_of_features(document: str, main: Any) -> None:
    printed = follow(section(document, "A table of features"), main)
    assert min(accuracy(printed)) > 85


def test_the_readme(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Any) -> None:
    """With the tables that lie beside it."""
    shutil.copytree(root / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    text = section((root / "README.md").read_text(), "Your own data").split("Then people and model")[0]
    assert "unlike" in follow(text, main)
