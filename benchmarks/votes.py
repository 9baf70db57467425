"""Votes of people who disagree: ipll beside learners of the majority's labels, and of Dawid and Skene's.

    python benchmarks/votes.py [DATA.npz ...] --out results/own/votes.json

A file holds `features` [n, d], `votes` int [n, annotators] (-1: none), `truth` [n] for scoring, and `test_features`,
`test_truth`. Such are LabelMe (8 kinds of scenes), Music Genres (10) and Sentiment (2), labelled by Amazon's Mechanical
Turk, which Rodrigues and Pereira published with 'Deep learning from crowds' (2018) and 'Learning from multiple
annotators' (2013). Sentiment's sentences are seen by TF-IDF (sublinear, words of two or more) and 200 components of it.
Without a file, simulated people vote on scikit-learn's tables, of which 60 %, at most 200 rows, are learnt from:

    five    five annotators, right by 80, 80, 75, 70 and 70 %
    lazy    three, right by 85, 80 and 75 %, and one who says the first class of every sample
    wrong   four, right by 85, 80, 80 and 75 %, and one who is never right
    crowd   twelve, right by 65 %

A tenth of these votes is missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ipll.engine.device import cpu_threads, describe, find_device
from ipll.own import Model, from_arrays
from ipll.own.prediction import calibration_error
from ipll.own.reading.votes import reliability

TABLES = {"iris": load_iris, "wine": load_wine, "cancer": load_breast_cancer, "digits": load_digits}
PEOPLE: dict[str, tuple[float | None, ...]] = {  # how often each is right; None: says the first class
    "five": (0.8, 0.8, 0.75, 0.7, 0.7),
    "lazy": (0.85, 0.8, 0.75, None),
    "wrong": (0.85, 0.8, 0.8, 0.75, 0.0),
    "crowd": (0.65,) * 12,
}
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Crowd(NamedTuple):
    name: str
    features: Any  # [n, d]
    votes: Ints  # [n, annotators], -1: none
    truth: Ints
    test_features: Any
    test_truth: Ints

    @property
    def classes(self) -> int:
        return int(max(self.truth.max(), self.votes.max())) + 1

    def counts(self, weight: Floats | None = None) -> Floats:
        """-> the votes for each class [n, classes], each by the weight of its annotator."""
        rows, who = np.nonzero(self.votes >= 0)
        found = np.zeros((len(self.truth), self.classes))
        np.add.at(found, (rows, self.votes[rows, who]), 1.0 if weight is None else weight[who])
        return found


def real(path: Path) -> Crowd:
    with np.load(path) as file:
        names = ("features", "votes", "truth", "test_features", "test_truth")
        return Crowd(path.stem, *(file[name] for name in names))


def simulated(seed: int) -> Iterator[Crowd]:
    for table, people in ((table, people) for table in TABLES for people in PEOPLE):
        x, y = TABLES[table](return_X_y=True)
        rng = np.random.default_rng(seed)
        learnt, others, truth, asked = train_test_split(x, y, test_size=0.4, random_state=seed, stratify=y)
        learnt, truth = learnt[:200], truth[:200]
        votes = np.full((len(truth), len(PEOPLE[people])), -1)
        for who, right in enumerate(PEOPLE[people]):
            false = (truth + rng.integers(1, y.max() + 1, len(truth))) % (y.max() + 1)
            said = np.zeros_like(truth) if right is None else np.where(rng.random(len(truth)) < right, truth, false)
            votes[:, who] = np.where((rng.random(len(truth)) > 0.1) | (right is None), said, -1)
        votes[(votes < 0).all(1), 0] = 0
        yield Crowd(f"{table}, {people}", learnt, votes, truth, others, asked)


def dawid_skene(crowd: Crowd, rounds: int = 50, smooth: float = 0.1) -> Ints:
    """-> labels by votes alone: a confusion matrix of each annotator, by EM from the shares of the votes (1979)."""
    rows, who = np.nonzero(crowd.votes >= 0)
    said, p = crowd.votes[rows, who], crowd.counts() / crowd.counts().sum(1, keepdims=True)
    for _ in range(rounds):
        matrix = np.full((crowd.votes.shape[1], crowd.classes, crowd.classes), smooth)  # annotator, said, true
        np.add.at(matrix, (who, said), p[rows])
        matrix /= matrix.sum(1, keepdims=True)
        score = np.tile(np.log(p.mean(0) + 1e-9), (len(p), 1))
        np.add.at(score, rows, np.log(matrix[who, said]))
        p = np.exp(score - score.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
    labels: Ints = p.argmax(1)
    return labels


def ours(crowd: Crowd, seed: int) -> dict[str, float]:
    """-> as `ipll fit --votes` does it."""
    rows, who = np.nonzero(crowd.votes >= 0)
    counts = crowd.counts(reliability(rows, who, crowd.votes[rows, who]))
    samples = from_arrays(crowd.features, [np.flatnonzero(row).tolist() for row in crowd.counts()])
    order = [int(name) for name in samples.names]
    started = time.process_time()
    model = Model.fit(replace(samples, votes=counts[:, order].astype(np.float32)), seed=seed, device="cpu")
    spent = time.process_time() - started
    said = model.predict(from_arrays(crowd.test_features), device="cpu")
    hit = np.array([int(one) for one in said.labels]) == crowd.test_truth
    right = np.array([int(model.names[k]) for k in model.records.label]) == crowd.truth
    sure = model.records.confidence >= 0.95
    return {
        "ipll": hit.mean(),
        "ipll, labels": right.mean(),
        "ipll, calibration error": calibration_error(said.confidence, hit),
        "sure": sure.mean(),
        "wrong among sure": (~right[sure]).mean() if sure.any() else 0.0,
        "expected wrong": (1 - model.records.confidence).mean(),
        "processor seconds": spent / 100,
    }


def plain(crowd: Crowd, labels: Ints, name: str) -> dict[str, float]:
    found = {f"{name}, labels": (labels == crowd.truth).mean()}
    for kind, learner in (("logistic", LogisticRegression(max_iter=2000)), ("forest", RandomForestClassifier(200))):
        learnt = make_pipeline(StandardScaler(), learner.set_params(random_state=0)).fit(crowd.features, labels)
        found[f"{name}, {kind}"] = (learnt.predict(crowd.test_features) == crowd.test_truth).mean()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with cpu_threads(1):
        for seed in options.seeds:
            for crowd in map(real, options.data) if options.data else simulated(seed):
                tie = np.random.default_rng(seed).random(crowd.counts().shape) / 2
                found = ours(crowd, seed)
                found |= plain(crowd, (crowd.counts() + tie).argmax(1), "majority")
                found |= plain(crowd, dawid_skene(crowd), "Dawid-Skene") | plain(crowd, crowd.truth, "true labels")
                row = {
                    key: round(100 * float(value), 1) for key, value in found.items() if key != "true labels, labels"
                }
                rows.append({"data": crowd.name, "seed": seed} | row)
                print(json.dumps(rows[-1]), flush=True)
    if options.out:
        words = [*(path.name for path in options.data), "--seeds", *map(str, options.seeds)]
        command = f"python benchmarks/votes.py {' '.join(words)}"
        facts = {"command": command, "environment": describe(find_device("cpu")), "rows": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
