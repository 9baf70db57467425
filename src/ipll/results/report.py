"""The report: one HTML file over one or more finished runs. It needs no network, no script and no other file."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from ipll.engine.files import write_text
from ipll.errors import RunError
from ipll.method import method_table
from ipll.results import charts
from ipll.results.folder import read_result

PER_TASK = {
    "all classes": "accuracy_per_task",
    "old classes": "old_accuracy_per_task",
    "new classes": "new_accuracy_per_task",
    "linear head": "linear_accuracy_per_task",
    "pseudo-labels": "pseudo_label_accuracy_per_task",
    "old recall": "separation_old_recall_per_task",
    "new recall": "separation_new_recall_per_task",
    "separation": "separation_accuracy_per_task",
    "memory purity": "memory_purity_per_task",
}
NEEDED = (
    *PER_TASK.values(), "average_incremental_accuracy", "last_accuracy", "forgetting", "accuracy_matrix", "class_names",
    "seen_classes_per_task", "class_prior", "seconds_per_epoch", "samples_per_second", "peak_memory_bytes",
    "wall_seconds", "preset", "method", "seed", "epochs", "config", "environment",
)  # fmt: skip
CHIPS = 14  # candidates shown of a sample; the rest is counted
IMAGE = 64  # px: larger images are shrunk, so that the file stays small
NONE = "–"

Row = tuple[str, list[str]]  # a label and one cell per run


@dataclass(frozen=True)
class Run:
    """A finished run, with the name it goes by in this report and the number that picks its colour."""

    folder: Path
    number: int
    name: str
    result: dict[str, Any]
    gallery: list[dict[str, Any]]  # by task
    meaning: str  # of the method, in words

    @property
    def swatch(self) -> str:
        return charts.swatch(self.number)


def write_report(runs: Sequence[Path], out: Path, results: Sequence[dict[str, Any]] | None = None) -> None:
    """Writes one page that shows finished runs, side by side if there are several.

    `results` are read from the folders unless they are given, as they are for a run that is about to finish.
    """
    if not runs:
        raise RunError("a report needs at least one run: name the folder of a finished run.")
    page = render([Path(run) for run in runs], results)
    write_text(out, page.encode("utf-8", "replace").decode("utf-8"))  # folder names need not be valid Unicode


def render(folders: Sequence[Path], results: Sequence[dict[str, Any]] | None = None) -> str:
    """-> the page's HTML."""
    results = results or [_read(folder) for folder in folders]
    methods = method_table()
    runs = [
        Run(folder, i, name, result, _gallery(folder, result), methods.get(result["method"], {}).get("doc", ""))
        for i, (folder, name, result) in enumerate(zip(folders, _names(folders, results), results, strict=True))
    ]
    settings = _by_run([_flat(result["config"]) for result in results])
    environment = Environment(
        loader=PackageLoader("ipll.results"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["percent"] = _percent
    return environment.get_template("report.html.j2").render(
        runs=runs,
        sentences=_sentences(runs),
        comparable=len({json.dumps(_data(result), sort_keys=True) for result in results}) == 1,
        accuracy=_accuracy_charts(runs),
        disambiguation=_disambiguation_charts(runs),
        comparison=_comparison(runs),
        per_task=PER_TASK,
        matrices=[
            charts.heat_map(run.result["accuracy_matrix"], title=f"Accuracy matrix of {run.name}") for run in runs
        ],
        priors=[(run, _prior_charts(run)) for run in runs if run.result["class_prior"]],
        differing=[row for row in settings if len(set(row[1])) > 1],
        settings=settings,
        environment=_by_run([_flat(result["environment"]) for result in results]),
        timings=_timings(results),
    )


def _read(folder: Path) -> dict[str, Any]:
    result = read_result(folder)
    missing = [name for name in NEEDED if name not in result]
    if missing:
        raise RunError(f"{folder / 'result.json'}: '{missing[0]}' is missing. Run it again with --overwrite.")
    return result


def _names(folders: Sequence[Path], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The shortest names that tell the runs apart: method, then preset, seed and folder where they are needed."""
    rows = [
        (str(r["method"]), f"on {r['preset']}", f"seed {r['seed']}", folder.resolve().name, f"({i + 1})")
        for i, (folder, r) in enumerate(zip(folders, results, strict=True))
    ]
    telling = [c for c in range(1, 4) if len({row[c] for row in rows}) > 1]
    names = [row[0] for row in rows]
    for column in (*telling, 4):
        if len(set(names)) == len(names):
            break
        names = [f"{name} {row[column]}" for name, row in zip(names, rows, strict=True)]
    return names


def _data(result: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the stream: runs that agree in it have learnt from the same samples and candidates."""
    config = result["config"]
    return {"data": config["data"], "stream": config["stream"], "seed": result["seed"]}


def _sentences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What was done, in words, and the names of the runs that it holds for."""
    sentences: dict[str, list[str]] = {}
    for run in runs:
        sentences.setdefault(_sentence(run.result), []).append(run.name)
    return sentences


def _sentence(result: Mapping[str, Any]) -> str:
    stream, tasks = result["config"]["stream"], len(result["accuracy_per_task"])
    others = "class of its superclass" if stream["flip_scope"] == "superclass" else "class"
    flips = {
        "uniform": f"each other {others} seen so far joins it with probability q = {stream['q']:g}",
        "banded": "each of the five classes that arrived just before it joins with a probability from 0.5 to 0.1",
    }.get(stream["candidates"], f"others join it by the rule “{stream['candidates']}” with q = {stream['q']:g}")
    late = "that part of each class arrives only after its own task" if stream["blurry"] else "no class arrives late"
    return (
        f"{len(result['class_names'])} classes of {result['config']['data']['source']} arrive in "
        f"{tasks} {'tasks' if tasks > 1 else 'task'}, {result['epochs']} epochs each. "
        f"A sample comes with a set of candidate labels instead of its true one: the true label is in it, and {flips}. "
        f"The blurry share is {stream['blurry']:g} %: {late}."
    )


def _chart(runs: Sequence[Run], key: str, title: str, **options: Any) -> str | None:
    """The runs' lines of one metric; None where no run has it."""
    series = [charts.Series(run.name, run.result[key], run.number) for run in runs]
    if all(value is None for line in series for value in line.values):
        return None
    return charts.line_chart(series, title=title, **options)


def _ticks(runs: Sequence[Run], *keys: str) -> range:
    return charts.percent_ticks(value for run in runs for key in keys for value in run.result[key])


def _accuracy_charts(runs: Sequence[Run]) -> dict[str, str | None]:
    key, title, unit = "accuracy_per_task", "Accuracy on all classes seen so far, after each task", "accuracy, %"
    every = {"ticks": _ticks(runs, key), "unit": unit}
    parts = {"ticks": _ticks(runs, "old_accuracy_per_task", "new_accuracy_per_task"), "unit": unit}
    return {
        "wide": _chart(runs, key, title, width=912, height=360, kind="wide", end_labels=len(runs) > 1, **every),
        "narrow": _chart(runs, key, title, width=340, height=290, kind="narrow", **every),
        "old": _chart(runs, "old_accuracy_per_task", "Accuracy on classes of earlier tasks", **parts),
        "new": _chart(runs, "new_accuracy_per_task", "Accuracy on the task's own new classes", **parts),
    }


def _disambiguation_charts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One chart a metric, on one scale, with the runs that do not have it."""
    metrics = {
        "Pseudo-label accuracy": ("pseudo_label_accuracy_per_task", "the task's samples whose settled label is true"),
        "Memory purity": ("memory_purity_per_task", "the kept samples whose settled label is true"),
        "Old recall": ("separation_old_recall_per_task", "the task's samples of old classes that were judged old"),
        "New recall": ("separation_new_recall_per_task", "the task's samples of new classes that were judged new"),
    }
    ticks = _ticks(runs, *(key for key, _ in metrics.values()))
    return [
        {
            "title": title,
            "meaning": meaning,
            "chart": _chart(runs, key, title, unit="share, %", ticks=ticks),
            "without": [run.name for run in runs if all(value is None for value in run.result[key])],
        }
        for title, (key, meaning) in metrics.items()
    ]


def _comparison(runs: Sequence[Run]) -> list[tuple[Run, list[tuple[str, bool]]]]:
    """Accuracy after each task, then average, last and forgetting: a row a run, (cell, best of its column)."""
    tasks = max(len(run.result["accuracy_per_task"]) for run in runs)
    rows = []
    for run in runs:
        values = list(run.result["accuracy_per_task"])
        summary = [run.result[key] for key in ("average_incremental_accuracy", "last_accuracy", "forgetting")]
        rows.append([*values, *[None] * (tasks - len(values)), *summary])
    best = [max((v for v in column if v is not None), default=None) for column in zip(*rows, strict=True)]
    best[-1] = min(row[-1] for row in rows)
    marked = [[(_percent(v), v is not None and v == b) for v, b in zip(row, best, strict=True)] for row in rows]
    return list(zip(runs, marked, strict=True))


def _prior_charts(run: Run) -> list[tuple[str, str]]:
    """(epoch, chart) of the second task's predicted and true class counts, all on one scale."""
    prior, seen = run.result["class_prior"], run.result["seen_classes_per_task"]
    most = max(max(counts["predicted"] + counts["true"], default=0) for counts in prior.values())
    return [
        (
            epoch,
            charts.prior_chart(
                run.result["class_names"][: len(counts["true"])], counts["predicted"], counts["true"], old=seen[0],
                title=f"{run.name}: class prior after epoch {epoch} of task 2", most=most,
            ),
        )
        for epoch, counts in sorted(prior.items(), key=lambda item: int(item[0]))
    ]  # fmt: skip


def _gallery(folder: Path, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The gallery by task; empty where the run has none."""
    path = folder / "gallery.npz"
    if not path.exists():
        return []
    try:
        with np.load(path, allow_pickle=False) as file:
            images, samples = file["images"], json.loads(str(file["samples"]))
        cards = [_card(sample, image, result) for sample, image in zip(samples, images, strict=True)]
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: damaged ({error}). Remove it for a report without a gallery.") from None
    return [
        {
            "task": task + 1,
            "accuracy": accuracy,
            "cards": (own := [card for card in cards if card["task"] == task]),
            "wrong": sum(not card["right"] for card in own),
        }
        for task, accuracy in enumerate(result["pseudo_label_accuracy_per_task"])
        if any(card["task"] == task for card in cards)
    ]


def _card(sample: Mapping[str, Any], image: npt.NDArray[np.uint8], result: Mapping[str, Any]) -> dict[str, Any]:
    names, task, settled, truth = result["class_names"], sample["task"], sample["settled"], sample["truth"]
    old = result["seen_classes_per_task"][task - 1] if task else 0
    telling = sorted(sample["candidates"], key=lambda c: (c not in (settled, truth), c))[:CHIPS]
    return {
        "task": task,
        "id": sample["id"],
        "image": _data_uri(image),
        "right": settled == truth,
        "settled": names[settled],
        "truth": names[truth],
        "confidence": f"{100 * sample['confidence']:.0f}",
        "chips": [(names[c], c == settled, c == truth) for c in sorted(telling)],
        "more": len(sample["candidates"]) - len(telling),
        "judged": {None: "", True: "old", False: "new"}[sample["judged_old"]],
        "born": "old" if truth < old else "new",
    }


def _data_uri(image: npt.NDArray[np.uint8]) -> str:
    """[channels, height, width] -> a PNG data URI; one channel (or an odd number of them) is drawn in grey."""
    picture = Image.fromarray(image.transpose(1, 2, 0) if len(image) == 3 else image[0])
    picture.thumbnail((IMAGE, IMAGE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Nested tables -> {'a.b': 'value'}, values as a user would write them."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{path}{key}.")
        elif value is None:
            flat[path + key] = NONE
        else:
            flat[path + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _by_run(tables: Sequence[Mapping[str, str]]) -> list[Row]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, [table.get(key, NONE) for table in tables]) for key in keys]


def _timings(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        ("whole run", [_duration(r["wall_seconds"]) for r in results]),
        ("an epoch", [f"{r['seconds_per_epoch']:.3g} s" for r in results]),
        ("training samples a second", [f"{r['samples_per_second']:,.0f}" for r in results]),
        ("peak memory", [f"{r['peak_memory_bytes'] / 2**20:,.0f} MiB" for r in results]),
        ("hardware", [str(r["environment"].get("hardware", NONE)) for r in results]),
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"
