"""What does each part of the separation (Eq. 3) do? One variant a row, all on the same inputs.

    python benchmarks/separation.py collect digits --out kept
    python benchmarks/separation.py compare kept --out separation.json

`collect` runs PGDR and keeps what the separation is given in each task from the second on. `compare` joins the truth
by sample id and judges anew. A sample without a new candidate is certainly old, one without an old candidate certainly
new; the rest are undecided. Recalls are over all true-old or true-new samples of a task, the AUC over the undecided
ones, all averaged over tasks. `best mean` is the mean of both recalls at each task's best threshold. That one knows the
truth: no way to choose a threshold on the statistic does better.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor
from torch.nn import functional as F

import ipll
from ipll.benchmark.run import load_data
from ipll.component import Context
from ipll.config import Config, parse_overrides
from ipll.data.stream import Ints, Stream
from ipll.families.separation import Judgement, Separation, SeparationSettings
from ipll.families.separation.model_output import Confidence
from ipll.families.separation.prototype_distance import PrototypeDistance
from ipll.prototypes import Prototypes

OUR_OWN = SeparationSettings()
FOLDS = 5
REPORTED = ("separation_old_recall_per_task", "separation_new_recall_per_task")


def collect(options: argparse.Namespace) -> None:
    """Runs PGDR; writes a file for each task from the second on, and the run's settings and own recalls."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SystemExit(f"{out} is not empty: choose another folder.")
    judge = Separation.judge

    def keep_and_judge(self: Separation, features: Tensor, logits: Tensor, candidates: Tensor) -> Judgement:
        pool, mu, known, head = self.ctx.pool, self.ctx.prototypes.mu, self.ctx.prototypes.known, self.ctx.network.head
        kept = {"features": features.half(), "candidates": candidates, "ids": pool.ids[: pool.incoming]}
        kept |= {"prototypes": mu, "known": known, "weight": head.weight, "bias": head.bias}
        arrays: dict[str, Any] = {name: tensor.detach().cpu().numpy() for name, tensor in kept.items()}
        np.savez_compressed(out / f"task{self.ctx.task + 1:03}.npz", **arrays, old=self.ctx.old, seen=self.ctx.seen)
        return judge(self, features, logits, candidates)

    with patch.object(Separation, "judge", keep_and_judge):
        result = ipll.run(
            options.preset, seed=options.seed, device=options.device, data_root=options.data_root,
            **parse_overrides(options.set),
        )  # fmt: skip
    run = {name: result[name] for name in ("config", "environment", *REPORTED)}
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n")


class Task(NamedTuple):
    """What the separation was given, and the truth."""

    ctx: Context
    features: Tensor  # [n, dim]
    logits: Tensor  # [n, capacity]
    candidates: Tensor  # [n, capacity] bool
    old_candidates: Tensor  # [n, capacity] bool, those with a prototype
    certain: Tensor  # [n] bool: no new candidate
    undecided: Tensor  # [n] bool: old and new candidates
    truly_old: Tensor  # [n] bool

    def part(self, member: type[Separation], settings: SeparationSettings) -> Separation:
        part = member(settings)
        part.build(self.ctx)
        return part


def load(path: Path, stream: Stream, truth: Ints) -> Task:
    """Reads a task's file; truth [samples] is in order of arrival."""
    with np.load(path) as file:
        a = {name: file[name] for name in file.files}
    old, seen = int(a["old"]), int(a["seen"])
    if not np.array_equal(a["candidates"][:, :seen], stream.candidates[a["ids"]][:, stream.class_order[:seen]]):
        raise SystemExit(f"{path} holds other candidate sets than the stream of run.json: collect anew.")
    ctx = Context(stream.seed, len(a["known"]), torch.device("cpu"))
    ctx.old_mask[:old] = True
    ctx.new_mask[old:seen] = True
    x, candidates, mu, known, weight, bias = (
        torch.from_numpy(a[name]) for name in ("features", "candidates", "prototypes", "known", "weight", "bias")
    )
    ctx.prototypes = cast(Prototypes, SimpleNamespace(mu=mu, known=known))
    sets, certain = candidates & ctx.old_mask & known, ~(candidates & ctx.new_mask).any(dim=1)
    truly_old = torch.from_numpy(truth[a["ids"]] < old)
    logits = F.linear(x.float(), weight, bias)
    return Task(ctx, x.float(), logits, candidates, sets, certain, sets.any(dim=1) & ~certain, truly_old)


Statistic = Callable[[Task], Tensor]  # -> e [n], small for old samples; counts only where there is an old candidate
Rule = Callable[[Task, Tensor], Tensor]  # -> which samples are judged old [n] bool


def of(member: type[Separation], metric: str = OUR_OWN.metric) -> Statistic:
    settings = SeparationSettings(metric=metric)
    return lambda t: t.part(member, settings).statistic(t.features, t.logits, t.old_candidates)


EUCLIDEAN, COSINE, CONFIDENCE = of(PrototypeDistance, "euclidean"), of(PrototypeDistance, "cosine"), of(Confidence)


def largest_logit(t: Task) -> Tensor:
    return -t.logits.masked_fill(~t.old_candidates, -torch.inf).amax(dim=1)


def cosine_and_logit(t: Task) -> Tensor:
    """Their sum, each with mean 0 and deviation 1 over the undecided samples."""
    first, second = ((e - e[t.undecided].mean()) / e[t.undecided].std() for e in (COSINE(t), largest_logit(t)))
    return first + second


def per_class_scale(t: Task) -> Tensor:
    """Distances to a class in units of the median over the certain samples nearest to it, of all where it has few."""
    x, mu = F.normalize(t.features, dim=1), F.normalize(t.ctx.prototypes.mu, dim=1)
    distance = torch.cdist(x, mu).masked_fill(~t.old_candidates, torch.inf)
    nearest, which = distance[t.certain].min(dim=1)
    groups = [nearest[which == c] for c in range(len(mu))]
    return (distance / torch.stack([(g if len(g) > 2 else nearest).median() for g in groups])).amin(dim=1)


def regression(t: Task) -> Tensor:
    """Log-odds of a logistic regression on all scores and set sizes, fitted to the truth of the other folds."""
    sizes = [t.old_candidates.sum(dim=1), (t.candidates & t.ctx.new_mask).sum(dim=1)]
    scores = torch.stack([COSINE(t), EUCLIDEAN(t), largest_logit(t), CONFIDENCE(t), *sizes], dim=1)[t.undecided]
    scaled, new = (scores - scores.mean(dim=0)) / scores.std(dim=0), ~t.truly_old[t.undecided]
    model = LogisticRegression(class_weight="balanced")
    odds = cross_val_predict(model, scaled.numpy(), new.numpy(), cv=FOLDS, method="decision_function")
    return torch.zeros(len(t.features)).masked_scatter(t.undecided, torch.from_numpy(odds).float())


class Given(Separation):
    """The library's mixture and threshold, on a statistic that is there already."""

    e: Tensor

    def statistic(self, features: Tensor, logits: Tensor, old_candidates: Tensor) -> Tensor:
        return self.e


def mixture(settings: SeparationSettings = OUR_OWN, *, undecided_only: bool = False) -> Rule:
    """The library's way from e to a judgement, fitted to all samples with an old candidate or to the undecided."""

    def rule(t: Task, e: Tensor) -> Tensor:
        rows, old = ~(t.certain & undecided_only), torch.zeros_like(t.certain)
        part = t.part(Given, settings)
        part.e = e[rows]
        old[rows] = part.judge(t.features[rows], t.logits[rows], t.candidates[rows]).old
        return old

    return rule


def quantile(share: float) -> Rule:
    """Old is what lies below this quantile of the certain samples."""
    return lambda t, e: t.undecided & (e <= e[t.certain].quantile(share))


def anchored(alpha: float, iterations: int = 50) -> Rule:
    """A mixture whose one component is the certain samples' Gaussian; EM fits its share and the other component."""

    def rule(t: Task, e: Tensor) -> Tensor:
        x, sure, share = e[t.undecided], e[t.certain], torch.tensor(0.1)
        spread, mean, deviation = sure.std() + 1e-3, x.mean(), x.std()
        for _ in range(iterations):
            old = share.log() - spread.log() - ((x - sure.mean()) / spread) ** 2 / 2
            p = torch.sigmoid(old - (1 - share).log() + deviation.log() + ((x - mean) / deviation) ** 2 / 2)
            share, weights = p.mean().clamp(0.001, 0.9), (1 - p) / (1 - p).sum()
            mean = (weights * x).sum()
            deviation = (weights * (x - mean) ** 2).sum().sqrt() + 1e-3
        return t.undecided.masked_scatter(t.undecided, p > alpha)

    return rule


class Variant(NamedTuple):
    name: str
    statistic: Statistic
    rule: Rule
    certain: bool = True  # are certain samples old, whatever the rule says?


STRICT = SeparationSettings(max_iter=100, tol=1e-3, reg=1e-6)  # as scikit-learn's GaussianMixture is by default
CONVERGED = SeparationSettings(max_iter=10_000, tol=1e-10)
DEFAULT = "+ DivideMix's tolerance: the default"
VARIANTS = (
    Variant("Eq. 3: Euclidean, scikit-learn's tolerance", EUCLIDEAN, mixture(STRICT), certain=False),
    Variant("+ certain samples are old", EUCLIDEAN, mixture(STRICT)),
    Variant("+ cosine distance", COSINE, mixture(STRICT)),
    Variant(DEFAULT, COSINE, mixture()),
    Variant("default, Euclidean", EUCLIDEAN, mixture()),
    Variant("default, mixture of undecided samples only", COSINE, mixture(undecided_only=True)),
    Variant("default, EM to convergence", COSINE, mixture(CONVERGED)),
    Variant("default, per-class scale", per_class_scale, mixture()),
    Variant("default, confidence", CONFIDENCE, mixture()),
    Variant("default, largest logit", largest_logit, mixture()),
    Variant("default, cosine plus logit", cosine_and_logit, mixture()),
    *(Variant(f"threshold: quantile {q} of certain samples", COSINE, quantile(q)) for q in (0.8, 0.9)),
    *(Variant(f"mixture anchored at certain samples, alpha {a}", COSINE, anchored(a)) for a in (0.8, 0.5)),
)
ORACLE = Variant("knows the truth: regression on all scores", regression, lambda t, e: t.undecided & (e < 0))


def best_mean(t: Task, e: Tensor, *, certain: bool) -> float:
    """-> the mean of old and new recall, in percent, at the threshold on e that makes it largest."""
    rows = t.old_candidates.any(dim=1) & ~(t.certain & certain)
    values, order = e[rows].sort()
    old, share = t.truly_old[rows][order], 1 / t.truly_old.sum()
    gain = F.pad(torch.where(old, share, -1 / (~t.truly_old).sum()).cumsum(dim=0), (1, 0))  # judging the first k old
    apart = F.pad(values.diff() > 0, (1, 1), value=True)  # no threshold parts equal values
    return float(50 * (1 + (t.certain & certain).sum() * share + gain[apart].max()))


def measure(variant: Variant, tasks: list[Task]) -> dict[str, Any]:
    """-> a row: means over tasks, and the values of each."""
    per_task: dict[str, list[float]] = {"old_recall": [], "new_recall": [], "auc": [], "best_mean": []}
    for t in tasks:
        e = variant.statistic(t)
        judged = variant.rule(t, e) | (t.certain & variant.certain)
        per_task["old_recall"].append(100 * float(judged[t.truly_old].double().mean()))
        per_task["new_recall"].append(100 * float((~judged[~t.truly_old]).double().mean()))
        per_task["auc"].append(float(roc_auc_score(t.truly_old[t.undecided], -e[t.undecided])))
        per_task["best_mean"].append(best_mean(t, e, certain=variant.certain))
    row = {name: float(np.mean(values)) for name, values in per_task.items()}
    row["mean"] = (row["old_recall"] + row["new_recall"]) / 2
    return {"variant": variant.name, **row, **{f"{name}_per_task": values for name, values in per_task.items()}}


def compare(options: argparse.Namespace) -> None:
    run = json.loads((options.folder / "run.json").read_text())
    config = Config.from_table(run["config"])
    source = load_data(config.data, options.data_root)
    stream = Stream.build(source, config.stream, config.seed)
    truth = stream.arrival[source.train_labels]
    tasks = [load(path, stream, truth) for path in sorted(options.folder.glob("task*.npz"))]
    fewest = min(int((t.truly_old & t.undecided).sum()) for t in tasks)
    if fewest == 0:
        raise SystemExit("a task has no undecided old sample: collect with a larger stream.blurry or stream.q.")
    print("| | old recall | new recall | mean | AUC | best mean |\n|---|---|---|---|---|---|")
    rows = []
    for variant in (*VARIANTS, ORACLE) if fewest >= FOLDS else VARIANTS:
        rows.append(row := measure(variant, tasks))
        recalls = " | ".join(f"{row[name]:.1f}" for name in ("old_recall", "new_recall", "mean"))
        print(f"| {variant.name} | {recalls} | {row['auc']:.3f} | {row['best_mean']:.1f} |")
    if options.out:
        options.out.write_text(json.dumps({"run": run, "rows": rows}, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first, second = commands.add_parser("collect"), commands.add_parser("compare")
    first.add_argument("preset")
    first.add_argument("--out", type=Path, required=True)
    first.add_argument("--seed", type=int, default=0)
    first.add_argument("--device", default="auto")
    first.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    second.add_argument("folder", type=Path)
    second.add_argument("--out", type=Path)
    for command, call in ((first, collect), (second, compare)):
        command.add_argument("--data-root", type=Path)
        command.set_defaults(call=call)
    options = parser.parse_args(arguments)
    options.call(options)


if __name__ == "__main__":
    main()
