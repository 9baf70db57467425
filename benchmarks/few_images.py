"""A few images of one's own, every sample with false candidates: `pgdr` beside `pgdr/images`, which `ipll fit` takes.

    python benchmarks/few_images.py --data-root DIR --out results/own/few_images.json

    digits        4 or 10 digits of 8 pixels, 30 of each, one or two false candidates a sample, of others 300 or more
    photographs   5 classes of CIFAR-100, 120 training images of each, one false candidate; 1,000 other training images

Beside them logistic regression on pixels, with every candidate as a label. No test image is used.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from ipll.data.sources import load_source
from ipll.engine.device import describe, find_device
from ipll.own import Model, from_arrays

KINDS = (3, 20, 36, 48, 62)  # of CIFAR-100
METHODS = ("pgdr", "pgdr/images")


def problems(root: Path | None, seed: int) -> Iterator[tuple[str, Any, Any, int, int, int]]:
    """-> name, images [n, ...], labels [n], classes, samples of each to learn from, false candidates of each."""
    digits = load_digits()
    for classes, false in ((4, 1), (4, 2), (10, 1), (10, 2)):
        rows = digits.target < classes
        name = f"{classes} digits, {false} false"
        yield name, (digits.images[rows] * 15).astype(np.uint8), digits.target[rows], classes, 30, false
    if root is not None:
        source = load_source("cifar100", root)
        rows = np.flatnonzero(np.isin(source.train_labels, KINDS))
        labels = np.searchsorted(KINDS, source.train_labels[rows])
        pixels = source.train_samples[rows].transpose(0, 2, 3, 1)
        yield "5 kinds of photographs, 1 false", pixels, labels, len(KINDS), 120, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="where CIFAR-100 lies; without it, digits alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for name, images, labels, classes, each, false in problems(options.data_root, seed):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(labels))
            learnt = np.concatenate([order[labels[order] == c][:each] for c in range(classes)])
            others = np.setdiff1d(order, learnt)[:1000]
            wrong = [rng.permutation([c for c in range(classes) if c != y])[:false] for y in labels[learnt]]
            sets = [sorted({int(y), *map(int, more)}) for y, more in zip(labels[learnt], wrong, strict=True)]
            for method in METHODS:
                began = time.process_time()
                given = from_arrays(images[learnt], sets)
                model = Model.fit(given, method=method, network="scratch", seed=seed, device="cpu")
                told = [int(one) for one in model.predict(from_arrays(images[others]), device="cpu").labels]
                settled = np.array([int(model.names[k]) for k in model.records.label])
                row = {"data": name, "seed": seed, "method": method}
                row["accuracy"] = round(100 * float((np.array(told) == labels[others]).mean()), 1)
                row["settled_right"] = round(100 * float((settled == labels[learnt]).mean()), 1)
                row["classes_never_settled_on"] = classes - len(set(settled.tolist()))
                row["processor_seconds"] = round(time.process_time() - began, 1)
                rows.append(row)
                print(json.dumps(row), flush=True)
            flat = images.reshape(len(images), -1) / 255
            every = LogisticRegression(max_iter=1000).fit(
                np.concatenate([np.repeat(flat[i : i + 1], len(s), 0) for i, s in zip(learnt, sets, strict=True)]),
                np.concatenate(sets),
            )
            accuracy = round(100 * float((every.predict(flat[others]) == labels[others]).mean()), 1)
            rows.append({"data": name, "seed": seed, "method": "logistic regression", "accuracy": accuracy})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        command = f"python benchmarks/few_images.py --seeds {' '.join(map(str, options.seeds))}"
        facts = {"command": command, "environment": describe(find_device("cpu")), "rows": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
