"""A list of objects with sample, annotator and label: the table of votes as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipll.own.reading.problems import Problems
from ipll.own.reading.tools.vote import Asked, Vote, text_of

NAME, WORD = "a list of votes", "vote"
WANTED = "A vote has 'sample', 'annotator' and 'label'."


def recognises(content: object) -> bool:
    return isinstance(content, list) and any(
        isinstance(one, dict) and {"sample", "annotator", "label"} <= one.keys() for one in content
    )


def votes(content: list[Any], asked: Asked, problems: Problems) -> Iterator[Vote]:
    for row, one in enumerate(content, 1):
        fields = [text_of(one.get(key)) for key in ("sample", "annotator", "label")] if isinstance(one, dict) else [""]
        if not all(fields):
            problems.add([row], "not a vote with text or whole numbers for all three", WANTED)
            continue
        yield Vote(row, *fields)
