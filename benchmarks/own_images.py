"""A table of 100,000 image files: how long until training starts, and how much memory that takes.

    python benchmarks/own_images.py --out own_images.json

Writes the images (noise, as PNG files of 32 x 32) to a temporary folder first, which does not count. Then a fresh
process reads the table, decodes the images and trains the first step of the first epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from ipll.engine.device import describe, peak_memory
from ipll.errors import Interrupted
from ipll.learner import Position
from ipll.own import Model, read_table
from ipll.progress import Plan, Silent

CLASSES = 50


class StopsAtFirstStep(Silent):
    def begin(self, plan: Plan, position: Position) -> None:
        self.begun = clocks()
        os.kill(os.getpid(), signal.SIGINT)  # noticed after the first step


def clocks() -> npt.NDArray[np.float64]:
    """-> wall-clock and processor time, the latter over all threads."""
    return np.array([time.perf_counter(), time.process_time()])


def write(folder: Path, count: int, size: int) -> Path:
    rng = np.random.default_rng(0)
    lines = ["image,candidates"]
    for part in range(0, count, 1000):
        (folder / str(part)).mkdir()
        pixels = rng.integers(0, 256, (1000, size, size, 3), np.uint8)
        for index in range(min(1000, count - part)):
            name = f"{part}/{index}.png"
            Image.fromarray(pixels[index]).save(folder / name, compress_level=1)
            lines.append(f"{name},{index % CLASSES}|{(7 * index + 1) % CLASSES}")
    table = folder / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def measure(table: Path) -> dict[str, Any]:
    before, start = peak_memory(torch.device("cpu")), clocks()
    samples = read_table(table)
    read = clocks()
    reporter = StopsAtFirstStep()
    try:
        Model.fit(samples, device="cpu", reporter=reporter)
    except Interrupted:
        stepped = clocks()
    parts = {"table": read - start, "decoding": reporter.begun - read, "first_step": stepped - reporter.begun}
    return {
        "images": len(samples),
        "seconds": {name: float(part[0]) for name, part in parts.items()},
        "processor_seconds": {name: float(part[1]) for name, part in parts.items()},
        "memory_before_bytes": before,
        "peak_memory_bytes": peak_memory(torch.device("cpu")),
        "environment": describe(torch.device("cpu")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)  # for the process that is measured
    options = parser.parse_args()
    if options.table:
        print(json.dumps(measure(options.table)))
        return
    with tempfile.TemporaryDirectory() as folder:
        table = write(Path(folder), options.images, options.size)
        again = [sys.executable, __file__, "--table", str(table)]
        row = json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
    as_bytes = options.images * 3 * options.size**2
    print(f"{row['images']:,} images of {options.size} pixels: {as_bytes / 2**20:.0f} MiB as bytes")
    for key in ("seconds", "processor_seconds"):
        cells = ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in row[key].items())
        print(f"{key.replace('_', ' ')}: {cells}, in all {sum(row[key].values()):.1f}")
    print(f"memory {row['memory_before_bytes'] / 2**20:.0f} -> {row['peak_memory_bytes'] / 2**20:.0f} MiB at most")
    if options.out:
        options.out.write_text(json.dumps({"command": " ".join(sys.argv)} | row, indent=1) + "\n")


if __name__ == "__main__":
    main()
