"""What two runs of the same settings must agree on, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from timings import TIMINGS


def numbers(checkpoints: Path) -> list[int]:
    """-> the numbers of the checkpoints in a folder, oldest first."""
    return sorted(int(path.stem) for path in checkpoints.glob("[0-9]*.json"))


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves but its timings: the result, the metrics, and the last checkpoint's tensors."""
    result = json.loads((folder / "result.json").read_text())
    del result["seal"], result["environment"]["commit"]  # the seal covers timings; commits may be made meanwhile
    newest = numbers(folder / "checkpoint")[-1]
    meta = json.loads((folder / "checkpoint" / f"{newest:06d}.json").read_text())["meta"]
    spent = meta.pop("spent")
    assert len(meta.pop("typical")) == len(result["median_seconds_per_epoch_per_task"])
    return {
        "result": {key: value for key, value in result.items() if key not in TIMINGS},
        "metrics": (folder / "metrics.jsonl").read_text(),
        "meta": meta,
        "counted": (spent["epochs"], spent["samples"]),
        "tensors": load_file(folder / "checkpoint" / f"{newest:06d}.safetensors"),
    }


def check_equal(folder: Path, reference: Path) -> None:
    found, expected = outcome(folder), outcome(reference)
    for name, tensor in expected["tensors"].items():
        assert torch.equal(found["tensors"][name], tensor), f"{name} differs"
    assert found.pop("tensors").keys() == expected.pop("tensors").keys()
    assert found == expected
    assert (folder / "report.html").is_file()
