"""Votes of simulated annotators on scikit-learn's tables: ipll beside learners of the majority's labels.

    python benchmarks/votes.py --out results/own/votes.json

    five    five annotators, right by 80, 80, 75, 70 and 70 %
    lazy    three, right by 85, 80 and 75 %, and one who says the first class of every sample
    wrong   four, right by 85, 80, 80 and 75 %, and one who is never right
    crowd   twelve, right by 65 %

A tenth of the votes is missing. 60 % of a table, at most 200 rows, are learnt from; the rest is for testing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ipll.engine.device import describe, find_device
from ipll.own import Model, from_arrays

TABLES = {"iris": load_iris, "wine": load_wine, "cancer": load_breast_cancer, "digits": load_digits}
PEOPLE: dict[str, tuple[float | None, ...]] = {  # how often each is right; None: says the first class
    "five": (0.8, 0.8, 0.75, 0.7, 0.7),
    "lazy": (0.85, 0.8, 0.75, None),
    "wrong": (0.85, 0.8, 0.8, 0.75, 0.0),
    "crowd": (0.65,) * 12,
}


def cast(truth: Any, classes: int, people: tuple[float | None, ...], rng: np.random.Generator) -> Any:
    """-> the votes of each sample for each class [n, classes]."""
    votes = np.zeros((len(truth), classes), np.float32)
    for right in people:
        false = (truth + rng.integers(1, classes, len(truth))) % classes
        said = np.zeros_like(truth) if right is None else np.where(rng.random(len(truth)) < right, truth, false)
        votes[np.arange(len(truth)), said] += (rng.random(len(truth)) > 0.1) | (right is None)
    votes[votes.sum(1) == 0, 0] = 1
    return votes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for table, people in ((table, people) for table in TABLES for people in PEOPLE):
        x, y = TABLES[table](return_X_y=True)
        for seed in options.seeds:
            rng = np.random.default_rng(seed)
            learnt, others, truth, asked = train_test_split(x, y, test_size=0.4, random_state=seed, stratify=y)
            learnt, truth = learnt[:200], truth[:200]
            votes = cast(truth, int(y.max()) + 1, PEOPLE[people], rng)
            samples = from_arrays(learnt, [np.flatnonzero(row).tolist() for row in votes])
            shares = votes[:, [int(name) for name in samples.names]]
            samples = replace(samples, shares=shares / shares.sum(1, keepdims=True))
            model = Model.fit(samples, seed=seed, device="cpu")
            told = np.array([int(one) for one in model.predict(from_arrays(others), device="cpu").labels])
            right = np.array([int(model.names[k]) for k in model.records.label]) == truth
            sure = model.records.confidence >= 0.95
            majority = (votes + rng.random(votes.shape) / 2).argmax(1)
            row: dict[str, Any] = {"table": table, "people": people, "seed": seed}
            row["ipll"] = (told == asked).mean()
            for name, plain in (
                ("logistic", LogisticRegression(max_iter=2000)),
                ("forest", RandomForestClassifier(200)),
            ):
                learner = make_pipeline(StandardScaler(), plain.set_params(random_state=0)).fit(learnt, majority)
                row[f"majority, {name}"] = (learner.predict(others) == asked).mean()
            row["ipll, labels"], row["majority, labels"] = right.mean(), (majority == truth).mean()
            row["sure"], row["wrong among sure"] = sure.mean(), (~right[sure]).mean() if sure.any() else 0.0
            row |= {key: round(100 * float(value), 1) for key, value in row.items() if isinstance(value, float)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        command = f"python benchmarks/votes.py --seeds {' '.join(map(str, options.seeds))}"
        facts = {"command": command, "environment": describe(find_device("cpu")), "rows": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
