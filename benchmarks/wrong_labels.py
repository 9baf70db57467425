"""Ordinary tables, one label a row, of which some are wrong: does `ipll fit` notice, does its audit list them first?

    python benchmarks/wrong_labels.py --out wrong_labels.json
    python benchmarks/wrong_labels.py DATA.npz ... TABLE.dat ... --out wrong_labels.json

A share of the labels is changed: at random, or to the class whose mean is nearest, as people mistake things. Files are
those of real_tables.py (.npz, their true labels) or many_tables.py; without any, scikit-learn's tables.

Plain ways: what an afternoon brings. Predictions of five folds by logistic regression or by a forest; rows are doubtful
by how improbable their label is. Measures, in percent: wrong among the first rows, as many as are wrong ('found'); the
mean of that over all lengths at which a wrong one comes ('average precision'); of ours, the estimated share, and how
many of those called sure are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from many_tables import read
from real_tables import Floats, Ints
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ipll.engine.device import cpu_threads, describe
from ipll.own import Model, from_arrays

BUNDLED = ("iris", "wine", "breast_cancer", "digits")
WAYS = ("random", "nearest")
PLAIN: dict[str, Callable[[int], Any]] = {
    "logistic regression": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "forest": lambda seed: RandomForestClassifier(200, random_state=seed),
}


def tables(paths: list[Path], rows: int, seed: int) -> Iterator[tuple[str, Floats, Ints]]:
    for name in () if paths else BUNDLED:
        data = getattr(datasets, f"load_{name}")()
        yield name, data.data.astype(np.float32), data.target.astype(np.int64)
    for path in paths:
        if path.suffix == ".npz":
            with np.load(path) as file:
                features, truth = file["features"].astype(np.float32), file["truth"].astype(np.int64)
        else:
            features, truth = read(path, rows, seed)
        kept = np.bincount(truth)[truth] >= 10  # five folds need some of each
        yield path.stem, features[kept], np.unique(truth[kept], return_inverse=True)[1]


def spoilt(features: Floats, truth: Ints, share: float, way: str, seed: int) -> Ints:
    """-> labels, a share of which is wrong."""
    rng, classes = np.random.default_rng([seed, 5]), int(truth.max()) + 1
    if way == "random":
        other = (truth + rng.integers(1, classes, len(truth))) % classes
    else:
        z = (features - features.mean(0)) / np.maximum(features.std(0), 1e-6)
        means = np.stack([z[truth == c].mean(0) for c in range(classes)])
        apart = np.linalg.norm(means[:, None] - means[None], axis=2) + np.diag([np.inf] * classes)
        other = apart.argmin(1)[truth]
    return np.where(rng.random(len(truth)) < share, other, truth)


def measures(doubt: Floats, wrong: Any) -> dict[str, float]:
    if not wrong.any():
        return {}
    first = np.argsort(-doubt, kind="stable")[: wrong.sum()]
    return {
        "found": 100 * float(wrong[first].mean()),
        "average_precision": 100 * float(average_precision_score(wrong, doubt)),
    }


def plain(name: str, features: Floats, labels: Ints, seed: int) -> Floats:
    """-> how improbable each label is."""
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    said = cross_val_predict(PLAIN[name](seed), features, labels, cv=folds, method="predict_proba")
    return np.asarray(1 - said[np.arange(len(labels)), labels], np.float32)


def ours(features: Floats, labels: Ints, wrong: Any, seed: int) -> dict[str, float]:
    model = Model.fit(from_arrays(features, [[str(label)] for label in labels]), seed=seed, device="cpu")
    confidence = model.records.confidence
    sure = confidence >= 0.95
    return measures(1 - confidence, wrong) | {
        "told": 100 * model.missed, "expected_wrong": 100 * float((1 - confidence).mean()),
        "sure": 100 * float(sure.mean()), "wrong_among_sure": 100 * float(wrong[sure].mean()) if sure.any() else 0.0,
    }  # fmt: skip


def runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, features, truth in tables(options.data, options.rows, options.seed):
        for share, way in [(0.0, "none"), *((share, way) for share in options.shares for way in WAYS)]:
            labels = spoilt(features, truth, share, way, options.seed)
            wrong = labels != truth
            row = {"data": name, "rows": len(truth), "classes": int(truth.max()) + 1, "way": way, "share": share}
            started = time.perf_counter()
            yield row | {"method": "ipll"} | ours(features, labels, wrong, options.seed) | {
                "seconds": time.perf_counter() - started, "wrong": 100 * float(wrong.mean())
            }  # fmt: skip
            for method in PLAIN if wrong.any() else ():
                started = time.perf_counter()
                found = measures(plain(method, features, labels, options.seed), wrong)
                yield row | {"method": method} | found | {"seconds": time.perf_counter() - started}


def summary(rows: list[dict[str, Any]]) -> str:
    columns = ("found", "average_precision", "wrong", "told", "expected_wrong", "sure", "wrong_among_sure", "seconds")
    lines = [f"| way | share | method | tables | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 4)]
    for way, share, method in dict.fromkeys((row["way"], row["share"], row["method"]) for row in rows):
        these = [row for row in rows if (row["way"], row["share"], row["method"]) == (way, share, method)]
        cells = [f"{np.nanmean([row[key] for row in these]):.1f}" if key in these[0] else "-" for key in columns]
        lines.append(f"| {way} | {share} | {method} | {len(these)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.05, 0.1])
    parser.add_argument("--rows", type=int, default=2_000, help="of many_tables.py's files, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"command": " ".join(["python benchmarks/wrong_labels.py", *sys.argv[1:]]), "runs": []}
    with cpu_threads(options.threads):
        report["environment"] = describe(torch.device("cpu"))
        for run in runs(options):
            report["runs"].append(run)
            print(json.dumps({k: round(v, 1) if isinstance(v, float) and k != "share" else v for k, v in run.items()}))
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report["runs"]))


if __name__ == "__main__":
    main()
