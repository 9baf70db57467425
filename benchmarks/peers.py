"""PyCIL's iCaRL and WA beside ours: an epoch of the same network, batch and number of images, on the same device.

    git clone https://github.com/G-U-N/PyCIL
    python benchmarks/peers.py PyCIL --out peers.json

Their code is fetched by whoever runs this and imported from the folder; none of it is here. What is theirs: network
(their ResNet-18 with its stem for CIFAR), losses, optimiser and the loop over batches (`_train`), as it ships: eager
float32, cuDNN's deterministic algorithms, a number read from the device in every step. What is not: images are noise of
CIFAR-100's shape, and there are two ways to feed them:

- `as shipped`: through their data set and a DataLoader with 8 workers, as in `incremental_train`. Where torchvision is
  not installed, its five transforms are made here by the same calls of Pillow.
- `fed`: batches that lie on the device already, never augmented, and cuDNN free to choose. This is more than they have.

Ours is `proden+icarl` and `proden+wa`, the nearest that this library has: the same passes through the network (one
trained view, one of the teacher), but with candidate sets and soft targets where theirs has labels, and with views that
are augmented on the device. By default, and `eager float32` as theirs. In all, a learner is in its second task: there
are a teacher, a memory, and old classes. Neither side's test, memory or herding is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from pycil_needs import stand_ins
from torch.utils.data import DataLoader
from training import DEFAULT, FEW, WAYS, Bench, noise

from ipll.engine.device import arithmetic, describe, find_device

PEERS = {"iCaRL": ("models.icarl", "proden+icarl"), "WA": ("models.wa", "proden+wa")}
NEEDED = ("models.icarl", "models.wa", "utils.data", "utils.data_manager")
WARM = 1  # epochs; in the first one they look at the test set too
OLD, NEW = 10, 10  # classes


class Fed:
    """Batches that lie on the device."""

    def __init__(self, steps: int, batch: int, side: int, device: torch.device) -> None:
        self.steps = steps
        self.batch = (
            torch.arange(batch),
            torch.randn(batch, 3, side, side, device=device),
            torch.arange(batch, device=device) % (OLD + NEW),
        )

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        return iter([self.batch] * self.steps)


class Timed:
    """A loader that notes when each epoch begins."""

    def __init__(self, loader: Any, device: torch.device) -> None:
        self.loader, self.device, self.begun = loader, device, list[float]()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.note()
        return iter(self.loader)

    def note(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.begun.append(time.perf_counter())


def second_task(name: str, device: torch.device) -> tuple[ModuleType, Any]:
    """-> their module, and a learner whose first task is over."""
    module = importlib.import_module(PEERS[name][0])
    args = {
        "memory_size": 2000, "device": [device], "convnet_type": "resnet18", "dataset": "cifar100",
        "model_name": name.lower(), "init_cls": OLD, "increment": NEW,
    }  # fmt: skip
    learner = getattr(module, name)(args)
    learner._cur_task, learner._total_classes = 0, OLD
    learner._network.update_fc(OLD)
    learner.after_task()
    learner._cur_task, learner._total_classes = 1, OLD + NEW
    learner._network.update_fc(OLD + NEW)
    return module, learner


def as_shipped(steps: int, batch: int, side: int, workers: int) -> Any:
    """-> their data set of noise, in a loader as they make it."""
    manager, data = (importlib.import_module(f"utils.{name}") for name in ("data_manager", "data"))
    images = np.random.default_rng(0).integers(0, 256, (steps * batch, side, side, 3), dtype=np.uint8)
    transforms = manager.transforms.Compose([*data.iCIFAR100.train_trsf, *data.iCIFAR100.common_trsf])
    dataset = manager.DummyDataset(images, np.arange(len(images)) % (OLD + NEW), transforms, use_path=False)
    return DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=workers)


def theirs(name: str, loader: Any, epochs: int, device: torch.device, *, free: bool) -> dict[str, float]:
    """-> samples/s and s/epoch of their loop; `free`: cuDNN may choose its algorithms."""
    module, learner = second_task(name, device)
    module.epochs = WARM + epochs  # type: ignore[attr-defined]
    few = [(torch.arange(2), torch.randn(2, 3, 32, 32), torch.arange(2))]  # instead of their test set
    timed = Timed(loader, device)
    flags = torch.backends.cudnn.flags(enabled=True, deterministic=not free, benchmark=free, allow_tf32=True)
    with flags, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        learner._train(timed, few)
    timed.note()
    seconds = (timed.begun[-1] - timed.begun[WARM]) / epochs
    batch = len(next(iter(loader))[1])
    return {"samples_per_second": len(loader) * batch / seconds, "seconds_per_epoch": seconds}


def ours(method: str, way: dict[str, Any], epochs: int, device: torch.device) -> tuple[dict[str, float], int, int]:
    """-> the same of our learner; and the steps and batch of its epoch."""
    with arithmetic(deterministic=False, device=device):
        bench = Bench(noise(device), method, way, epochs, device)
        bench.prepare(4)
        return bench.measure(), bench.learner.steps, bench.learner.batch_size


def commit_of(folder: Path) -> str | None:
    """-> which version of theirs it is, where git knows."""
    if not (folder / ".git").exists():
        return (folder / "COMMIT").read_text().strip() if (folder / "COMMIT").exists() else None
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "HEAD"], text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pycil", type=Path, help="the folder of PyCIL")
    parser.add_argument("--batch", type=int, default=128, help="samples a step; PyCIL ships with 128")
    parser.add_argument("--epochs", type=int, default=4, help="to measure, after a warm-up; 4 at most")
    parser.add_argument("--workers", type=int, default=8, help="of their loader; PyCIL ships with 8")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, help="write all numbers and the environment here, as JSON")
    options = parser.parse_args()
    if not (options.pycil / "models" / "icarl.py").is_file():
        parser.error(f"{options.pycil} is not PyCIL's folder: git clone https://github.com/G-U-N/PyCIL")
    if not 1 <= options.epochs <= 4:
        parser.error("--epochs is 1 to 4: in every fifth epoch they look at the test set.")
    sys.path.insert(0, str(options.pycil.resolve()))
    with stand_ins() as stood_in:
        for name in NEEDED:
            importlib.import_module(name)
    device = find_device(options.device)
    few = {} if device.type == "cuda" else FEW
    ways = {name: WAYS[name] | {"train.batch_size": options.batch} | few for name in (DEFAULT, "eager float32")}
    if few:  # on a CPU, to see that it works
        ways.pop(DEFAULT)
    rows: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "environment": describe(device), "pycil": commit_of(options.pycil), "stand-ins": stood_in,
        "batch": options.batch, "epochs": options.epochs, "workers": options.workers, "rows": rows, "ratios": {},
    }  # fmt: skip
    for name, (_, method) in PEERS.items():
        rates: dict[str, float] = {}
        for way, settings in ways.items():
            row, steps, batch = ours(method, settings, options.epochs, device)
            rates[f"ours, {way}"] = row["samples_per_second"]
            rows.append({"method": method, "whose": "ours", "way": way, "steps": steps, "batch": batch} | row)
        loaders = {"as shipped": as_shipped(steps, batch, 32, options.workers), "fed": Fed(steps, batch, 32, device)}
        for way, loader in loaders.items():
            row = theirs(name, loader, options.epochs, device, free=way == "fed")
            rates[f"theirs, {way}"] = row["samples_per_second"]
            rows.append({"method": name, "whose": "PyCIL's", "way": way, "steps": steps, "batch": batch} | row)
        first = next(iter(rates))
        report["ratios"][name] = {
            f"{first} / {other}": rates[first] / rates[other] for other in rates if other != first
        }
        for row in rows[-len(rates) :]:
            print(f"{row['method']:14}{row['whose']:9}{row['way']:18}{row['samples_per_second']:10,.0f} samples/s"
                  f"{row['seconds_per_epoch']:9.3f} s/epoch", flush=True)  # fmt: skip
        for what, ratio in report["ratios"][name].items():
            print(f"{name}: {what}: {ratio:.2f}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
