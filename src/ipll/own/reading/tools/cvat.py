"""CVAT for images 1.1: <image>s with <tag>s. A file is one job, or task, by one annotator: its assignee, or else its
name. That of a project has the images of several tasks, each by one annotator.

<annotations><version>1.1</version><meta><job><assignee><username>ann</username></assignee></job></meta>
  <image id="0" name="robin.jpg" width="640" height="480"><tag label="robin" source="manual"></tag></image>
</annotations>
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from ipll.errors import DataError
from ipll.own.reading.problems import Problems
from ipll.own.reading.tools.vote import Asked, Vote, shape_of

NAME, WORD = "CVAT for images", "image"
WANTED = "Votes are <tag>s of <image>s."


def recognises(content: object) -> bool:
    return isinstance(content, Element) and content.tag == "annotations"


def votes(root: Element, asked: Asked, problems: Problems) -> Iterator[Vote]:
    """A tag with an attribute 'annotator' is by that one."""
    images = root.findall("image")
    if not images:
        raise DataError(
            f"{asked.file}: it holds {shape_of(root)}, and no images. Export the task as 'CVAT for images 1.1'."
        )
    if not any(image.find("tag") is not None for image in images):
        kinds = sorted({f"<{child.tag}>" for image in images for child in image})
        raise DataError(f"{asked.file}: its images have no tags, but {', '.join(kinds) or 'nothing'}. {WANTED}")
    assignee = root.findtext("meta/job/assignee/username") or root.findtext("meta/task/assignee/username")
    owner, tasks = (assignee or "").strip() or asked.file.stem, _assignees(root)
    for row, image in enumerate(images, 1):
        name = (image.get("name") or "").strip()
        for tag in image.findall("tag"):
            if not name:
                problems.add([row], "no name", "Export the task again.")
                break
            who = next((one.text for one in tag.findall("attribute") if one.get("name") == "annotator"), None)
            by = (who or "").strip() or tasks.get(image.get("task_id"), owner)
            yield Vote(row, asked.image(name), by, (tag.get("label") or "").strip())


def _assignees(root: Element) -> dict[str | None, str]:
    """-> by whom each task of a project is; one without an assignee has its number for a name."""
    tasks = ((task, (task.findtext("id") or "").strip()) for task in root.iterfind("meta/project/tasks/task"))
    return {number: (task.findtext("assignee/username") or "").strip() or f"task {number}" for task, number in tasks}
