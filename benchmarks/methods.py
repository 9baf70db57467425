"""Samples per second of every named method at CIFAR-100's shapes, beside what its arithmetic says.

    python benchmarks/methods.py --out methods.json [METHOD ...]

Each method trains in its second task, as in throughput.py. "Passes" are forward passes of one view (a backward pass is
two more) for each sample, extra phases included; the ratio to plain PGDR's count is the cost to expect, and "overhead"
is the measured cost against that: 1.1 means ten per cent slower than the arithmetic says.

With `--beside CHECKOUT`, each method is measured by that version of ipll right after, by its own benchmark in a process
of its own, and plain PGDR with it: two versions in one run. How far PGDR's numbers lie apart tells the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from training import DEFAULT, FEW, WAYS, Bench, noise

from ipll.component import Draw, Phase
from ipll.data.source import Source
from ipll.engine.device import arithmetic, describe, find_device
from ipll.learner import Learner
from ipll.method import canonical, method_table
from ipll.networks.network import Network


class Counter:
    """Counts the views that go through networks in steps, forward and backward."""

    def __init__(self, learner: Learner) -> None:
        self.views, self.within = 0, False
        self.take_step, learner.stepper.take = learner.stepper.take, self._take_step  # type: ignore[method-assign]
        for module in learner.modules():
            if isinstance(module, Network):
                module.register_forward_hook(self._count)

    def _take_step(self, phase: Phase, draw: Draw) -> None:
        self.within = True
        self.take_step(phase, draw)
        self.within = False

    def _count(self, module: torch.nn.Module, inputs: tuple[torch.Tensor], output: Any) -> None:
        self.views += self.within * len(inputs[0]) * (3 if torch.is_grad_enabled() else 1)


def passes(source: Source, name: str, device: torch.device) -> float:
    """Forward passes of one view for each sample of a step, over all phases; counted in a plain epoch of one step."""
    plain = WAYS["eager float32"] | FEW | {"train.epochs": 1}
    bench = Bench(source, name, plain, 1, device)
    bench.prepare(1)
    counter, samples = Counter(bench.learner), 0
    for position in bench.learner.fit(bench.task(1)):
        samples = bench.learner.batch_size
        if position.step == 0 and position.phase == bench.learner.phases - 1:
            break
    return counter.views / samples


def other_version(checkout: Path, name: str, options: argparse.Namespace) -> dict[str, float]:
    """-> samples/s of a method, and of PGDR, by another checkout."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "methods.json"
        words = [name, "--out", str(out), "--epochs", str(options.epochs), "--device", options.device]
        places = os.pathsep.join([str(checkout / "src"), str(checkout / "benchmarks")])
        command = [sys.executable, str(checkout / "benchmarks" / "methods.py"), *words]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": places}, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(out.read_text())["methods"]
    return {one: found[one]["samples_per_second"] for one in ("pgdr", name)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="default: every named method that is no alias and no variant")
    parser.add_argument("--out", type=Path, help="write all numbers and the environment here, as JSON")
    parser.add_argument("--epochs", type=int, default=3, help="epochs to measure each method")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--beside", type=Path, help="another checkout, to be compared with in the same run")
    options = parser.parse_args()
    device = find_device(options.device)
    source = noise(device)
    names = options.methods or [n for n in method_table() if canonical(n) == n and "/" not in n]
    names = list(dict.fromkeys(["pgdr", *names]))
    gpu = device.type == "cuda"
    way: dict[str, Any] = WAYS[DEFAULT] if gpu else WAYS["eager float32"] | FEW
    rows: dict[str, dict[str, float]] = {}
    report: dict[str, Any] = {"environment": describe(device), "epochs": options.epochs, "methods": rows}
    with arithmetic(deterministic=False, device=device):
        for name in names:
            bench = Bench(source, name, way, options.epochs, device)
            bench.prepare(4)
            row = bench.measure() | {"passes": passes(source, name, device)}
            rows[name] = row
            row["cost"] = rows["pgdr"]["samples_per_second"] / row["samples_per_second"]
            row["overhead"] = row["cost"] * rows["pgdr"]["passes"] / row["passes"]
            print(f"{name:16}{row['samples_per_second']:9,.0f} samples/s{row['cost']:7.2f} x pgdr"
                  f"{row['passes']:6.0f} passes{row['overhead']:7.2f} overhead", flush=True)  # fmt: skip
            if options.beside:
                other = other_version(options.beside.absolute(), name, options)
                row |= {f"beside_{one}": speed for one, speed in other.items()}
                ratio, noise_ = (
                    row["samples_per_second"] / other[name],
                    rows["pgdr"]["samples_per_second"] / other["pgdr"],
                )
                print(f"{'':16}{ratio:9.3f} x the other's; pgdr {noise_:.3f}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
