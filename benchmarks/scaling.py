"""How time and memory of the parts that see a whole task grow with samples, classes and memory size.

    python benchmarks/scaling.py --out scaling.json

The parts are the real ones; only the network is replaced by features drawn around class centres. Four sweeps: samples
at 500 per class (so classes grow too), classes at a fixed number of samples, memory size, and one class that holds
every sample.

Some work is inherent in the shape of the data: candidate sets and soft targets are dense [n, classes], and a network
gives n x classes logits. So four parts touch n x classes entries: `predictions` (the head over all samples, the
yardstick for the others), `separation` (a distance for each sample and class), `prototypes` (which classes have any
weight; the means themselves read each feature once) and `pseudo-labels`. With them the exponent is that of growth with
n x classes; with the memories it is that of growth with what the sweep varies. 1 is linear. The exponent of a row
compares it with the row above, and small sizes are mostly overhead.

Seconds are the best of three runs, of fewer where they take long: wall-clock time on a GPU, processor time of one
thread on a CPU, which other work on the machine disturbs less. Memory is the most that a part needed beyond the data
it was given: PyTorch's own count on a GPU; on a CPU the process's peak, which needs Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ipll.component import Batch, Component, Context, uniform_over
from ipll.engine.device import cpu_threads, describe, find_device
from ipll.families.disambiguation.pgdr import Pgdr
from ipll.families.memory.by_class import RepresentativeDiverse
from ipll.families.memory.herding import Herding
from ipll.families.separation.prototype_distance import PrototypeDistance
from ipll.networks.network import LinearHead, Network, Output
from ipll.pool import Pool
from ipll.prototypes import Prototypes, PrototypeSettings

SAMPLES = (5_000, 15_000, 50_000, 150_000, 500_000)
CLASSES = (10, 30, 100, 300, 1_000)
MEMORY = (500, 1_500, 5_000, 15_000, 50_000)
ONE_CLASS = (10_000, 30_000, 100_000)
PER_CLASS, KEPT_PER_CLASS, MIDDLE = 500, 20, 50_000
DISTRACTORS = 9  # wrong candidates drawn for each sample; q = 0.1 over 100 classes gives as many
BATCH = 256
ENOUGH = 3.0  # seconds after which a measurement is not repeated

TABLES = ("predictions", "separation", "prototypes", "pseudo-labels")  # the parts that touch n x classes entries
ALL = ("predictions", "separation", "prototypes", "representative-diverse", "herding", "pseudo-labels")
MEMORIES = ("representative-diverse", "herding")


class Case(NamedTuple):
    n: int
    classes: int
    m: int


class Sweep(NamedTuple):
    name: str
    varies: str  # a field of Case
    cases: tuple[Case, ...]
    parts: tuple[str, ...]


def sweeps(largest: int) -> Iterator[Sweep]:
    middle, one = min(MIDDLE, largest), tuple(n for n in ONE_CLASS if n <= largest) or (largest,)
    sizes = tuple(n for n in SAMPLES if n <= largest) or (largest,)
    growing = tuple(Case(n, -(-n // PER_CLASS), -(-n // PER_CLASS) * KEPT_PER_CLASS) for n in sizes)
    yield Sweep(f"samples, {PER_CLASS} per class", "n", growing, ALL)
    yield Sweep("classes", "classes", tuple(Case(middle, c, 2_000) for c in CLASSES), ALL)
    yield Sweep("memory size", "m", tuple(Case(middle, 100, m) for m in MEMORY if m <= middle), MEMORIES)
    yield Sweep("one class", "n", tuple(Case(n, 1, 2_000) for n in one), ("prototypes", *MEMORIES))


class GivenFeatures(Context):
    """A context in the middle of a stream, half of its classes old. Features stand for the backbone's."""

    def __init__(self, case: Case, dim: int, device: torch.device) -> None:
        super().__init__(0, case.classes, device)
        n, classes = case.n, case.classes
        generator = torch.Generator(device).manual_seed(0)
        centres = torch.randn(classes, dim, device=device, generator=generator)
        true = torch.randint(classes, (n,), device=device, generator=generator)
        features = torch.randn(n, dim, device=device, generator=generator) + centres[true]
        candidates = torch.zeros(n, classes, dtype=torch.bool, device=device)
        candidates.scatter_(1, torch.randint(classes, (n, DISTRACTORS), device=device, generator=generator), True)
        candidates.scatter_(1, true[:, None], True)

        self.task, self.old, self.seen = 1, classes // 2, classes
        self.old_mask[: self.old], self.new_mask[self.old :] = True, True
        head = LinearHead(dim, classes).to(device)
        head.weight.data.copy_(centres / dim)
        head.born.fill_(True)
        self.network = cast(Network, SimpleNamespace(dim=dim, head=head))
        none = torch.zeros(n, dtype=torch.bool, device=device)
        ids = torch.arange(n, device=device)
        p = uniform_over(candidates)
        self.pool = Pool(ids, features, candidates, p, n, held_out=none, judged_old=none.clone(), certain=none.clone())
        self._features = features
        self.predicted = super().pool_predictions()
        self.prototypes = self.add(Prototypes(PrototypeSettings()))
        self.prototypes.mu.copy_(centres)
        self.prototypes.known.fill_(True)

    def add(self, part: Any) -> Any:
        cast(Component, part).build(self)
        return part

    def pool_predictions(self) -> Tensor:
        """Made once, so that no part is charged for the head."""
        return self.predicted


def works(ctx: GivenFeatures, m: int) -> dict[str, Callable[[], object]]:
    """-> what each part does in one task. Of the pseudo-labels one epoch, as the training loop goes through it."""
    features, pool = ctx.pool_features(), ctx.pool
    separation = ctx.add(PrototypeDistance(PrototypeDistance.Settings()))
    logits = ctx.network.head(features[:BATCH])  # the forward pass is not measured: one batch's logits serve for all
    labels = ctx.add(Pgdr(Pgdr.Settings()))
    labels.begin_epoch()

    def pseudo_labels() -> None:
        generator = torch.Generator(ctx.device).manual_seed(0)
        order = torch.randperm(pool.incoming, device=ctx.device, generator=generator)
        for rows in torch.split(order, BATCH):
            out = Output(features[rows], logits[: len(rows)], logits[: len(rows)], features[:0])
            batch = Batch(rows, pool.candidates[rows], pool.p[rows], rows >= pool.incoming, {})
            _, pool.p[rows] = labels.targets(batch.p, {"weak": out}, batch)

    return {
        "predictions": lambda: Context.pool_predictions(ctx),
        "separation": lambda: separation.judge(features, features[:, :0], pool.candidates),
        "prototypes": lambda: ctx.prototypes.update(features, ctx.predicted, pool.p),
        "representative-diverse": ctx.add(RepresentativeDiverse(RepresentativeDiverse.Settings(size=m))).select,
        "herding": ctx.add(Herding(Herding.Settings(size=m))).select,
        "pseudo-labels": pseudo_labels,
    }


def measure(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """-> seconds, and the most megabytes held at once beyond those held before."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    seconds: list[float] = []
    before = _start_memory(device)
    peak = math.nan
    while len(seconds) < 3 and sum(seconds) < ENOUGH:
        start = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(clock() - start)
        if len(seconds) == 1:
            peak = _peak_memory(device) - before
    return min(seconds), max(peak, 0.0) / 2**20


def _start_memory(device: torch.device) -> float:
    """Bytes held now; from here on the peak is counted anew."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    if sys.platform != "linux":
        return math.nan
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator keeps would hide what is taken next
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM") if sys.platform == "linux" else math.nan


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def run(sweep: Sweep, dim: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Measures a sweep part by part; prints and yields each row with the exponents over the row before."""
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in sweep.parts}
    for case in sweep.cases:
        ctx = GivenFeatures(case, dim, device)
        todo = works(ctx, case.m)
        for part in sweep.parts:
            seconds, megabytes = measure(todo[part], device)
            table = part in TABLES
            size = case.n * case.classes if table else getattr(case, sweep.varies)
            where = {"sweep": sweep.name, "part": part, **case._asdict()}
            against = {"against": "n x classes" if table else sweep.varies, "size": size}
            rows[part].append({**where, "seconds": seconds, "peak_mb": megabytes, **against})
        del ctx, todo
    for part in sweep.parts:
        for above, row in zip([None, *rows[part]], rows[part], strict=False):
            for quantity in ("seconds", "peak_mb"):
                row[f"{quantity}_exponent"] = above and _exponent(above, row, quantity)
            _print(row)
            yield row


def _exponent(above: dict[str, Any], row: dict[str, Any], quantity: str) -> float | None:
    if min(above[quantity], row[quantity]) <= 0:
        return None
    return math.log(row[quantity] / above[quantity]) / math.log(row["size"] / above["size"])


def _print(row: dict[str, Any]) -> None:
    exponents = [row["seconds_exponent"], row["peak_mb_exponent"]]
    shown = "".join(f"{'' if value is None else format(value, '.2f'):>8}" for value in exponents)
    print(
        f"{row['part']:24}{row['n']:9,}{row['classes']:9,}{row['m']:9,}{row['seconds']:10.3f}{row['peak_mb']:10.1f}"
        f"{shown}  {row['against']}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the rows and the environment here, as JSON")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dim", type=int, help="length of a feature; default 512 on a GPU, 64 on a CPU")
    parser.add_argument("--largest", type=int, help="most samples; default 500,000 on a GPU, 150,000 on a CPU")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    gpu = device.type == "cuda"
    dim = options.dim or (512 if gpu else 64)
    with cpu_threads(1), torch.no_grad():
        result = measure_all(dim, options.largest or (500_000 if gpu else 150_000), device)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def measure_all(dim: int, largest: int, device: torch.device) -> dict[str, Any]:
    environment = describe(device)
    print(f"{environment['hardware']}, torch {environment['packages']['torch']}, {environment['threads']} thread; "
          f"features of length {dim}")  # fmt: skip
    rows: list[dict[str, Any]] = []
    for sweep in sweeps(largest):
        print(f"\n{sweep.name}\n{'part':24}{'n':>9}{'classes':>9}{'m':>9}{'seconds':>10}{'peak MB':>10}"
              f"{'exponents: time, memory':>26}")  # fmt: skip
        rows.extend(run(sweep, dim, device))
    return {"environment": environment, "dim": dim, "rows": rows}


if __name__ == "__main__":
    main()
