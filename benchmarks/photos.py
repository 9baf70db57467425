"""Photos of similar kinds, learnt from candidate sets: through a pretrained network, from scratch, and by baselines.

    python benchmarks/photos.py FOLDER --out results/own/photos.json

FOLDER holds a folder of photos for each class, called e.g. 014.Indigo_Bunting (CUB-200-2011 does). Kinds that share the
last word of their name are similar. A draw takes 20 classes, of at least two of a kind each, ten for a fit and ten for
an update, and ten more that are never learnt. Each photo's candidates are its own class, similar ones by 50 %, others
by 5 %, of those that are there by then. A quarter of the photos is for testing only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from real_tables import scores
from table_baselines import Floats, proden

from ipll.engine.device import cpu_threads, describe
from ipll.networks.photos import LITE0, find_network
from ipll.own import Model, Samples
from ipll.own.embedding import embed
from ipll.own.reading.images import image_files
from ipll.progress import Silent

EACH = 10  # classes of a fit, of an update, and never learnt
SIMILAR, OTHER = 0.5, 0.05
PARTS = ("baselines", "network", "scratch")
Bools = npt.NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--scratch", type=int, nargs="*", default=[0], help="draws that are learnt from scratch, too")
    parser.add_argument("--set", dest="settings", nargs="*", default=[], help="settings of what learns from scratch")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the rest of FILE stays as it is")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    report: dict[str, Any] = {"commands": [], "runs": []}
    if options.out and options.out.exists():
        report = json.loads(options.out.read_text())
    command = " ".join(["python benchmarks/photos.py", *sys.argv[1:]])
    with cpu_threads(options.threads), tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # what was embedded before would be found, and not be timed
        report["commands"].append({"command": command, "environment": describe(torch.device("cpu"))})
        for draw in options.draws:
            for run in Draw(options.folder, draw).runs(options):
                others = [other for other in report["runs"] if key_of(other) != (draw, *key_of(run)[1:])]
                report["runs"] = [*others, {"draw": draw, "command": len(report["commands"]) - 1, **run}]
                shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in run.items()}
                print(json.dumps(shown), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report["runs"]))


def key_of(run: dict[str, Any]) -> tuple[Any, ...]:
    return run.get("draw"), run["method"], run.get("classes")


class Draw:
    """Some classes of a folder, their photos, and candidate sets."""

    def __init__(self, folder: Path, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        kinds: dict[str, list[str]] = defaultdict(list)
        for name in sorted(path.name for path in folder.iterdir() if path.is_dir()):
            kinds[name.split(".")[-1].split("_")[-1]].append(name)
        words = [word for word in rng.permutation(sorted(kinds)).tolist() if len(kinds[word]) > 1]
        pairs = [rng.permutation(kinds[word])[:4].tolist() for word in words]
        self.names = [name for group in pairs for name in group][: 3 * EACH]
        paths = [sorted(map(str, (folder / name).iterdir())) for name in self.names]
        self.paths = [path for group in paths for path in group]
        self.truth = np.repeat(np.arange(len(paths)), [len(group) for group in paths])
        self.test = rng.random(len(self.truth)) < 0.25
        kind = np.array([name.split("_")[-1] for name in self.names])
        chance = np.where(kind[:, None] == kind, SIMILAR, OTHER)
        np.fill_diagonal(chance, 1)
        self.sets = rng.random((len(self.truth), len(kind))) < chance[self.truth]
        self.sets[self.truth < EACH, EACH:] = False  # nobody knew of them then
        self.seed = seed

    def rows(self, first: int, last: int, *, test: bool) -> npt.NDArray[np.int64]:
        return np.flatnonzero((self.truth >= first) & (self.truth < last) & (self.test == test))

    def samples(self, rows: npt.NDArray[np.int64], seen: int) -> Samples:
        images, broken = image_files([self.paths[row] for row in rows])
        assert not broken
        return Samples(
            source="photos", ids=[f"photo {row}" for row in rows], rows=rows, names=tuple(self.names[:seen]),
            candidates=self.sets[rows][:, :seen], labels=self.truth[rows], label_names=[""] * len(rows), images=images,
        )  # fmt: skip

    def runs(self, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
        if "baselines" in options.only:
            yield from self.baselines()
        if "network" in options.only:
            yield from self.ours("through the network", LITE0, {})
        if "scratch" in options.only and self.seed in options.scratch:
            settings = dict(pair.split("=", 1) for pair in options.settings)
            yield from self.ours("from scratch", "scratch", {key: json.loads(text) for key, text in settings.items()})

    def baselines(self) -> Iterator[dict[str, Any]]:
        """On the embeddings, of all classes at once."""
        network, cpu = find_network(LITE0), torch.device("cpu")
        images, _ = image_files(self.paths)
        started = Clock()
        values, _ = embed(images, network, cpu, Silent())
        spent = {key: 1000 * seconds / len(values) for key, seconds in started.spent().items()}
        yield {"method": "embedding", "photos": len(values), "milliseconds_per_photo": spent}
        for classes in (EACH, 2 * EACH):
            train, test = (self.rows(0, classes, test=flag) for flag in (False, True))
            told = np.eye(len(self.names), dtype=bool)[self.truth][:, :classes]
            for name, sets in (("PRODEN, linear", self.sets[:, :classes]), ("linear, true labels", told)):
                yield {"method": name, "classes": classes} | self.baseline(values, sets, train, test)

    def baseline(
        self, values: Floats, sets: Bools, train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        started = Clock()
        mean, spread = values[train].mean(0), values[train].std(0) + 1e-6
        learn = proden(0, 1e-2)  # on sets of one label it is logistic regression
        predict, settled = learn((values[train] - mean) / spread, sets[train], self.seed)
        said = predict((values[test] - mean) / spread)
        return scores(said.max(1), said.argmax(1) == self.truth[test]) | {
            "settled": 100 * float((settled == self.truth[train]).mean()), **started.spent(),
        }  # fmt: skip

    def ours(self, method: str, network: str, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
        model: Model | None = None
        for first in (0, EACH):
            classes, rows = first + EACH, self.rows(first, first + EACH, test=False)
            samples = self.samples(rows, classes)
            started = Clock()
            if model is None:
                model = Model.fit(samples, network=network, settings=settings, seed=self.seed, device="cpu")
            else:
                model = model.update(samples, device="cpu")
            spent = started.spent()
            test, unknown = self.rows(0, classes, test=True), self.rows(classes, 3 * EACH, test=True)
            said = model.predict(self.samples(test, classes), device="cpu")
            names = np.array(self.names)
            right = names[self.truth[[int(name.split()[1]) for name in model.records.ids]]] == np.array(
                model.records.labels(model.names)
            )
            sure, here = model.records.confidence >= 0.95, model.records.update == model.updates
            yield (
                {"method": method, "classes": classes}
                | scores(said.confidence, np.array(said.labels) == names[self.truth[test]])
                | {
                    "settled": 100 * float(right.mean()),
                    "settled_in_update": 100 * float(right[here].mean()),
                    **spent,
                    "sure": 100 * float(sure.mean()),
                    "wrong_among_sure": 100 * float((~right[sure]).mean()) if sure.any() else 0.0,
                    "expected_wrong": 100 * float((1 - model.records.confidence).mean()),
                    "judged_old": 100 * float(model.records.judged_old[here].mean()),
                    "unlike_known": 100 * float(said.unlike.mean()),
                    "unlike_unknown": 100
                    * float(model.predict(self.samples(unknown, 3 * EACH), device="cpu").unlike.mean()),
                    "chosen": {setting: value for setting, value, _ in model.choices()},
                }
            )


class Clock:
    """By the clock on the wall, and of the processor: of all cores, whatever else they do."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def spent(self) -> dict[str, float]:
        wall, processor = time.perf_counter() - self.wall, time.process_time() - self.processor
        return {"seconds": wall, "processor_seconds": processor}


def summary(runs: list[dict[str, Any]]) -> str:
    """-> the means over draws as a table in Markdown."""
    columns = (
        "accuracy", "settled", "calibration_error", "seconds", "processor_seconds", "sure", "wrong_among_sure",
        "expected_wrong", "settled_in_update", "judged_old", "unlike_known", "unlike_unknown",
    )  # fmt: skip
    lines = ["| classes | method | draws | " + " | ".join(name.replace("_", " ") for name in columns) + " |"]
    lines.append("|" + "---|" * (len(columns) + 3))
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for run in runs:
        if "classes" in run:
            groups.setdefault((run["classes"], run["method"]), []).append(run)
    for (classes, method), rows in sorted(groups.items()):
        cells = [f"{np.mean([row[key] for row in rows]):.1f}" if key in rows[0] else "-" for key in columns]
        lines.append(f"| {classes} | {method} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
