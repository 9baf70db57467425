"""Label Studio's JSON: tasks, each with the annotations of several people; choices are votes.

[{"id": 1, "data": {"image": "..."}, "annotations": [{"completed_by": 3, "result": [{"type": "choices",
  "from_name": "bird", "value": {"choices": ["robin"]}}]}]}]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ipll.errors import DataError
from ipll.own.reading.problems import Problems
from ipll.own.reading.tools.vote import Asked, Vote, text_of

NAME, WORD = "Label Studio's JSON", "task"
WANTED = "Votes are results of the type 'choices'."
UPLOADED = re.compile(r"[0-9a-f]{8}-")  # what an upload puts before a file's name
PICTURE = re.compile(r"\.(jpe?g|png|gif|bmp|tiff?|webp)$", re.I)


def recognises(content: object) -> bool:
    return isinstance(content, list) and any(
        isinstance(task, dict) and isinstance(task.get("data"), dict) and isinstance(task.get("annotations"), list)
        for task in content
    )


def votes(tasks: list[Any], asked: Asked, problems: Problems) -> Iterator[Vote]:
    """Annotations that were skipped ('was_cancelled') and predictions of models are no votes."""
    _check_question(tasks, asked)
    for row, task in enumerate(tasks, 1):
        try:
            data, annotations = task["data"], [one for one in task["annotations"] if not one.get("was_cancelled")]
            chosen = [(_who(one, k), label) for k, one in enumerate(annotations) for label in _choices(one)]
            sample = _sample(task, data, asked) if chosen else ""
        except (KeyError, TypeError, AttributeError, ValueError):
            problems.add([row], "not a task with 'data' and 'annotations'", "Export it again, as JSON.")
            continue
        if chosen and not sample:
            keys = ", ".join(map(repr, data)) or "nothing"
            problems.add([row], f"no image is named: 'data' has {keys}", "Name it 'image', or give a table with ids.")
            continue
        yield from (Vote(row, sample, who, label) for who, label in chosen)


def _results(task: Any) -> Iterator[Mapping[str, Any]]:
    """What is no object is passed over here, and told later."""
    for annotation in _objects(task, "annotations"):
        yield from _objects(annotation, "result")


def _objects(holder: Any, key: str) -> list[Mapping[str, Any]]:
    inside = holder.get(key) if isinstance(holder, dict) else None
    return [one for one in inside if isinstance(one, dict)] if isinstance(inside, list) else []


def _check_question(tasks: list[Any], asked: Asked) -> None:
    """One question is answered, by choices: answers to two of them are no votes on one thing."""
    kinds = Counter(_kind(result) for task in tasks for result in _results(task))
    if kinds and "choices" not in kinds:
        found = ", ".join(f"'{kind}' ({count:,})" for kind, count in kinds.most_common(5))
        raise DataError(f"{asked.file}: {NAME}, whose results are of the type {found}. {WANTED}")
    questions = Counter(
        str(result.get("from_name")) for task in tasks for result in _results(task) if _kind(result) == "choices"
    )
    if len(questions) > 1:
        found = ", ".join(f"'{name}' ({count:,})" for name, count in questions.most_common(5))
        raise DataError(
            f"{asked.file}: choices for {len(questions)} questions: {found}. Keep the results of one ('from_name')."
        )


def _kind(result: Mapping[str, Any]) -> str:
    """-> its type. Choices for a region have its outline beside them in their value, and are no votes on the whole."""
    kind, value = str(result.get("type")), result.get("value")
    return "choices of a region" if kind == "choices" and isinstance(value, dict) and len(value) > 1 else kind


def _choices(annotation: Mapping[str, Any]) -> list[str]:
    return [
        text_of(label)
        for result in annotation.get("result") or ()
        if _kind(result) == "choices"
        for label in result["value"]["choices"]
    ]


def _who(annotation: Mapping[str, Any], index: int) -> str:
    """-> the annotator: an id, or an object with an address; without one, each annotation is somebody's."""
    who = annotation.get("completed_by")
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    return text_of(who) or f"annotation {text_of(annotation.get('id')) or index + 1}"


def _sample(task: Mapping[str, Any], data: Mapping[str, Any], asked: Asked) -> str:
    if asked.by_id and (name := text_of(data.get("id"))):
        return name
    images = [data["image"]] if "image" in data else [value for value in data.values() if PICTURE.search(str(value))]
    if len(images) == 1 and (address := text_of(images[0])):
        return asked.image(*_names(address))
    return text_of(task.get("id")) if asked.by_id else ""


def _names(address: str) -> list[str]:
    """-> the names that a picture's file may have: '/data/upload/3/0a1b2c3d-robin.jpg' is 'robin.jpg', or has its
    prefix still; '/data/local-files/?d=week1/robin.jpg' is what stands behind '='."""
    parts = urlsplit(address)
    if local := parse_qs(parts.query).get("d"):
        return [local[0]]
    if "/data/upload/" in parts.path:
        name = unquote(parts.path).rpartition("/")[2]
        return [name, UPLOADED.sub("", name, count=1)]
    if parts.scheme and parts.netloc:
        path = unquote(parts.path).lstrip("/")
        return [path, path.rpartition("/")[2]]
    return [address]
