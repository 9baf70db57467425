"""The part of throughput.py that compares sizes of images, and samples on the device with samples in host memory.

Each size takes the place of a data set of the paper, with that one's preset: 32 x 32 of CIFAR-100, 64 x 64 of
Tiny-ImageNet, 224 x 224 of CUB-200, with its ImageNet-style stem. A row is one learner, captured on a GPU.
On a CPU a small network takes a few steps, to see that it works.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from training import DEFAULT, SHAPES, WAYS, Bench, noise

Row = dict[str, Any]
FEWER = {"train.steps_per_epoch": 3, "train.batch_size": 4, "memory.size": 20, "model.backbone": "small-cnn"}


def measure_sizes(sizes: list[int], residences: list[str], epochs: int, device: torch.device) -> list[Row]:
    """-> a row for each size and place."""
    rows = []
    for size in sizes:
        source = noise(device, size)
        for residence in residences:
            gpu = device.type == "cuda"
            settings = WAYS[DEFAULT] if gpu else WAYS["eager float32"] | FEWER
            if gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            bench = Bench(source, "pgdr", settings | {"data.residence": residence}, epochs, device)
            bench.prepare(4)
            row: Row = {"size": size, "residence": residence, "preset": SHAPES[size].preset}
            row |= {"batch_size": bench.config.train.batch_size, "backbone": bench.config.model.backbone}
            row |= bench.measure()
            row["samples_per_epoch"] = bench.learner.steps * bench.learner.batch_size
            row["peak_memory_bytes"] = torch.cuda.max_memory_allocated() if gpu else None
            rows.append(row)
            del bench
    return rows


def ratios(rows: list[Row]) -> dict[str, float]:
    """-> the cost of a sample at each size against the next smaller one, and the rate from host memory against the
    device's."""
    rate = {(row["size"], row["residence"]): row["samples_per_second"] for row in rows}
    sizes, residences = (sorted({key[i] for key in rate}) for i in range(2))
    found = {
        f"cost of a sample at {larger} / at {smaller}, {place}": rate[smaller, place] / rate[larger, place]
        for place in residences
        for smaller, larger in pairwise(sizes)
    }
    if len(residences) == 2:
        found |= {f"rate at {size}, host / device": rate[size, "host"] / rate[size, "device"] for size in sizes}
    return found


def table(rows: list[Row], found: dict[str, float]) -> str:
    lines = [f"{'size':>5}  {'samples':8}{'network':20}{'batch':>6}{'samples/s':>12}{'s/epoch':>10}{'peak GiB':>10}"]
    for row in rows:
        peak = f"{row['peak_memory_bytes'] / 2**30:10.1f}" if row["peak_memory_bytes"] else f"{'-':>10}"
        lines.append(
            f"{row['size']:5}  {row['residence']:8}{row['backbone']:20}{row['batch_size']:6}"
            f"{row['samples_per_second']:12,.0f}{row['seconds_per_epoch']:10.3f}{peak}"
        )
    return "\n".join([*lines, *(f"{name:45}{value:7.2f}" for name, value in found.items())])
