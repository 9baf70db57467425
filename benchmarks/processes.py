"""How much faster do several processes train than one? Each has one thread of a CPU, or a GPU of its own.

    python benchmarks/processes.py 1 2 --out results/throughput/processes.json

Plain PGDR at CIFAR-100's shapes in its second task, images of noise, batches of 64, and on a CPU a few steps of them.
`--backbone resnet18-thin` has a sixteenth of the arithmetic, with as much to say to each other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from training import Bench, noise

from ipll.engine import processes
from ipll.engine.device import cpu_threads, describe, find_device
from ipll.engine.launch import launch

ON_CPU = {"train.steps_per_epoch": 3, "memory.size": 100}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """What one of the processes does."""
    device = processes.own_device(find_device(options.device))
    settings: dict[str, Any] = {"train.batch_size": options.batch, "model.backbone": options.backbone}
    settings |= ON_CPU if device.type == "cpu" else {}
    with processes.joined(device), cpu_threads(1 if device.type == "cpu" else 0):
        bench = Bench(noise(device), "pgdr", settings, options.epochs, device)
        bench.prepare(2)
        speed: dict[str, Any] = dict(bench.measure())
        return speed | {"settings": settings, "environment": describe(device), "processes": processes.count()}


def together(count: int) -> dict[str, Any]:
    """-> what the first of so many processes measures."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        if launch([__file__, *sys.argv[1:], "--worker", str(found)], count):
            raise SystemExit("a process failed, see above.")
        result: dict[str, Any] = json.loads(found.read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        found = measured(options)
        if os.environ["RANK"] == "0":
            options.worker.write_text(json.dumps(found))
        return
    runs = [together(count) for _ in range(options.repeats) for count in options.counts]
    best = {n: max(run["samples_per_second"] for run in runs if run["processes"] == n) for n in options.counts}
    for n, speed in best.items():
        print(f"{n} processes: {speed:.1f} samples/s, {speed / best[options.counts[0]]:.2f} times", flush=True)
    if options.out:
        report = {"command": "python benchmarks/processes.py " + " ".join(sys.argv[1:]), "runs": runs}
        options.out.write_text(json.dumps(report | {"torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
