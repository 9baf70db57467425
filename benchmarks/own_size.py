"""Large tables: `ipll fit`, updates and predictions, with the settings that are chosen from the data.

    python benchmarks/own_size.py --out results/own/size.json
    python benchmarks/own_size.py --rows 100000 --updates 10 --out updates.json     # updates alone: a small fit first
    python benchmarks/own_size.py --memory --out memory.json                        # what draws change in the memory

The table is a CSV file: 20 features and 50 classes, each a mixture of three Gaussians. A third of the rows have one
candidate; the others name each of the five most similar classes with 30 % and any other with 3 %. Every update brings
--batch rows, a tenth of them of a class that was not there before. Each command is a process of its own: seconds by the
clock, of the processor and by stage, and the peak of memory, are its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import torch

from ipll.engine.device import describe, peak_memory
from ipll.learner import Position
from ipll.own import Model, evaluate, fit_folder, from_arrays, read_given, update_folder
from ipll.own.reading.given import read_to_predict
from ipll.progress import Listener, Plan

FEATURES, CLASSES, GAUSSIANS, ALIKE = 20, 50, 3, 5
TEST = 100_000
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Data(NamedTuple):
    features: Floats  # [n, FEATURES]
    sets: Bools  # [n, classes]
    truth: Ints  # [n]


def make(n: int, classes: int, seed: int, part: int, *, newest: float = 0.0, most: int = 2 * CLASSES) -> Data:
    """-> n rows of the first `classes`, a share `newest` of the last one; another `part` is other rows of the same."""
    shape = np.random.default_rng([seed, 0])
    centres = 1.1 * shape.normal(size=(most, GAUSSIANS, FEATURES))
    spread = shape.uniform(0.6, 1.4, (most, GAUSSIANS, 1))
    means = centres[:classes].mean(1)
    alike = np.argsort(((means[:, None] - means) ** 2).sum(-1), 1)[:, 1 : ALIKE + 1]
    rng = np.random.default_rng([seed, 1, part])
    truth = np.where(rng.random(n) < newest, classes - 1, rng.integers(classes - (newest > 0), size=n))
    which = rng.integers(GAUSSIANS, size=n)
    noise = rng.normal(size=(n, FEATURES))
    features = (centres[truth, which] + spread[truth, which] * noise).astype(np.float32)
    several, rows = rng.random(n) < 2 / 3, np.arange(n)
    sets = several[:, None] & (rng.random((n, classes), dtype=np.float32) < 0.03)
    for k in range(min(ALIKE, classes - 1)):
        sets[rows, alike[truth, k]] |= several & (rng.random(n) < 0.3)
    sets[rows, truth] = True
    return Data(features, sets, truth)


def write(path: Path, data: Data, first: int) -> None:
    """Writes a table whose ids count on from `first`."""
    names = pa.array([f"class{c}" for c in range(data.sets.shape[1])])
    offsets = np.append(0, np.cumsum(data.sets.sum(1)))
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names.take(pa.array(np.nonzero(data.sets)[1])))
    columns = {
        "id": pc.cast(pa.array(np.arange(first, first + len(data.truth))), pa.string()),
        "candidates": pc.binary_join(lists, "|"),
        "label": names.take(pa.array(data.truth)),
    }
    columns |= {f"features.f{k}": pa.array(column) for k, column in enumerate(data.features.T)}
    pacsv.write_csv(pa.table(columns), path)


class Stages(Listener):
    """Seconds of each stage, in their order."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = [("reading", time.perf_counter())]

    def stage(self, words: str) -> None:
        self.begun.append((words.partition(",")[0], time.perf_counter()))

    def begin(self, plan: Plan, position: Position) -> None:
        self.plan = plan
        self.stage("training")

    def step(self, position: Position, steps: int, phases: int) -> None:
        if self.plan.doing(position, phases) == self.plan.last:
            self.stage(self.plan.last)

    def seconds(self) -> dict[str, float]:
        ends = [*(when for _, when in self.begun[1:]), time.perf_counter()]
        return {name: end - start for (name, start), end in zip(self.begun, ends, strict=True)}


def learn(folder: Path, table: Path, *, update: bool) -> dict[str, Any]:
    stages = Stages()
    samples = read_given(table, update=update).train
    if update:
        model = update_folder(folder, samples, device="cpu", reporter=stages)
    else:
        model = fit_folder(folder, samples, device="cpu", reporter=stages)
    seconds = stages.seconds()
    records = model.records
    here = np.flatnonzero(records.update == model.updates)
    settled = np.array(records.labels(model.names), object)[here]
    right, sure = settled == np.array(records.given, object)[here], records.confidence[here] >= 0.95
    chosen = ("model.members", "train.batch_size", "train.epochs", "memory.size", "memory.replayed")
    return {
        "rows": len(here),
        "classes": len(model.names),
        "stages": seconds,
        "settled": 100 * float(right.mean()),
        "sure": 100 * float(sure.mean()),
        "wrong_among_sure": 100 * float((~right[sure]).mean()) if sure.any() else 0.0,
        "kept": int(records.in_memory.sum()),
        "chosen": {setting: value for setting, value, _ in model.choices() if setting in chosen},
        "folder_megabytes": sum(file.stat().st_size for file in folder.iterdir()) / 1e6,
    }


def predict(folder: Path, table: Path) -> dict[str, Any]:
    samples = read_to_predict(table, skip_bad=False)
    found = evaluate(Model.load(folder).predict(samples, device="cpu"), samples)
    return {"rows": len(samples), "accuracy": 100 * found.accuracy, "calibration_error": 100 * found.calibration_error}


def measured(command: Callable[..., dict[str, Any]], *arguments: Any, **options: Any) -> dict[str, Any]:
    """-> what a command says, in a process of its own, and what it took."""
    context = multiprocessing.get_context("spawn")
    answers: Any = context.SimpleQueue()
    process = context.Process(target=_answer, args=(answers, command, arguments, options))
    started = time.perf_counter()
    process.start()
    while not answers.empty() or process.is_alive():
        if not answers.empty():
            found: dict[str, Any] = answers.get()
            process.join()
            return {"command": command.__name__, "seconds": time.perf_counter() - started} | found
        time.sleep(0.05)
    raise SystemExit(f"{command.__name__} failed, see above")


def _answer(answers: Any, command: Callable[..., dict[str, Any]], arguments: Any, options: Any) -> None:
    found = command(*arguments, **options)
    peak = peak_memory(torch.device("cpu")) / 1e9
    answers.put(found | {"processor_seconds": time.process_time(), "peak_gigabytes": peak})


def commands(options: argparse.Namespace, folder: Path, keep: Callable[[dict[str, Any]], None]) -> None:
    table, test, model = folder / "table.csv", folder / "test.csv", folder / "model"
    first, n = 0, options.rows
    for number in range(options.updates + 1):
        classes = CLASSES + number
        data = make(n, classes, options.seed, number, newest=0.1 if number else 0.0)
        write(table, data, first)
        write(test, make(TEST, classes, options.seed, 1000), 0)
        del data
        keep(measured(learn, model, table, update=number > 0))
        keep(measured(predict, model, test))
        first, n = first + n, options.batch


def memory(options: argparse.Namespace, _: Path, keep: Callable[[dict[str, Any]], None]) -> None:
    """Ten classes, 20,000 samples each, five and five; a memory of 2,000 of the first half's. All samples of a class
    are compared for it, or draws of them."""
    old, both, each = 5, 10, 20_000
    first = make(old * each, old, options.seed, 0, most=both)
    later = make(both * each, both, options.seed, 1, most=both)
    later = Data(*(values[later.truth >= old] for values in later))
    test = make(TEST, both, options.seed, 1000, most=both)
    names = [str(c) for c in range(both)]
    for compared in (each * old, 5_000, 1_000):
        settings = {"memory.size": 2_000, "memory.compared": compared}
        model = Model.fit(from_arrays(first.features, first.sets, names[:old]), device="cpu", settings=settings)
        kept = model.records.in_memory
        near = [_near(model, first, kept, c) for c in range(old)]
        model = model.update(from_arrays(later.features, later.sets, names), device="cpu")
        said = model.predict(from_arrays(test.features), device="cpu")
        right = np.array([int(name) for name in said.labels]) == test.truth
        keep(
            {
                "compared": compared,
                "distance_to_the_nearest_kept": float(np.mean([there for there, _ in near])),
                "distance_between_kept": float(np.mean([between for _, between in near])),
                "accuracy": 100 * float(right.mean()),
                "accuracy_of_old_classes": 100 * float(right[test.truth < old].mean()),
            }
        )

    for replayed in (0, 5_000):
        keep({"replayed": replayed} | replay(options.seed, replayed))


def replay(seed: int, replayed: int) -> dict[str, Any]:
    """40,000 rows of ten classes, then four updates of 5,000, each with a new class; all rows are kept. An epoch of an
    update goes through all of them (0), or through a draw."""
    settings, model, classes = {"memory.replayed": replayed}, None, 10
    for number in range(5):
        n, now = (5_000, classes + number) if number else (40_000, classes)
        data = make(n, now, seed, number, newest=0.1 if number else 0.0, most=classes + 4)
        samples = from_arrays(data.features, data.sets, [str(c) for c in range(now)])
        model = model.update(samples, device="cpu") if model else Model.fit(samples, device="cpu", settings=settings)
    assert model is not None
    test = make(TEST, now, seed, 1000, most=classes + 4)
    right = np.array(model.predict(from_arrays(test.features), device="cpu").labels).astype(int) == test.truth
    return {
        "accuracy": 100 * float(right.mean()),
        "accuracy_of_old_classes": 100 * float(right[test.truth < classes].mean()),
    }


def _near(model: Model, data: Data, kept: Bools, c: int) -> tuple[float, float]:
    """-> of one class's samples: the mean distance to the nearest that is kept, and of these to the nearest other."""
    settled = model.records.label == list(model.names).index(str(c))
    every, chosen = (torch.from_numpy(data.features[rows]) for rows in (settled, settled & kept))
    between = torch.cdist(chosen, chosen).fill_diagonal_(torch.inf)
    return float(torch.cdist(every, chosen).amin(dim=1).mean()), float(between.amin(dim=1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the fit")
    parser.add_argument("--batch", type=int, default=100_000, help="rows of each update")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--memory", action="store_true", help="compare memories instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="for the file: what else the machine did")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "command": " ".join(["python benchmarks/own_size.py", *sys.argv[1:]]),
        "environment": describe(torch.device("cpu")),
        "seed": options.seed,
        "note": options.note,
        "runs": [],
    }

    def keep(run: dict[str, Any]) -> None:
        report["runs"].append(run)
        print(json.dumps(rounded(run)), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rounded(report), indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        (memory if options.memory else commands)(options, Path(folder), keep)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
