"""How fast plain PGDR trains at CIFAR-100's shapes, and where the time goes; and how fast with larger images.

    python benchmarks/throughput.py --out throughput.json
    python benchmarks/throughput.py --batch 64 --ways 'kernels + graphs' --out batch64.json
    python benchmarks/throughput.py --sizes 32 64 224 --residence device host --out sizes.json

Five ways in one run: eager float32, eager bf16, compiled, compiled and captured as CUDA graphs, and captured with our
own kernels instead of a compiler's, which is the default. A sample is two trained views and one of the teacher, all
freshly augmented. Images are noise: the arithmetic does not care. On a CPU only the first way runs, with few steps.
With `--batch 64` it is `pgdr/best` under the recipe of `cifar100-fast`, with three trained views. To compare the two,
count passes: a trained view is three, one that the teacher is asked about is one.

With other sizes or places, there is a table of them besides (see sizes.py). `--ways` without a name leaves the ways
out.
"""

from __future__ import annotations

import argparse
import copy
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

import torch
from sizes import measure_sizes, ratios, table
from torch.utils.flop_counter import FlopCounterMode
from training import DEFAULT, FEW, SHAPES, WAYS, Bench, noise

from ipll.batches import draws, training_rows, view_names
from ipll.component import Draw, Phase
from ipll.data.source import Source
from ipll.engine.device import arithmetic, describe, find_device
from ipll.learner import Learner
from ipll.networks.network import Output

BATCHES: dict[int, tuple[str, dict[str, Any]]] = {
    256: ("pgdr", {}),
    64: ("pgdr/best", {"train.batch_size": 64, "augment.cutmix": 1.0}),
}  # by size: the method and the settings of the preset that has it


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 30) -> float:
    """Mean seconds of `work`, replayed as a graph of its own on a GPU, so that launches do not count."""
    if device.type != "cuda":
        work()
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
    draw: Draw = next(draws(ctx, phase, order, 0, 0))
    network, views = phase.network.train(), torch.cat([draw.views[name] for name in view_names(phase)])
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
    ms["targets, losses, bookkeeping"] = seconds_of(targets_and_losses(learner, phase, draw), device)
    ms["optimiser"] = seconds_of(learner.update.descent.step, device)
    whole = seconds_of(partial(learner.stepper.take, phase, draw), device)
    ms |= {"saved by running side by side": sum(ms.values()) - whole, "whole step": whole}
    samples = ctx.pool.samples[order.flatten()]
    generator = ctx.generator("bench")
    begun = time.perf_counter()
    for _ in range(3):
        ctx.views.weak(samples, generator)
        ctx.views.strong(samples, generator)
    bench.wait()
    ms["augmentation"] = (time.perf_counter() - begun) / 3 / len(order)
    return {name: 1000 * value for name, value in ms.items()}


def targets_and_losses(learner: Learner, phase: Phase, draw: Draw) -> Callable[[], None]:
    """-> what a step does between the network's forward and its backward pass, and with the targets afterwards."""
    batch = learner.stepper.gather(phase, draw)
    with torch.no_grad():
        for part in phase.parts:
            part.before(batch)
        out = learner.stepper.forward(phase, batch)

    def work() -> None:
        leaves = {name: Output(*(tensor.detach().requires_grad_() for tensor in view)) for name, view in out.items()}
        learner.stepper.decide_targets(phase, batch, leaves)
        learner.stepper.total(phase, batch, leaves)[0].backward()
        learner.stepper.after(phase, batch, leaves)

    return work


def matrix_rate(device: torch.device) -> float:
    """FLOP/s of a large product in bf16 (float32 on a CPU), as measured."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / seconds_of(lambda: a @ b, device)


def passes_of_a_sample(learner: Learner) -> int:
    """Each view that is trained on forward and backward (three times the forward pass), and those of the teacher."""
    trained = len(view_names(learner.ctx.phase))
    asked = next(getattr(part.settings, "views", "weak") for part in learner.config.parts if part.family == "retention")
    return 3 * trained + (trained if asked == "all" else 1)


def flops_of_a_pass(learner: Learner) -> int:
    network = copy.deepcopy(learner.network).cpu().eval()  # there are no kernels there that the counter does not know
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        type(network).forward(network, torch.zeros(1, 3, 32, 32))
    return int(counter.get_total_flops())


def start_up(cache: Path) -> float:
    """Seconds from the start of a fresh process to its first finished step."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    environment = os.environ | caches | {"IPLL_BENCH_START": str(time.time())}
    command = [sys.executable, __file__, "--first-step"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return float(output.splitlines()[-1])


def measure_ways(
    ways: list[str], source: Source, method: str, settings: dict[str, Any], epochs: int, device: torch.device
) -> dict[str, Any]:
    """-> a row for each way, and the milliseconds of a step's parts in the last of them."""
    gpu, rate = device.type == "cuda", matrix_rate(device)
    report: dict[str, Any] = {"shape": [3, 32, 32], "matrix_tflops": rate / 1e12, "ways": {}}
    for way in ways:
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        bench = Bench(source, method, settings | WAYS[way] | ({} if gpu else FEW), epochs, device)
        bench.prepare(4)
        row: dict[str, Any] = bench.measure()
        row["first_step_seconds"] = bench.first_step
        row["passes_per_second"] = row["samples_per_second"] * passes_of_a_sample(bench.learner)
        row["flop_share"] = row["passes_per_second"] * flops_of_a_pass(bench.learner) / rate
        if gpu:
            row["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        report["ways"][way] = row
        print(f"{way:20}{row['samples_per_second']:9,.0f} samples/s{row['passes_per_second']:11,.0f} passes/s"
              f"{row['seconds_per_epoch']:8.3f} s/epoch {100 * row['flop_share']:5.1f} % of the matrix rate",
              flush=True)  # fmt: skip
    report["step_ms"] = parts_of_a_step(bench)
    for name, value in report["step_ms"].items():
        print(f"  {name:30}{value:8.3f} ms", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all numbers and the environment here, as JSON")
    parser.add_argument("--epochs", type=int, default=8, help="epochs to measure each way; one on a CPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    ways_help = f"some of: {', '.join(map(repr, WAYS))}; default: all"
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=ways_help)
    sizes_help, places = "height and width of the images, in pixels", ["device", "host"]
    parser.add_argument("--sizes", nargs="+", type=int, choices=list(SHAPES), default=[32], help=sizes_help)
    parser.add_argument("--residence", nargs="+", choices=places, default=places[:1], help="where the images lie")
    parser.add_argument("--batch", type=int, choices=list(BATCHES), default=256, help="256: the paper's; 64: ours")
    parser.add_argument("--no-start-up", action="store_true", help="leave the two fresh processes out")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = find_device(options.device)
    if options.first_step:
        with arithmetic(deterministic=False, device=device):
            Bench(noise(device), "pgdr", WAYS[DEFAULT], 1, device).prepare(1)
        print(time.time() - float(os.environ["IPLL_BENCH_START"]))
        return
    gpu = device.type == "cuda"
    epochs = options.epochs if gpu else 1
    ways = options.ways if gpu else options.ways[:1] and ["eager float32"]
    report: dict[str, Any] = {"environment": describe(device)}
    with arithmetic(deterministic=False, device=device):
        if ways:
            report |= measure_ways(ways, noise(device), *BATCHES[options.batch], epochs, device)
        if options.sizes != [32] or options.residence != ["device"]:
            report["sizes"] = measure_sizes(options.sizes, options.residence, epochs, device)
            report["ratios"] = ratios(report["sizes"])
            print(table(report["sizes"], report["ratios"]))
    if gpu and ways and not options.no_start_up:
        with tempfile.TemporaryDirectory() as cache:
            report["start_up_seconds"] = {"cold": start_up(Path(cache)), "warm cache": start_up(Path(cache))}
        print(f"  start-up: {report['start_up_seconds']}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
