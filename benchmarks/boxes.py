"""Tables whose classes are parted by thresholds, as rules of a code book part them: does `ipll fit` find them out?

    python benchmarks/boxes.py --out boxes.json

Eight features, normally distributed; a tree of random thresholds, four levels deep, says which of five classes a row is
of. Every other class joins a candidate set with probability 0.3. 1,200 rows are learnt from, 300 are for the test.
Beside the plain ways: ipll as it is, and without the forest that grows beside its networks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from real_tables import Floats, Ints, Table, summary
from table_baselines import BASELINES, forest

from ipll.engine.device import cpu_threads, describe

ROWS, TEST, FEATURES, CLASSES, LEVELS = 1_500, 300, 8, 5, 4


def draw(seed: int) -> tuple[Floats, Ints]:
    """-> features [n, d] and classes [n]."""
    rng = np.random.default_rng([seed, 3])
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    node, rows = np.zeros(ROWS, np.int64), np.arange(ROWS)
    for level in range(LEVELS):
        feature, threshold = rng.integers(FEATURES, size=2**level), 0.5 * rng.normal(size=2**level)
        node = 2 * node + (x[rows, feature[node]] > threshold[node])
    return x, np.unique(rng.integers(CLASSES, size=2**LEVELS)[node], return_inverse=True)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"command": " ".join(["python benchmarks/boxes.py", *sys.argv[1:]]), "runs": []}
    with cpu_threads(options.threads):
        report["environment"] = describe(torch.device("cpu"))
        for seed in range(options.seeds):
            x, truth = draw(seed)
            rng = np.random.default_rng([seed, 4])
            sets = rng.random((ROWS, truth.max() + 1)) < 0.3
            sets[np.arange(ROWS), truth] = True
            test, train = np.split(rng.permutation(ROWS), [TEST])
            data = Table("boxes", seed, x, sets, truth, train, test, seed)
            for name, learn in {**BASELINES, "forest": forest}.items():
                report["runs"].append(data.row("boxes", name) | data.baseline(learn, train, sets[train], test)[0])
            for name, settings in {"ipll": {}, "ipll, no forest": {"classifier.trees": 0}}.items():
                found = data.ours([(train, sets[train])], settings=settings)
                report["runs"].append(data.row("boxes", name) | found)
            print(summary(report["runs"]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
