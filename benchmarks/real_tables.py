"""Real partial-label tables: ipll with what it chooses from the data beside plain baselines, on the same folds.

    python benchmarks/real_tables.py DATA.npz ... --out results/own/real_tables.json

A file holds `features` [n, d], `candidates` bool [n, classes] and `truth` [n], which is for scoring only.

    one-shot      five folds: four learnt from at once, the fifth predicted
    arrivals      the classes come in four groups, each with the samples of its classes: every update brings new classes
                  only. 'restricted': sets without classes that are yet to come; 'unrestricted': sets as they are.
                  'blurry': a tenth of the samples comes after its class. Baselines learn anew from all so far.
    misses        one-shot, with the true label taken out of the sets of a tenth or a fifth of the samples (a set that
                  would be empty has another label); ipll is told how many, and as if it were none
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from table_baselines import BASELINES, Floats, Learn, forest

from ipll.engine.device import cpu_threads, describe
from ipll.own import Model, Predictions, Samples, from_arrays
from ipll.own.prediction import calibration_error

PLAIN = {**BASELINES, "forest": forest}
ARRIVALS = 4
MISSES = (0.1, 0.2)
LATER = {"restricted": 0.0, "unrestricted": 0.0, "blurry": 0.1}
Ints = npt.NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--folds", type=int, default=5, help="of one-shot fits, out of five")
    parser.add_argument("--arrival-folds", type=int, default=5, help="of arrivals, out of five")
    parser.add_argument("--miss-folds", type=int, default=5, help="of misses, out of five")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--methods", nargs="+", default=[*PLAIN, "ipll"], choices=[*PLAIN, "ipll"], help="of one-shot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "command": " ".join(["python benchmarks/real_tables.py", *sys.argv[1:]]),
        "seed": options.seed,
        "runs": [],
    }
    with cpu_threads(options.threads):
        report["environment"] = describe(torch.device("cpu"))
        for way, path in product(options.ways, options.data):
            for run in WAYS[way](path, options):
                report["runs"].append(run)
                shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in run.items()}
                print(json.dumps(shown), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report["runs"]))


def folds(path: Path, seed: int, count: int) -> Iterator[Table]:
    with np.load(path) as file:
        features, sets = file["features"].astype(np.float32), file["candidates"].astype(bool)
        truth = file["truth"].astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(truth))
    for fold, test in enumerate(np.array_split(order, 5)[:count]):
        yield Table(path.stem, fold, features, sets, truth, np.setdiff1d(order, test), test, seed)


def one_shot(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row of measures for every method and fold."""
    for data in folds(path, options.seed, options.folds):
        sets = data.sets[data.train]
        for name in [name for name in PLAIN if name in options.methods]:
            yield data.row("one-shot", name) | data.baseline(PLAIN[name], data.train, sets, data.test)[0]
        if "ipll" in options.methods:
            yield data.row("one-shot", "ipll") | data.ours([(data.train, sets)])


def arrivals(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """And for every way in which classes come."""
    for data in folds(path, options.seed, options.arrival_folds):
        for way, later in LATER.items():
            yield from data.arrivals(way, later)


def misses(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for data in folds(path, options.seed, options.miss_folds):
        for share in MISSES:
            way, sets = f"misses {share:g}", data.missing(share)
            learn = BASELINES["PRODEN, linear"]
            yield data.row(way, "PRODEN, linear") | data.baseline(learn, data.train, sets, data.test)[0]
            yield data.row(way, "ipll") | data.ours([(data.train, sets)])
            told = {"disambiguation.miss_rate": share}
            yield data.row(way, "ipll, told") | data.ours([(data.train, sets)], settings=told)


WAYS = {"one-shot": one_shot, "misses": misses, "arrivals": arrivals}


class Table:
    """A fold of a data set."""

    def __init__(
        self, name: str, fold: int, features: Floats, sets: npt.NDArray[np.bool_], truth: Ints, train: Ints,
        test: Ints, seed: int,
    ) -> None:  # fmt: skip
        self.name, self.fold, self.features, self.sets, self.truth = name, fold, features, sets, truth
        self.train, self.test, self.seed = train, test, seed
        self.names = [str(c) for c in range(sets.shape[1])]

    def row(self, way: str, method: str) -> dict[str, Any]:
        return {"data": self.name, "fold": self.fold, "way": way, "method": method}

    def baseline(
        self, learn: Learn, rows: Ints, sets: npt.NDArray[np.bool_], test: Ints
    ) -> tuple[dict[str, Any], npt.NDArray[np.bool_]]:
        """-> its measures, and which labels it settled right."""
        started, spent = time.perf_counter(), time.process_time()
        x = self.features[rows]
        mean, spread = x.mean(0), x.std(0)
        spread = np.where(spread > 1e-7 * np.abs(x).max(0), spread, 1)
        predict, settled = learn(((x - mean) / spread).astype(np.float32), sets, self.seed)
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
        said = predict(((self.features[test] - mean) / spread).astype(np.float32))
        right = settled == self.truth[rows]
        return scores(said.max(1), said.argmax(1) == self.truth[test]) | {
            "settled": 100 * float(right.mean()), "seconds": seconds, "processor_seconds": spent,
        }, right  # fmt: skip

    def missing(self, share: float) -> npt.NDArray[np.bool_]:
        """-> the training samples' sets without the true label, for a share of them."""
        rng, truth, sets = np.random.default_rng([self.seed, self.fold]), self.truth[self.train], self.sets[self.train]
        missed = np.flatnonzero(rng.random(len(sets)) < share)
        sets[missed, truth[missed]] = False
        for row in missed[~sets[missed].any(1)]:
            sets[row, rng.choice(np.delete(np.arange(sets.shape[1]), truth[row]))] = True
        return sets

    def ours(
        self, batches: list[tuple[Ints, npt.NDArray[np.bool_]]], settings: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        model: Model | None = None
        seconds: list[tuple[float, float]] = []
        newest: list[float] = []
        new_only: list[float] = []
        for number, (rows, sets) in enumerate(batches):
            samples: Samples = from_arrays(self.features[rows], sets, self.names, [f"row {row}" for row in rows])
            started, spent = time.perf_counter(), time.process_time()
            model = (
                Model.fit(samples, seed=self.seed, device="cpu", settings=settings)
                if model is None
                else model.update(samples, device="cpu")
            )
            seconds.append((time.perf_counter() - started, time.process_time() - spent))
            here = model.records.update == model.updates
            if number:
                newest.append(100 * float(self._right(model)[here].mean()))
                new_only.append(100 * float(model.records.judged_old[here].mean()))
        assert model is not None
        right, sure = self._right(model), model.records.confidence >= 0.95
        said: Predictions = model.predict(from_arrays(self.features[self.test]), device="cpu")
        hit = np.array([int(label) for label in said.labels]) == self.truth[self.test]
        found = scores(said.confidence, hit) | {
            "settled": 100 * float(right.mean()),
            "seconds": float(np.mean(seconds, 0)[0]),
            "processor_seconds": float(np.mean(seconds, 0)[1]),
            "sure": 100 * float(sure.mean()),
            "wrong_among_sure": 100 * float((~right[sure]).mean()) if sure.any() else 0.0,
            "expected_wrong": 100 * float((1 - model.records.confidence).mean()),
            "unlike": 100 * float(said.unlike.mean()),
            "chosen": {setting: value for setting, value, _ in model.choices() if setting in CHOSEN},
        }
        if settings and "disambiguation.miss_rate" in settings:
            found |= self._moves(model, batches[0][1], right)
        if newest:
            found |= {"settled_in_updates": float(np.mean(newest)), "judged_old": float(np.mean(new_only))}
        return found

    def _moves(self, model: Model, sets: npt.NDArray[np.bool_], right: npt.NDArray[np.bool_]) -> dict[str, float]:
        """-> what became of labels that the sets had missed."""
        every = np.arange(len(sets))
        missed = ~sets[every, self.truth[self.train]]
        outside = ~sets[every, np.array(model.records.labels(model.names)).astype(int)]
        return {
            "found": 100 * float(right[missed].mean()),
            "moves": int(outside.sum()),
            "moves_right": 100 * float(right[outside].mean()) if outside.any() else 0.0,
        }

    def _right(self, model: Model) -> npt.NDArray[np.bool_]:
        rows = np.array([int(name.partition(" ")[2]) for name in model.records.ids])
        right: npt.NDArray[np.bool_] = np.array(model.records.labels(model.names)).astype(int) == self.truth[rows]
        return right

    def arrivals(self, way: str, later: float) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng([self.seed, self.fold])
        born = np.zeros(len(self.names), np.int64)
        for group, classes in enumerate(np.array_split(rng.permutation(len(self.names)), ARRIVALS)):
            born[classes] = group
        when = born[self.truth[self.train]]
        late = rng.random(len(when)) < later
        when = np.where(late, np.minimum(when + rng.integers(1, ARRIVALS, len(when)), ARRIVALS - 1), when)
        batches = []
        for group in range(ARRIVALS):
            rows = self.train[when == group]
            sets = self.sets[rows] & (born <= group) if way != "unrestricted" else self.sets[rows]
            batches.append((rows, sets))
        everything = np.concatenate([rows for rows, _ in batches]), np.concatenate([sets for _, sets in batches])
        for name in ("PRODEN, linear", "PRODEN, one hidden layer"):
            yield self.row(way, f"{name}, all at once") | self.baseline(BASELINES[name], *everything, self.test)[0]
        yield self.row(way, "ipll") | self.ours(batches)


CHOSEN = (
    "augment.drop", "model.inputs", "model.leave_out", "disambiguation.prior", "train.epochs", "train.batch_size",
)  # fmt: skip


def scores(confidence: npt.NDArray[np.float32], right: npt.NDArray[np.bool_]) -> dict[str, float]:
    return {"accuracy": 100 * float(right.mean()), "calibration_error": 100 * calibration_error(confidence, right)}


def summary(runs: list[dict[str, Any]]) -> str:
    """-> the means over folds as a table in Markdown."""
    columns = (
        "accuracy", "settled", "calibration_error", "seconds", "processor_seconds", "sure", "wrong_among_sure",
        "expected_wrong", "settled_in_updates", "judged_old", "unlike", "found",
        "moves_right",
    )  # fmt: skip
    lines = ["| data | way | method | folds | " + " | ".join(name.replace("_", " ") for name in columns) + " |"]
    lines.append("|" + "---|" * (len(columns) + 4))
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["data"], run["way"], run["method"]), []).append(run)
    for names, rows in groups.items():
        cells = [f"{np.mean([row[key] for row in rows]):.1f}" if key in rows[0] else "-" for key in columns]
        lines.append(f"| {' | '.join(names)} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
