"""The study behind the preset `cifar100-fast`: trials on validation samples, one after another or many at a time.

    python benchmarks/recipe.py run kd-3 --set retention.weight=3 --tasks 5 --out results/recipe
    python benchmarks/recipe.py summary results/recipe

A trial is a run of the preset with some settings changed. It scores a tenth of the training samples, which it does not
train on (`data.validation`), never the test set, and its stream has a seed of 100 or more: published runs have others.
Trials that differ only in what later tasks do start from one learner of the first task, kept under `--first`.
Besides the method's own classifier, each trial tells what others would have said of the same network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ipll.benchmark.observer import Observer
from ipll.benchmark.run import load_data
from ipll.config import Config, parse_overrides, resolve
from ipll.data.stream import Stream
from ipll.engine import checkpoint
from ipll.engine.device import arithmetic, describe, find_device
from ipll.engine.placement import Resident
from ipll.learner import Learner

FEWEST_SEED = 100
LATER = ("retention", "separation", "method")  # what does nothing in the first task
LATER_TRAIN = ("later_epochs",)
COSINE_WEIGHTS = (5, 20)
SHIFTS = (-1.0, -0.5, 0.5)  # of the new classes' logits: is there a bias that a constant mends?
TOLD = ("accuracy", "linear_accuracy", "old_accuracy", "new_accuracy", "pseudo_label_accuracy", "memory_purity",
        "separation_old_recall", "separation_new_recall")  # fmt: skip


def first_task_of(config: Config) -> str:
    """-> a name for all that decides the first task's outcome."""
    table = {name: value for name, value in config.to_table().items() if name not in LATER}
    table["disambiguation"] = {name: value for name, value in table["disambiguation"].items() if name != "adjust"}
    table["train"] = {name: value for name, value in table["train"].items() if name not in LATER_TRAIN}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


@torch.no_grad()
def classifiers(learner: Learner, observer: Observer) -> dict[str, float]:
    """-> the accuracy, in percent, of several ways to choose a class by the same network."""
    ctx, n = learner.ctx, int((observer.test_truth < learner.ctx.seen).sum())
    truth = torch.from_numpy(observer.test_truth[:n]).to(ctx.device)
    assert isinstance(observer.test_samples, Resident)
    samples = observer.test_samples.tensor[:n]
    features, logits = ctx.embed(samples)
    logits = logits.masked_fill(~learner.network.head.born, -torch.inf).log_softmax(dim=1)
    scores: dict[str, Tensor] = {"linear": logits}
    scores |= {f"linear, new {shift:+}": logits + shift * ctx.new_mask for shift in SHIFTS}
    if hasattr(ctx, "prototypes"):
        known = ctx.prototypes.known
        cosines = (F.normalize(features, dim=1) @ F.normalize(ctx.prototypes.mu, dim=1).T).masked_fill(~known, -9)
        scores |= {"cosine": cosines, "euclidean": -ctx.prototypes.distances(features)}
        scores |= {f"linear+{w}cosine": logits + w * cosines for w in COSINE_WEIGHTS}
    return {way: 100 * float((score.argmax(dim=1) == truth).double().mean()) for way, score in scores.items()}


def run(options: argparse.Namespace) -> None:
    if options.seed < FEWEST_SEED:
        raise SystemExit(f"--seed {options.seed}: trials have streams of seed {FEWEST_SEED} or more.")
    overrides = {"data.validation": 0.1} | parse_overrides(options.set)
    config = resolve(options.preset, options.method, seed=options.seed, overrides=overrides)
    if not config.data.validation:
        raise SystemExit("a trial is never scored on the test set: leave data.validation above 0.")
    device, started = find_device("auto"), time.monotonic()
    source = load_data(config.data, options.data_root)
    stream = Stream.build(source, config.stream, config.seed)
    tasks = min(options.tasks or len(stream), len(stream))
    with arithmetic(deterministic=False, device=device):
        learner = Learner(
            config, channels=source.train_samples.shape[1], classes=source.classes, mean=source.mean, std=source.std,
            device=device,
        )  # fmt: skip
        observer = Observer(source, stream, device)
        rows: list[dict[str, Any]] = []
        kept = options.first / first_task_of(config) if options.first else None
        for t in range(tasks):
            begun = time.monotonic()
            if t == 0 and kept and (found := checkpoint.load_latest(kept)):
                fresh = checkpoint.copy(learner.tensors(within=False), {}).tensors
                known = {name: tensor for name, tensor in found.tensors.items() if name in fresh}
                learner.restore(fresh | known, stream.make_task(1, source.train_samples), within=False)
                rows.append(found.meta)
                continue
            for _ in learner.fit(stream.make_task(t, source.train_samples)):
                pass
            record = observer.after_task(learner)
            row = {name: record.get(name) for name in TOLD} | {"by": classifiers(learner, observer)}
            rows.append(row | {"losses": learner.losses, "seconds": time.monotonic() - begun})
            print(options.name, t + 1, json.dumps({k: v for k, v in rows[-1].items() if k not in ("by", "losses")}))
            print("   ", {k: round(v, 1) for k, v in rows[-1]["by"].items()}, flush=True)
            if t == 0 and kept:
                options.first.mkdir(parents=True, exist_ok=True)
                checkpoint.save(kept, learner.tensors(within=False), rows[0])
    trial = {
        "name": options.name, "preset": options.preset, "method": options.method, "seed": options.seed,
        "set": parse_overrides(options.set), "tasks": tasks, "mean": mean([row["accuracy"] for row in rows]),
        "mean_by": {way: mean([row["by"][way] for row in rows]) for way in rows[0]["by"]},
        "rows": rows, "seconds": sum(row["seconds"] for row in rows), "wall_seconds": time.monotonic() - started,
        "scored_on": "validation", "config": config.to_table(), "environment": describe(device),
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.name}.json").write_text(json.dumps(trial, indent=1) + "\n")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def summary(options: argparse.Namespace) -> None:
    trials = [json.loads(file.read_text()) for file in sorted(options.folder.glob("*.json"))]
    print("| trial | changed | seed | tasks | average | linear | last | old / new | labels | s |\n" + "|---" * 10 + "|")
    for trial in sorted(trials, key=lambda t: (t["tasks"], t["seed"], t["mean"])):
        last, by = trial["rows"][-1], trial["mean_by"]
        changed = " ".join(f"{key}={value}" for key, value in trial["set"].items()) or "-"
        labels = mean([row["pseudo_label_accuracy"] for row in trial["rows"]])
        print(
            f"| {trial['name']} | {trial['method']} {changed} | {trial['seed']} | {trial['tasks']} | "
            f"{trial['mean']:.2f} | {by['linear']:.2f} | {last['accuracy']:.1f} | {last['old_accuracy'] or 0:.0f} / "
            f"{last['new_accuracy']:.0f} | {labels:.1f} | {trial['seconds']:.0f} |"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first, second = commands.add_parser("run"), commands.add_parser("summary")
    first.add_argument("name")
    first.add_argument("--preset", default="cifar100-fast")
    first.add_argument("--method", default="pgdr/best")
    first.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    first.add_argument("--seed", type=int, default=FEWEST_SEED)
    first.add_argument("--tasks", type=int, default=0, help="learn only the first so many tasks; 0: all")
    first.add_argument("--first", type=Path, help="folder of learners of the first task, shared by trials")
    first.add_argument("--data-root", type=Path)
    first.add_argument("--out", type=Path, default=Path("results/recipe"))
    second.add_argument("folder", type=Path)
    for command, call in ((first, run), (second, summary)):
        command.set_defaults(call=call)
    options = parser.parse_args(arguments)
    options.call(options)


if __name__ == "__main__":
    main()
