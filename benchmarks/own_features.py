"""People's own feature tables: one fit and four updates with the settings that are chosen from the data.

    python benchmarks/own_features.py --out own_features.json

Five batches bring ten new classes each (digits: two), nine tenths of a class when it is new, the rest later. Every
class seen so far joins a candidate set with probability q. Accuracies are of a test set of its own, over all classes
seen.

    blobs            50,000 samples, 20 features, 50 classes: Gaussian balls that overlap (scikit-learn's make_blobs)
    classification   the same size: several clusters per class, useless and redundant features (make_classification)
    digits           1,347 samples, 64 features, 10 classes: scikit-learn's digits, pixels as features

With --samples, the first two are smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits, make_blobs, make_classification
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ipll.config import parse_overrides
from ipll.engine.device import cpu_threads, describe
from ipll.own import Model, Samples, evaluate, from_arrays

TASKS, LATER = 5, 0.1
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Data(NamedTuple):
    train: tuple[Floats, Ints]
    test: tuple[Floats, Ints]
    classes: int


def load(name: str, samples: int, seed: int) -> Data:
    n, classes = samples * 6 // 5, 50
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        n, classes = len(X), 10
    elif name == "blobs":
        X, y = make_blobs(n, n_features=20, centers=classes, cluster_std=4.0, random_state=seed)
    else:
        X, y = make_classification(
            n, n_features=20, n_informative=12, n_redundant=4, n_classes=classes, n_clusters_per_class=2,
            class_sep=2.0, flip_y=0.0, random_state=seed,
        )  # fmt: skip
    order = np.random.default_rng(seed).permutation(n)
    X, y = X[order].astype(np.float32), y[order].astype(np.int64)
    cut = n * 3 // 4 if name == "digits" else samples
    return Data((X[:cut], y[:cut]), (X[cut:], y[cut:]), classes)


def batches(data: Data, q: float, seed: int) -> list[tuple[Samples, Ints]]:
    """-> for each batch its samples and their true labels."""
    rng = np.random.default_rng(seed)
    X, y = data.train
    each = data.classes // TASKS
    born = y // each
    late = (rng.random(len(y)) < LATER) & (born < TASKS - 1)
    when = np.where(late, rng.integers(np.minimum(born + 1, TASKS - 1), TASKS), born)
    found = []
    for t in range(TASKS):
        rows = np.flatnonzero(when == t)
        sets = rng.random((len(rows), (t + 1) * each)) < q
        sets[np.arange(len(rows)), y[rows]] = True
        names = [str(c) for c in range((t + 1) * each)]
        found.append((from_arrays(X[rows], sets, names), y[rows]))
    return found


def measure(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    data = load(name, options.samples, seed)
    settings = parse_overrides(options.set)
    model: Model | None = None
    rows: list[dict[str, float]] = []
    X, y = data.test
    for t, (samples, truth) in enumerate(batches(data, options.q, seed)):
        started, spent = time.perf_counter(), time.process_time()
        if model is None:
            model = Model.fit(samples, method=options.method, seed=seed, device="cpu", settings=settings)
        else:
            model = model.update(samples, device="cpu")
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
        seen = y < (t + 1) * (data.classes // TASKS)
        test = replace(from_arrays(X[seen]), label_names=[str(label) for label in y[seen]])
        predictions = model.predict(test, device="cpu")
        found = evaluate(predictions, test)
        here = model.records.update == model.updates
        settled = np.array(model.records.labels(model.names))[here].astype(int)
        rows.append(
            {
                "samples": len(samples),
                "epochs": model.config.train.epochs,
                "batch_size": model.config.train.batch_size,
                "seconds": seconds,
                "processor_seconds": spent,
                "accuracy": found.accuracy,
                "calibration_error": found.calibration_error,
                "unlike": found.unlike / found.samples,
                "settled_right": float((settled == truth).mean()),
                "temperature": model.temperature,
            }
        )
    teacher = make_pipeline(StandardScaler(), MLPClassifier((256, 256), early_stopping=True, random_state=seed))
    supervised = teacher.fit(*data.train).score(*data.test) if options.supervised else None
    totals = {key: sum(row[key] for row in rows) for key in ("seconds", "processor_seconds")}
    return {"data": name, "seed": seed, **totals, "supervised_accuracy": supervised, "updates": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=["blobs", "classification", "digits"])
    parser.add_argument("--method", default="pgdr")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--q", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--supervised", action="store_true", help="beside it, an MLP that is given all true labels")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"command": " ".join(sys.argv), "q": options.q, "runs": []}
    print(f"{'':16}{'seed':>5}{'s':>8}{'CPU s':>8}  accuracy after each batch (calibration error; settled right)")
    with cpu_threads(options.threads):
        report["environment"] = describe(torch.device("cpu"))
        for name in options.data:
            for seed in range(options.seeds):
                run = measure(name, options, seed)
                report["runs"].append(run)
                cells = (
                    f"{100 * row['accuracy']:.1f} ({row['calibration_error']:.3f}; {100 * row['settled_right']:.1f})"
                    for row in run["updates"]
                )
                times = f"{run['seconds']:8.1f}{run['processor_seconds']:8.1f}"
                print(f"{name:16}{seed:5}{times}  {'  '.join(cells)}", flush=True)
                if run["supervised_accuracy"] is not None:
                    print(f"{'':37}  {100 * run['supervised_accuracy']:.1f} with all true labels at once")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
