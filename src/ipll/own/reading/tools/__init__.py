"""Exports of the tools that labels are made with: each becomes the long table of votes.

What a file is, its content tells. A folder stands for all exports in it: CVAT writes one for each job.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ipll.engine.regular import check_regular
from ipll.errors import DataError
from ipll.own.reading.problems import Problems
from ipll.own.reading.tables import Table
from ipll.own.reading.tools import coco, cvat, label_studio, plain
from ipll.own.reading.tools.vote import Asked, Vote, shape_of
from ipll.own.reading.tools.xml import parse_xml

ENDINGS = (".json", ".xml")
TOOLS = (label_studio, coco, plain, cvat)
EXPECTED = (
    "Expected is one of these: Label Studio's JSON, a list of tasks with 'data' and 'annotations'; COCO, an object "
    "with 'images', 'annotations' and 'categories'; CVAT for images 1.1, <annotations> with <image>s that have <tag>s; "
    "a list of objects with 'sample', 'annotator' and 'label'."
)


def is_export(path: Path) -> bool:
    """-> whether it is to be read here, and not as a table."""
    return path.is_dir() or path.suffix.lower() in ENDINGS


def open_export(path: Path, *, by_id: bool) -> Table:
    """-> the votes in a file, or in all files of a folder, as a table with the columns sample, annotator and label.

    Samples are images, found from the file's folder; or, `by_id`, the ids of another table.
    """
    files = _files(path)
    votes: list[Vote] = []
    word, number = "", 0
    for file in files:
        tool, content = _told(file)
        word = word or tool.WORD
        problems, asked = Problems(str(file), tool.WORD), Asked(file, by_id)
        found = list(tool.votes(content, asked, problems))
        problems.stop()
        if not found:
            raise DataError(f"{file}: {tool.NAME}, but nobody has labelled anything in it. {tool.WANTED}")
        votes += [vote._replace(row=number + vote.row) for vote in found]
        number = votes[-1].row if len(files) > 1 else 0
    try:
        columns = {
            name: pa.array([getattr(vote, name) for vote in votes], pa.string())
            for name in ("sample", "annotator", "label")
        }
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: {error.object!r} holds half of a character. Correct it, or export again.") from None
    where = path / "*" if path.is_dir() else path  # images are found from the folder that it is in
    return Table(where, columns, np.array([vote.row for vote in votes], np.int64), word)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"cannot read the folder {path}: Permission denied. Check its permissions.")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and not file.name.startswith("."))
    if not files:
        raise DataError(f"{path} has no exports in it ({', '.join(ENDINGS)}). Name a file of votes, or another folder.")
    return files


def _told(path: Path) -> tuple[Any, Any]:
    """-> the tool that a file comes from, and its content."""
    try:
        check_regular(path)
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    content = parse_xml(raw, path) if raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else _json(raw, path)
    for tool in TOOLS:
        if tool.recognises(content):
            return tool, content
    raise DataError(f"{path} is no export that is known here: it holds {shape_of(content)}. {EXPECTED}")


def _json(raw: bytes, path: Path) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        hint = " Where each line is an object of its own, call it .jsonl." if raw[:1] == b"{" else ""
        raise DataError(f"{path} is neither JSON nor XML ({reason}). Export it again, in UTF-8.{hint}") from None
