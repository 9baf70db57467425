"""What the readers of exports share: a vote, where its image lies, and what something unknown looks like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

SHOWN = 8  # keys in a message


class Vote(NamedTuple):
    row: int  # task, annotation or image of the file, from 1
    sample: str
    annotator: str
    label: str


class Asked(NamedTuple):
    file: Path
    by_id: bool  # samples are rows of another table, and not images

    def image(self, *names: str) -> str:
        """-> the first of these names that is a file, from the export's folder, or from `images` in it or beside it;
        else the last name, of which it will be said that it is missing."""
        if not self.by_id:
            for name in names:
                for place in ("", "images/", "../images/", "images/default/", "../images/default/"):
                    if os.path.isfile(os.path.join(self.file.parent, f"{place}{name}")):
                        return f"{place}{name}"
        return names[-1]


def text_of(value: object) -> str:
    """-> a name or number as text; '' for what is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value).strip()


def shape_of(content: Any) -> str:
    """-> what something is, in words, to be recognised by who made it."""
    if isinstance(content, Element):
        inside = list(dict.fromkeys(f"<{child.tag}>" for child in content))
        return f"XML, <{content.tag}> with {_some(inside) or 'nothing'} in it"
    if isinstance(content, dict):
        return f"an object with the keys {_some([repr(key) for key in content]) or '(none)'}"
    if isinstance(content, list):
        return f"a list of {len(content):,}, the first of them {shape_of(content[0])}" if content else "an empty list"
    return {str: "text", bool: "true or false", type(None): "null"}.get(type(content), "a number")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
