"""Every named method on digits: runs what is missing, and prints the tables of docs/methods.md.

    python benchmarks/digits_table.py --jobs 2
    python benchmarks/digits_table.py --plugin fd.py --out runs/feature_distillation.json \\
        proden+fd pgdr/fd proden+lucir

All rows of a file come from one commit: those of another are measured anew. Stop it and call it again as you like.
The file in results/ is a copy: written there, it would itself be a change to the commit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import ipll
from ipll.engine.device import describe
from ipll.method import canonical, method_table
from ipll.plugins import load_plugins

RETENTIONS = ("icarl", "bic", "wa", "er-ace", "ancl", "c-flat", "pgdr")
KEPT = ("average_incremental_accuracy", "last_accuracy", "forgetting")


def measure(job: tuple[str, int, list[str]]) -> dict[str, Any]:
    method, seed, plugins = job
    torch.set_num_threads(1)  # processes share the cores
    result = ipll.run("digits", method, seed=seed, device="cpu", plugins=plugins)
    row = {"method": method, "seed": seed} | {key: result[key] for key in KEPT}
    return row | {"pseudo_label_accuracy": result["pseudo_label_accuracy_per_task"][-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="default: every named method that is no alias")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/all_methods.json"))
    options = parser.parse_args()
    load_plugins(options.plugin)
    names = options.methods or [name for name in method_table() if canonical(name) == name]
    torch.set_num_threads(1)
    here = describe(torch.device("cpu"))
    table: dict[str, Any] = {"command": "ipll run digits --method NAME --seed N", "environment": here, "runs": []}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.out.exists():
        found = json.loads(options.out.read_text())
        if found["environment"]["commit"] == here["commit"]:
            table = found
    done = {(row["method"], row["seed"]) for row in table["runs"]}
    wanted = [(name, seed, options.plugin) for name in names for seed in range(options.seeds)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap_unordered(measure, [job for job in wanted if job[:2] not in done]):
            table["runs"].append(row)
            options.out.write_text(json.dumps(table, indent=1) + "\n")
            print(f"{row['method']:32}{row['seed']:3}{row['average_incremental_accuracy']:8.2f}", flush=True)
    table["runs"].sort(key=lambda row: (names.index(row["method"]), row["seed"]))
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    print_tables(table["runs"], names)


def print_tables(runs: list[dict[str, Any]], names: list[str]) -> None:
    """As Markdown: pairs of disambiguation and retention, then PGDR's variants; what fits neither, name by name."""
    values: dict[str, list[float]] = {}
    for row in runs:
        values.setdefault(row["method"], []).append(row["average_incremental_accuracy"])

    def cell(name: str) -> str:
        found = values.get(canonical(name) if name in method_table() else name, [])
        return f"{mean(found):.1f} ± {stdev(found):.1f}" if len(found) > 1 else "-"

    if "pgdr" in values:
        _print_table(
            ("", "alone", *(f"+{name}" for name in RETENTIONS)),
            ("proden", "pico", "papi", "terial"),
            lambda row, column: cell(row if column == "alone" else row + column),
        )
        variants = [name.partition("/")[2] for name in method_table() if name.startswith("pgdr/")]
        _print_table(
            ("variant", "pgdr", "pico+pgdr", "papi+pgdr"),
            ("(none)", *(f"/{name}" for name in variants if f"papi+pgdr/{name}" in method_table())),
            lambda row, column: cell(column if row == "(none)" else column + row),
        )
    else:
        _print_table(("method", "accuracy"), tuple(names), lambda row, _: cell(row))


def _print_table(columns: tuple[str, ...], rows: tuple[str, ...], cell: Callable[[str, str], str]) -> None:
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print(f"| `{row}` | " + " | ".join(cell(row, column) for column in columns[1:]) + " |")


if __name__ == "__main__":
    main()
