"""How well the first task is learnt under several settings, judged by training samples that come later.

    python benchmarks/first_task.py cifar100 --out first_task.json \
        --try pgdr --try pico+pgdr --try pico+pgdr,auxiliary.contrastive.key_momentum=0.99

Representation is learnt in the first task, and a run of it costs a fifteenth of a whole one: the place to choose
settings. Some samples of its classes arrive only in later tasks (stream.blurry); predictions are compared with their
labels, so that no test label is used for a choice.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipll.benchmark.run import load_data
from ipll.config import parse_overrides, resolve
from ipll.data.source import Source
from ipll.data.stream import Stream
from ipll.engine.device import arithmetic, cpu_threads, describe, find_device
from ipll.learner import Learner


def learn(source: Source, preset: str, text: str, common: list[str], seed: int, device: torch.device) -> dict[str, Any]:
    """-> accuracies in percent of what `text` says: a method and settings, separated by commas."""
    method, *settings = text.split(",")
    overrides = parse_overrides(common) | parse_overrides(settings)
    config = resolve(preset, method, seed=seed, overrides=overrides)
    stream = Stream.build(source, config.stream, seed)
    truth = stream.arrival[source.train_labels]
    later = np.flatnonzero((truth < stream.seen(0)) & (stream.task > 0))
    if not len(later):
        raise SystemExit(
            f"stream.blurry is {config.stream.blurry}: no sample of the first classes comes later to judge by"
        )
    begun = time.perf_counter()
    with cpu_threads(config.train.threads), arithmetic(deterministic=config.train.deterministic, device=device):
        learner = Learner(
            config, channels=source.train_samples.shape[1], classes=source.classes, mean=source.mean, std=source.std,
            device=device,
        )  # fmt: skip
        task = stream.make_task(0, source.train_samples)
        for _ in learner.fit(task):
            pass
        predicted = learner.predict(torch.from_numpy(source.train_samples[later]))
        pool, losses = learner.ctx.pool, learner.losses
        settled = pool.p[: pool.incoming].argmax(dim=1).cpu().numpy()
    seconds = time.perf_counter() - begun

    def share(classes: torch.Tensor) -> float:
        return 100 * float((classes.cpu().numpy() == truth[later]).mean())

    return {
        "method": method,
        "settings": overrides,
        "seed": seed,
        "judged_by": len(later),
        "accuracy": share(predicted.classes),
        "linear_accuracy": share(predicted.linear),
        "pseudo_label_accuracy": 100 * float((settled == truth[task.ids]).mean()),
        "last_epoch_losses": losses,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--try", dest="tries", action="append", required=True, metavar="METHOD[,KEY=VALUE...]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all of them")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ...")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device(options.device)
    source = load_data(resolve(options.preset, overrides=parse_overrides(options.set)).data, options.data_root)
    report: dict[str, Any] = {"command": " ".join(sys.argv), "environment": describe(device), "runs": []}
    print("accuracy  linear  pseudo-labels  seconds")
    for text in options.tries:
        for seed in range(options.seeds):
            row = learn(source, options.preset, text, options.set, seed, device)
            report["runs"].append(row)
            print(f"{row['accuracy']:8.1f}{row['linear_accuracy']:8.1f}{row['pseudo_label_accuracy']:15.1f}"
                  f"{row['seconds']:9.1f}  {text}, seed {seed}", flush=True)  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
