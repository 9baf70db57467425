"""Finished runs with made-up numbers, and what a browser would find in a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from ipll.report.build import write_report

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "{{ 7 * 7 }}",
    "</title></svg>",
)


def make_run(
    folder: Path,
    *,
    method: str = "pgdr",
    preset: str = "digits",
    seed: int = 0,
    tasks: int = 5,
    classes: int = 10,
    names: list[str] | None = None,
    separates: bool = True,
    image: tuple[int, int, int] = (1, 8, 8),
    samples: int = 12,
    top: float = 99.0,
    forgetting: float = 6.25,
    settings: dict[str, Any] | None = None,
    recent: bool = True,
) -> Path:
    """A finished run folder as `ipll run` leaves it, with made-up numbers; `samples` of the gallery per task.

    Without `recent`, its result lacks the fields that older versions did not record.
    """
    rng = np.random.default_rng(seed + tasks)
    seen = [classes * (t + 1) // tasks for t in range(tasks)]
    names = (names or []) + [f"class {c}" for c in range(len(names or []), classes)]
    accuracy = [round(top - 4.0 * t, 2) for t in range(tasks)]
    later = [None, *accuracy[1:]]
    counts = rng.integers(20, 140, size=(3, seen[1] if tasks > 1 else 0))
    confusion = 9 * np.eye(classes, dtype=int)
    confusion[-1, 0] = 1  # one sample of the last class is taken for the first
    result = {
        "average_incremental_accuracy": float(np.mean(accuracy)),
        "last_accuracy": accuracy[-1],
        "accuracy_per_task": accuracy,
        "old_accuracy_per_task": later,
        "new_accuracy_per_task": [a - 1.0 for a in accuracy],
        "linear_accuracy_per_task": [a - 2.0 for a in accuracy],
        "accuracy_matrix": [
            [accuracy[t] - 3.0 * (t - j) if j <= t else None for j in range(tasks)] for t in range(tasks)
        ],
        "seen_classes_per_task": seen,
        "forgetting": forgetting,
        "confusion": confusion.tolist(),
        "class_names": names,
        "pseudo_label_accuracy_per_task": [96.5 - t for t in range(tasks)],
        "separation_old_recall_per_task": later if separates else [None] * tasks,
        "separation_new_recall_per_task": later if separates else [None] * tasks,
        "separation_accuracy_per_task": later if separates else [None] * tasks,
        "memory_purity_per_task": [97.25 - t for t in range(tasks)] if separates else [None] * tasks,
        "class_prior": {
            epoch: {"predicted": counts[i].tolist(), "true": counts[2].tolist()}
            for i, epoch in enumerate(("1", "2"))
            if tasks > 1
        },
        "seconds_per_epoch": 0.125,
        "samples_per_second": 12345.6,
        "peak_memory_bytes": 512 * 2**20,
        "wall_seconds": 3725.0,
        "preset": preset,
        "method": method,
        "seed": seed,
        "epochs": 30,
        "config": {
            "preset": preset,
            "method": method,
            "seed": seed,
            "data": {"source": preset},
            "stream": {"tasks": tasks, "blurry": 10.0, "q": 0.2, "candidates": "uniform", "flip_scope": "seen"},
            "train": {"epochs": 30, "lr": 0.05, "joint_views": True},
            "auxiliary": {"kinds": ["consistency"], "consistency": {"weight": 1.0}},
            **(settings or {}),
        },
        "environment": {"commit": "0123abcd+", "hardware": "Test Processor", "packages": {"torch": "2.13.0"}},
    }
    if recent:
        result |= {
            "pseudo_label_chance_per_task": [60.0] * tasks,
            "pseudo_label_first_accuracy_per_task": [90.0 - t for t in range(tasks)],
            "pseudo_label_to_right_per_task": [8.5] * tasks,
            "pseudo_label_to_wrong_per_task": [2.0] * tasks,
            "old_as_new_per_task": [None, *[1.5] * (tasks - 1)],
            "new_as_old_per_task": [None, *[0.5] * (tasks - 1)],
        }
    gallery = []
    for i in range(samples * tasks):
        task = i // samples
        truth = int(rng.integers(seen[task]))
        candidates = sorted({truth, *(c for c in range(seen[task]) if rng.random() < 0.3)})
        settled = candidates[0] if i % 3 == 0 else truth
        gallery.append(
            {
                "id": i,
                "task": task,
                "candidates": candidates,
                "settled": settled,
                "confidence": 0.876,
                "truth": truth,
                "judged_old": bool(i % 2) if separates and task else None,
            }
        )
    folder.mkdir(parents=True)
    images = rng.integers(0, 256, size=(len(gallery), *image), dtype=np.uint8)
    np.savez_compressed(folder / "gallery.npz", images=images, samples=np.array(json.dumps(gallery)))
    (folder / "result.json").write_text(json.dumps(result))
    return folder


class Page(HTMLParser):
    """What a browser would find: every element with its attributes, and the text that is neither style nor script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._stack: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attributes}))
        self._stack.append(tag)

    def handle_data(self, data: str) -> None:
        if self._stack[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._stack:
            while self._stack.pop() != tag:
                pass

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(tmp_path: Path, *runs: Path) -> tuple[str, Page]:
    out = tmp_path / "report.html"
    write_report(runs, out)
    html = out.read_text(encoding="utf-8")
    return html, Page(html)
