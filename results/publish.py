"""Publishes what lies here: from the result files of the paper's data sets (results/DATASET/METHOD/*.json) it makes

- src/ipll/paper/measured.jsonl, which ships with the package: a line a run;
- the tables of docs/results.md: whatever stands between `<!-- COMMAND -->` and `<!-- end -->` is what COMMAND prints.

To add a number: put its result.json here and run `python results/publish.py`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ipll.engine.files import write_text
from ipll.paper.measured import FILE, line_of
from ipll.paper.published import cells

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- ipll (table .+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def lines() -> str:
    """-> what measured.jsonl has to hold."""
    files = sorted(
        file for dataset in {cell.dataset for cell in cells()} for file in ROOT.glob(f"results/{dataset}/*/*.json")
    )
    return "".join(line_of(json.loads(file.read_text()), file.relative_to(ROOT).as_posix()) + "\n" for file in files)


def filled(page: str, run: Callable[[list[str]], str]) -> str:
    """-> the page with every block as its command prints it now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{run(shlex.split(block[2])).strip()}\n\n{block[4]}", page)


def _run(words: list[str]) -> str:
    return subprocess.run([sys.executable, "-m", "ipll", *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    shipped = ROOT / "src" / "ipll" / FILE
    before = shipped.read_text()
    write_text(shipped, lines())
    try:
        page = filled(PAGE.read_text(), _run)  # by the commands, which read what is shipped
    except BaseException:
        write_text(shipped, before)
        raise
    write_text(PAGE, page)
