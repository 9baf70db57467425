"""COCO: images, categories, and annotations that give an image a category, several an image; each is a vote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ipll.errors import DataError
from ipll.own.reading.problems import Problems
from ipll.own.reading.tools.vote import Asked, Vote, text_of

NAME, WORD = "COCO", "annotation"
WANTED = "Votes are 'annotations' with 'image_id' and 'category_id'."
TABLE = "Export classes of images, or write a table of sample, annotator and label."
OTHERS = ("caption", "segments_info")  # of COCO's other tasks: a text, and the parts of an image
WHO = ("annotator", "annotator_id", "worker", "worker_id", "completed_by", "created_by", "user", "user_id")


def recognises(content: object) -> bool:
    return isinstance(content, dict) and all(
        isinstance(content.get(key), list) for key in ("images", "annotations", "categories")
    )


def votes(content: Mapping[str, Any], asked: Asked, problems: Problems) -> Iterator[Vote]:
    """Without a field for the annotator (WHO), each annotation counts as somebody's."""
    images, names = _by_id(content, "images", asked), _by_id(content, "categories", asked)
    for row, annotation in enumerate(content["annotations"], 1):
        if not isinstance(annotation, dict):
            problems.add([row], "not an object", WANTED)
            continue
        if other := next((key for key in OTHERS if key in annotation), ""):
            raise DataError(f"{asked.file}, {WORD} {row}: it has '{other}', which is no vote. {WANTED} {TABLE}")
        image, category = images.get(_key(annotation, "image_id")), names.get(_key(annotation, "category_id"))
        if image is None or category is None:
            what = "image_id" if image is None else "category_id"
            problems.add([row], f"'{what}' {annotation.get(what)!r} is not in the file", "Export it again.")
            continue
        if _part(annotation, image):
            raise DataError(
                f"{asked.file}, {WORD} {row}: it is of a part of the image ('bbox' {annotation.get('bbox')}), which is "
                f"no vote on the whole. {TABLE}"
            )
        who = next((name for key in WHO if (name := text_of(annotation.get(key)))), f"annotation {row}")
        name = text_of(image.get("file_name"))
        sample = asked.image(name) if name else text_of(image.get("id"))
        yield Vote(row, sample, who, text_of(category.get("name")))


def _by_id(content: Mapping[str, Any], key: str, asked: Asked) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for one in content[key]:
        if not isinstance(one, dict) or not _key(one, "id"):
            raise DataError(f"{asked.file}: one of the '{key}' has no 'id'. {WANTED}")
        if _key(one, "id") in found:
            raise DataError(f"{asked.file}: two of the '{key}' have the id {one['id']!r}. Export it again.")
        found[_key(one, "id")] = one
    return found


def _key(one: Mapping[str, Any], name: str) -> str:
    return text_of(one.get(name))


def _part(annotation: Mapping[str, Any], image: Mapping[str, Any]) -> bool:
    """-> whether it is of less than the image: a box that does not cover it, where both sizes are given."""
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(side, int | float) for side in box):
        return bool(annotation.get("segmentation"))
    size = [side for side in (image.get("width"), image.get("height")) if isinstance(side, int | float)]
    if not any(box[2:]) or len(size) < 2:
        return False
    return any(side < 0.99 * whole for side, whole in zip(box[2:], size, strict=True))
