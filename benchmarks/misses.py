"""PGDR and its robust variant on digits whose true label is now and then not among the candidates.

    python benchmarks/misses.py

Runs what is missing, and prints the table of docs/misses.md. All rows of a file come from one commit and one set of
settings: otherwise they are measured anew. The file in results/ is a copy: written there, it would itself be a change
to the commit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import ipll
from ipll.engine.device import describe
from ipll.method import method_entry

METHODS = ("pgdr", "pgdr/robust")
MISSES = (0.0, 0.05, 0.1, 0.2, 0.3)
MEASURES = ("average_incremental_accuracy", "last_accuracy", "pseudo_label_accuracy", "memory_purity")


def measure(job: tuple[str, float, int]) -> dict[str, Any]:
    method, miss, seed = job
    torch.set_num_threads(1)  # processes share the cores
    result = ipll.run("digits", method, seed=seed, device="cpu", stream__miss=miss)
    return {
        "method": method,
        "miss": miss,
        "seed": seed,
        "average_incremental_accuracy": result["average_incremental_accuracy"],
        "last_accuracy": result["last_accuracy"],
        "pseudo_label_accuracy": mean(result["pseudo_label_accuracy_per_task"]),
        "memory_purity": result["memory_purity_per_task"][-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/misses.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = describe(torch.device("cpu"))
    table: dict[str, Any] = {
        "command": "ipll run digits --method METHOD --seed N --set stream.miss=MISS",
        "environment": here,
        "miss_rate": method_entry("pgdr/robust")["disambiguation.miss_rate"],
        "runs": [],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.out.exists():
        found = json.loads(options.out.read_text())
        if (found["environment"]["commit"], found["miss_rate"]) == (here["commit"], table["miss_rate"]):
            table = found
    done = {(row["method"], row["miss"], row["seed"]) for row in table["runs"]}
    wanted = [(method, miss, seed) for miss in MISSES for method in METHODS for seed in options.seeds]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap_unordered(measure, [job for job in wanted if job not in done]):
            table["runs"].append(row)
            options.out.write_text(json.dumps(table, indent=1) + "\n")
            print(f"{row['method']:12}{row['miss']:6}{row['seed']:4}{row['pseudo_label_accuracy']:8.2f}", flush=True)
    table["runs"].sort(key=lambda row: wanted.index((row["method"], row["miss"], row["seed"])))
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    print_table(table["runs"])


def print_table(runs: list[dict[str, Any]]) -> None:
    """As Markdown, mean and standard deviation over seeds."""
    print("\n| misses | method | " + " | ".join(name.replace("_", " ") for name in MEASURES) + " |\n|" + "---|" * 6)
    for miss in MISSES:
        for method in METHODS:
            rows = [row for row in runs if (row["method"], row["miss"]) == (method, miss)]
            values = [[row[name] for row in rows] for name in MEASURES]
            cells = [f"{mean(v):.2f} ± {stdev(v):.2f}" if len(v) > 1 else "-" for v in values]
            print(f"| {miss:.0%} | `{method}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
