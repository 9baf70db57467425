"""The report's gallery: training samples as small pictures, few enough that the page stays light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipll.engine.files import parse_json
from ipll.engine.npz import read_npz
from ipll.errors import RunError
from ipll.pages.thumbnails import LARGE, MANY, SMALL, data_uri
from ipll.report.data import Run

CARDS = 600  # at most, in a report; a run of a task has at least two, so late runs may have to go without
CHIPS = 14  # candidates shown of a sample; the rest is counted


class Card(NamedTuple):
    """A sample as the page shows it."""

    run: Run
    task: int
    id: int
    image: str
    settled: str
    truth: str
    right: bool
    confidence: float  # in percent
    chips: list[tuple[str, bool, bool]]  # candidates: name, is it settled on, is it true
    more: int  # candidates that are not shown
    judged: str  # 'old', 'new', or '' where it was not
    born: str  # 'old' or 'new', by its true class


@dataclass
class Gallery:
    """The cards of all runs, and what is not among them."""

    cards: list[Card] = field(default_factory=list)
    tasks: int = 0
    classes: list[str] = field(default_factory=list)
    total: int = 0  # samples in the runs' galleries
    without: list[str] = field(default_factory=list)  # runs that have no gallery
    omitted: list[str] = field(default_factory=list)  # runs whose gallery found no room
    warnings: list[str] = field(default_factory=list)


def collect(runs: Sequence[Run]) -> Gallery:
    """Reads the galleries. Where there are too many samples, each task of each run keeps an equal share of them."""
    gallery, found = Gallery(), []
    for run in runs:
        try:
            images, samples = _read(run.folder / "gallery.npz", run.result)
        except FileNotFoundError:
            gallery.without.append(run.name)
        except RunError as error:
            gallery.warnings.append(str(error))
        else:
            found.append((run, images, samples))
    tasks = sum(len({sample["task"] for sample in samples}) for _, _, samples in found)
    share = max(CARDS // max(tasks, 1), 2)
    gallery.total = sum(len(samples) for _, _, samples in found)
    size = LARGE if gallery.total <= MANY else SMALL
    classes: dict[str, None] = {}
    for run, images, samples in found:
        rows = _chosen(samples, share)
        if len(gallery.cards) + len(rows) > CARDS and gallery.cards:
            gallery.omitted.append(run.name)
            continue
        gallery.cards += [_card(run, samples[i], images[i], size) for i in rows]
        classes |= dict.fromkeys(run.result["class_names"])
    used = {card.truth for card in gallery.cards} | {card.settled for card in gallery.cards}
    gallery.classes = [name for name in classes if name in used]
    gallery.tasks = max((card.task for card in gallery.cards), default=0)
    return gallery


def _read(path: Path, result: Mapping[str, Any]) -> tuple[npt.NDArray[np.uint8], list[Mapping[str, Any]]]:
    """-> images [n, channels, height, width] and what is known of each."""
    try:
        arrays = read_npz(path, ("images", "samples"))
        images, samples = arrays["images"], parse_json(str(arrays["samples"]))
        if images.ndim != 4 or len(images) != len(samples):
            raise ValueError("images and samples do not match")
        if images.dtype != np.uint8 or 0 in images.shape[1:]:
            raise ValueError("images that are none")
        classes, tasks = len(result["class_names"]), len(result["accuracy_per_task"])
        for sample in samples:
            labels = [sample["settled"], sample["truth"], *sample["candidates"]]
            if not (0 <= sample["task"] < tasks and all(0 <= label < classes for label in labels)):
                raise ValueError("a sample of another run")
            if sample["judged_old"] not in (None, True, False) or not 0 <= sample["confidence"] <= 1.001:
                raise ValueError("a sample that makes no sense")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({error}). Its samples are left out.") from None
    return images, samples


def _chosen(samples: Sequence[Mapping[str, Any]], share: int) -> list[int]:
    """-> which samples to show, `share` of a task; wrongly settled ones take half of it where there are as many."""
    chosen: list[int] = []
    for task in dict.fromkeys(sample["task"] for sample in samples):
        own = [i for i, sample in enumerate(samples) if sample["task"] == task]
        right = [i for i in own if samples[i]["settled"] == samples[i]["truth"]]
        wrong = [i for i in own if i not in set(right)]
        kept = wrong[: max(share - len(right), share // 2)]
        chosen += sorted(kept + right[: share - len(kept)])
    return chosen


def _card(run: Run, sample: Mapping[str, Any], image: npt.NDArray[np.uint8], size: int) -> Card:
    names, seen = run.result["class_names"], run.result["seen_classes_per_task"]
    task, settled, truth = sample["task"], sample["settled"], sample["truth"]
    telling = sorted(sample["candidates"], key=lambda c: (c not in (settled, truth), c))[:CHIPS]
    return Card(
        run=run,
        task=task + 1,
        id=sample["id"],
        image=data_uri(image, size),
        settled=names[settled],
        truth=names[truth],
        right=settled == truth,
        confidence=100 * sample["confidence"],
        chips=[(names[c], c == settled, c == truth) for c in sorted(telling)],
        more=len(sample["candidates"]) - len(telling),
        judged={None: "", True: "old", False: "new"}[sample["judged_old"]],
        born="old" if task and truth < seen[task - 1] else "new",
    )
