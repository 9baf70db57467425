"""Does it pay to decide? With the truth as the person: label errors and test accuracy after deciding some samples.

    python benchmarks/decisions.py digits DATA.npz ... --out results/own/decisions.json

A file is as for real_tables.py. 'digits' are those of scikit-learn as a table of 64 features, where each other class is
a candidate with probability 0.5. A fifth of the samples is for testing, drawn by the seed.

Samples are decided in three orders: ours (that of the audit page), by doubt alone (the lowest confidence first), and at
random (the mean of 20 draws where nothing is learnt). The person is right, or says another class in a tenth of the
cases. 'errors' are those among all labels once the decisions stand; with --learn also after the model has learnt from
them, with its test accuracy.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits

from ipll.engine.device import cpu_threads, describe
from ipll.own import Decisions, Model, from_arrays
from ipll.own.audit.order import asking_order

SHARES = (0.01, 0.02, 0.05, 0.1)
ERRS = (0.0, 0.1)
DRAWS = 20
Q = 0.5
Ints = npt.NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="'digits', or files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--learn", type=float, nargs="*", default=list(SHARES), help="shares that are learnt from too")
    parser.add_argument("--learn-seeds", type=int, default=5, help="seeds of which they are")
    parser.add_argument("--learn-errs", type=float, nargs="*", default=list(ERRS))
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--jobs", type=int, default=1, help="processes: one learns a data set, seed and kind of person")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--curve", type=Path, help="draws what a file of results holds, given as data, as an SVG")
    options = parser.parse_args()
    if options.curve:
        options.curve.write_text(curve(json.loads(Path(options.data[0]).read_text())["runs"]))
        return
    report: dict[str, Any] = {"command": " ".join(["python benchmarks/decisions.py", *sys.argv[1:]]), "runs": []}
    report["environment"] = describe(torch.device("cpu"))
    parts = [(data, seed, errs, options) for seed in range(options.seeds) for errs in ERRS for data in options.data]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for runs in as_completed([pool.submit(measured, *part) for part in parts]):
            report["runs"] += runs.result()
            print(json.dumps(runs.result()), flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report["runs"]))


def read(data: str, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], Ints]:
    if data == "digits":
        digits = load_digits()
        truth = digits.target.astype(np.int64)
        sets = np.random.default_rng([seed, 1]).random((len(truth), 10)) < Q
        sets[np.arange(len(truth)), truth] = True
        return digits.data.astype(np.float32), sets, truth
    with np.load(data) as file:
        return file["features"].astype(np.float32), file["candidates"].astype(bool), file["truth"].astype(np.int64)


def measured(data: str, seed: int, errs: float, options: argparse.Namespace) -> list[dict[str, Any]]:
    """-> a row for each order and share, by a person who errs so often; and, once a seed, one for nothing decided."""
    with cpu_threads(options.threads):
        features, sets, truth = read(data, seed)
        order = np.random.default_rng(seed).permutation(len(truth))
        test, train = np.split(order, [len(order) // 5])
        names = [str(c) for c in range(sets.shape[1])]
        samples = from_arrays(features[train], sets[train], names, [str(row) for row in train])
        model, right = Model.fit(samples, seed=seed, device="cpu"), truth[train]

        def labels(of: Model) -> Ints:
            return np.array(of.records.labels(of.names)).astype(np.int64)

        def accuracy(of: Model) -> float:
            said = of.predict(from_arrays(features[test]), device="cpu").labels
            return 100 * float((np.array(said).astype(np.int64) == truth[test]).mean())

        settled, row = labels(model), {"data": Path(data).stem, "seed": seed, "samples": len(train)}
        errors, runs = int((settled != right).sum()), []
        if errs == ERRS[0]:
            runs.append(row | {"order": "", "share": 0.0, "errors": errors, "accuracy": accuracy(model)})
        doubt = np.argsort(model.records.confidence, kind="stable")
        for share in SHARES:
            k = round(share * len(train))
            draws = [np.random.default_rng([seed, 2, draw]).permutation(len(train))[:k] for draw in range(DRAWS)]
            for name, asked in (("ours", [asking_order(model)[:k]]), ("doubt", [doubt[:k]]), ("random", draws)):
                left = []
                for rows in asked:
                    now = settled.copy()
                    now[rows] = said_by_person(right[rows], len(names), errs, seed)
                    left.append(int((now != right).sum()))
                run = row | {"order": name, "share": share, "errs": errs, "errors_decided": float(np.mean(left))}
                if share in options.learn and seed < options.learn_seeds and errs in options.learn_errs:
                    rows = asked[0]
                    said = [names[c] for c in said_by_person(right[rows], len(names), errs, seed)]
                    learnt = model.decide(Decisions.of([str(train[i]) for i in rows], said), device="cpu")
                    run |= {"errors_learnt": int((labels(learnt) != right).sum()), "accuracy": accuracy(learnt)}
                runs.append(run)
        return runs


def said_by_person(truth: Ints, classes: int, errs: float, seed: int) -> Ints:
    """-> what a person says, who takes another class for it in a share of the cases."""
    rng = np.random.default_rng([seed, 3])
    wrong = rng.random(len(truth)) < errs
    return np.where(wrong, (truth + rng.integers(1, classes, len(truth))) % classes, truth)


def summary(runs: list[dict[str, Any]]) -> str:
    """-> means over seeds, in percent of the samples, as a table in Markdown."""
    lines = ["| data | person errs | order | decided | errors left | errors left, learnt | test accuracy | seeds |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        key = (run["data"], run.get("errs", 0.0), run["order"] or "none", run["share"])
        groups.setdefault(key, []).append(run)
    for (data, errs, order, share), rows in sorted(groups.items()):

        def mean(key: str, scale: bool, rows: list[dict[str, Any]] = rows) -> str:
            values = [100 * row[key] / row["samples"] if scale else row[key] for row in rows if key in row]
            return f"{np.mean(values):.2f} ({len(values)})" if values else "-"

        left = mean("errors" if order == "none" else "errors_decided", True)
        cells = [data, f"{errs:.0%}", order, f"{share:.0%}", left, mean("errors_learnt", True), mean("accuracy", False)]
        lines.append(f"| {' | '.join(cells)} | {len(rows)} |")
    return "\n".join(lines)


COLOURS = {"ours": "#0072b2", "doubt": "#009e73", "random": "#d55e00"}
WORDS = {"ours": "our order", "doubt": "doubt alone", "random": "at random"}


def curve(runs: list[dict[str, Any]]) -> str:
    """-> wrong labels left, in percent of those before, by the share of samples decided; a drawing for each data set.
    Dashes: the person errs in a tenth of the cases."""
    width, height, left, top = 250, 220, 60, 34
    drawn = []
    for k, data in enumerate(sorted({run["data"] for run in runs})):
        own = [run for run in runs if run["data"] == data]
        before = {run["seed"]: run["errors"] for run in own if not run["order"]}

        def at(share: float, percent: float, k: int = k) -> str:
            return f"{k * (width + left) + left + share * 10 * width:.1f},{top + height * (1 - percent / 145):.1f}"

        x = k * (width + left) + left
        drawn.append(f'<text x="{x}" y="{top - 14}" font-weight="600">{data}</text>')
        for percent in (0, 50, 100):
            y = at(0, percent).split(",")[1]
            drawn.append(f'<path d="M{x} {y}h{width}" stroke="#c8cdd3"/><text x="{x - 6}" y="{y}" dy="4" ')
            drawn[-1] += f'text-anchor="end">{percent} %</text>'
        for share in (0, *SHARES):
            place = at(share, 0).split(",")[0]
            drawn.append(f'<text x="{place}" y="{top + height + 18}" text-anchor="middle">{100 * share:.0f}</text>')
        for order, errs in ((order, errs) for order in COLOURS for errs in ERRS):
            points = [at(0, 100)]
            for share in SHARES:
                rows = [r for r in own if (r["order"], r["share"], r.get("errs")) == (order, share, errs)]
                points.append(at(share, 100 * float(np.mean([r["errors_decided"] / before[r["seed"]] for r in rows]))))
            dash = ' stroke-dasharray="5 4"' if errs else ""
            line = (
                f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[order]}" stroke-width="2"{dash}/>'
            )
            drawn.append(line)
    for k, (order, colour) in enumerate(COLOURS.items()):
        drawn.append(f'<text x="{left + 110 * k}" y="{top + height + 44}" fill="{colour}">{WORDS[order]}</text>')
    total = len({run["data"] for run in runs}) * (width + left) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {top + height + 56}" font-size="13" '
        f'font-family="system-ui, sans-serif" fill="#5b6470"><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(drawn)}</svg>\n"
    )


if __name__ == "__main__":
    main()
