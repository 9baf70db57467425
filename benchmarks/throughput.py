"""How fast plain PGDR trains at CIFAR-100's shapes, and where the time goes.

    python benchmarks/throughput.py --out throughput.json

Four ways in one run: eager float32, eager bf16, compiled, compiled and captured as CUDA graphs. A sample is two trained
views and one of the teacher, all freshly augmented. Images are noise: the arithmetic does not care. On a CPU only the
first way runs, with few steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from ipll.component import Draw, Phase
from ipll.config import resolve
from ipll.data.loader import draws, training_rows
from ipll.data.source import Source
from ipll.data.stream import Stream
from ipll.engine.device import arithmetic, describe, find_device
from ipll.learner import Learner

WAYS = {
    "eager float32": {"train.precision": "float32", "train.compile": "off", "train.graphs": "off"},
    "eager bf16": {"train.precision": "bf16", "train.compile": "off", "train.graphs": "off"},
    "compiled": {"train.precision": "bf16", "train.compile": "on", "train.graphs": "off"},
    "compiled + graphs": {"train.precision": "bf16", "train.compile": "on", "train.graphs": "on"},
}
WARM_EPOCHS = 2
FEW = {"train.steps_per_epoch": 1, "train.batch_size": 16, "memory.size": 100}  # on a CPU, to see that it works


def noise(device: torch.device, size: int = 32) -> Source:
    """As many samples and classes as CIFAR-100 has; a fiftieth of the samples on a CPU."""
    rng = np.random.default_rng(0)
    count = 50_000 if device.type == "cuda" else 1_000

    def images(n: int) -> Any:
        return rng.integers(0, 256, (n, 3, size, size), dtype=np.uint8)

    names = tuple(str(c) for c in range(100))
    labels = np.arange(count) % 100
    return Source(
        name="noise", train_samples=images(count), train_labels=labels, test_samples=images(100),
        test_labels=np.arange(100), class_names=names, mean=(0.5,) * 3, std=(0.25,) * 3,
    )  # fmt: skip


class Bench:
    """A learner in its second task: teacher, memory and old classes are there."""

    def __init__(
        self, source: Source, method: str, settings: dict[str, Any], epochs: int, device: torch.device
    ) -> None:
        self.started = time.perf_counter()
        self.device, self.epochs = device, epochs
        overrides = {"train.epochs": epochs + WARM_EPOCHS} | settings
        self.config = resolve("cifar100", method, overrides=overrides)
        self.stream = Stream.build(source, self.config.stream, 0)
        self.learner = Learner(self.config, channels=3, classes=100, mean=source.mean, std=source.std, device=device)
        self.source = source
        self.first_step = 0.0

    def task(self, t: int) -> Any:
        return self.stream.make_task(t, self.source.train_samples)

    def prepare(self, steps: int) -> None:
        """Leaves the first task after a few steps, as if it had been learnt."""
        for number, _ in enumerate(self.learner.fit(self.task(0)), 1):
            if number == 1:
                self.wait()
                self.first_step = time.perf_counter() - self.started
            if number >= steps:
                break
        self.learner._end_task()

    def measure(self) -> dict[str, float]:
        """-> samples/s and s/epoch over the epochs after the warm-up; an epoch is one of each phase."""
        learner, begun, seconds = self.learner, 0.0, 0.0
        for position in learner.fit(self.task(1)):
            if position.step == 0 and position.epoch == WARM_EPOCHS:
                self.wait()
                begun = time.perf_counter()
            elif position.step == 0 and position.epoch == WARM_EPOCHS + self.epochs:
                self.wait()
                seconds += (time.perf_counter() - begun) / self.epochs
                if position.phase == learner.phases - 1:
                    break
        return {"samples_per_second": learner.steps * learner.batch_size / seconds, "seconds_per_epoch": seconds}

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 30) -> float:
    """Mean seconds of `work`, replayed as a graph of its own on a GPU, so that launches do not count."""
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    graph.replay()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeats


def parts_of_a_step(bench: Bench) -> dict[str, float]:
    """Milliseconds of each part of a step, each alone, in a learner that is in its second task."""
    learner, device = bench.learner, bench.device
    ctx, size = learner.ctx, learner.config.train.batch_size
    phase: Phase = ctx.phase
    order = learner.memory.order(training_rows(ctx), size, ctx.generator("bench"))
    draw: Draw = next(iter(draws(ctx, phase, order, 0)))
    network, views = phase.network, torch.cat([draw.views["weak"], draw.views["strong"]])
    weights = list(network.parameters())
    targets = torch.full((len(views), ctx.capacity), 1 / ctx.capacity, device=device)

    def forward_backward() -> None:
        for w in weights:
            w.grad = None
        logits = network(views).logits
        (-(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()).backward()

    @torch.no_grad()
    def teacher() -> None:
        ctx.teacher(draw.views["weak"])

    ms = {"forward + backward": seconds_of(forward_backward, device), "teacher": seconds_of(teacher, device)}
    ms["optimiser"] = seconds_of(learner.update.optimiser.step, device)
    ms["whole step"] = seconds_of(partial(learner.take_step, phase, draw), device)
    ms["targets, losses, bookkeeping"] = ms["whole step"] - sum(ms[key] for key in ms if key != "whole step")
    samples = ctx.pool.samples[order.flatten()]
    generator = ctx.generator("bench")
    begun = time.perf_counter()
    for _ in range(3):
        ctx.views.weak(samples, generator)
        ctx.views.strong(samples, generator)
    bench.wait()
    ms["augmentation"] = (time.perf_counter() - begun) / 3 / len(order)
    return {name: 1000 * value for name, value in ms.items()}


def matrix_rate(device: torch.device) -> float:
    """FLOP/s of a large product in bf16 (float32 on a CPU), as measured."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / seconds_of(lambda: a @ b, device)


def flops_of_a_sample(learner: Learner) -> int:
    """Two views forward and backward (three times the forward pass), one view of the teacher."""
    one = torch.zeros(1, 3, 32, 32, device=learner.ctx.device)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        type(learner.network).forward(learner.network.eval(), one)
    return 7 * int(counter.get_total_flops())


def start_up(cache: Path) -> float:
    """Seconds from the start of a fresh process to its first finished step."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "IPLL_BENCH_START": str(time.time())}
    command = [sys.executable, __file__, "--first-step"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return float(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--no-start-up", action="store_true", help="leave the two fresh processes out")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = find_device(options.device)
    source = noise(device)
    if options.first_step:
        with arithmetic(deterministic=False, device=device):
            Bench(source, "pgdr", WAYS["compiled + graphs"], 1, device).prepare(1)
        print(time.time() - float(os.environ["IPLL_BENCH_START"]))
        return
    gpu = device.type == "cuda"
    few = {} if gpu else FEW
    report: dict[str, Any] = {"environment": describe(device), "shape": [3, 32, 32], "ways": {}}
    rate = matrix_rate(device)
    report["matrix_tflops"] = rate / 1e12
    with arithmetic(deterministic=False, device=device):
        for way in options.ways if gpu else ["eager float32"]:
            if gpu:
                torch.cuda.reset_peak_memory_stats()
            bench = Bench(source, "pgdr", WAYS[way] | few, options.epochs if gpu else 1, device)
            bench.prepare(4)
            row: dict[str, Any] = bench.measure()
            row["first_step_seconds"] = bench.first_step
            row["flop_share"] = row["samples_per_second"] * flops_of_a_sample(bench.learner) / rate
            if gpu:
                row["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
            report["ways"][way] = row
            print(f"{way:20}{row['samples_per_second']:9,.0f} samples/s{row['seconds_per_epoch']:8.3f} s/epoch "
                  f"{100 * row['flop_share']:5.1f} % of the matrix rate", flush=True)  # fmt: skip
        report["step_ms"] = parts_of_a_step(bench)
    for name, value in report["step_ms"].items():
        print(f"  {name:30}{value:8.3f} ms")
    if gpu and not options.no_start_up:
        with tempfile.TemporaryDirectory() as cache:
            report["start_up_seconds"] = {"cold": start_up(Path(cache)), "warm cache": start_up(Path(cache))}
        print(f"  start-up: {report['start_up_seconds']}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
