"""The state of a learner: every tensor once, also where an older version wrote some of them twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_iris

import ipll
from ipll.data.sources import load_source
from ipll.engine.checkpoint import save
from ipll.engine.files import sha256_of, write_json
from ipll.engine.state import LearnerState, Tensors
from ipll.learner import Learner
from ipll.own import Model, from_arrays
from live import Live
from outcomes import check_equal, numbers

OWNED = ("memory", "classifier", "update")


@pytest.fixture(scope="module")
def live() -> Live:
    return Live(load_source("digits"))


def with_copies(tensors: Tensors) -> Tensors:
    """-> as older versions wrote it: memory, classifier and update are among the numbered parts too."""
    last = 1 + max((int(name.split(".")[2]) for name in tensors if name.startswith("module.parts.")), default=6)
    copies = {}
    for name, tensor in tensors.items():
        for number, owner in enumerate(OWNED, last):
            if name.startswith(f"module.{owner}."):
                copies[name.replace(f".{owner}.", f".parts.{number}.")] = tensor.clone()
    assert copies
    return tensors | copies


@pytest.mark.parametrize("method", ["pgdr", "pico+icarl", "papi+bic", "terial+ancl", "proden+c-flat"])
def test_no_tensor_is_in_the_state_twice(method: str, live: Live) -> None:
    held = [tensor.data_ptr() for tensor in live.learner(method).tensors().values() if tensor.numel()]
    assert len(held) == len(set(held))


def test_a_checkpoint_holds_the_memory_once(live: Live, tmp_path: Path) -> None:
    learner = live.learner(learnt=1)
    bare = save_size(learner, tmp_path / "bare", torch.zeros(0, dtype=torch.uint8))
    full = save_size(learner, tmp_path / "full", torch.zeros(1000, 3, 32, 32, dtype=torch.uint8))
    assert 0 <= full - bare - 1000 * 3 * 32 * 32 < 1000


def save_size(learner: Learner, folder: Path, samples: torch.Tensor) -> int:
    learner.memory.samples = samples
    save(folder, learner.tensors(within=False), {})
    return (folder / "000001.safetensors").stat().st_size


def test_names_come_back_as_the_state() -> None:
    state = LearnerState(
        {"network.head.weight": torch.ones(2)}, {3: torch.ones(1)}, {"ce": torch.ones(())}, {0: torch.zeros(1)},
        {"p": torch.ones(2, 2)},
    )  # fmt: skip
    assert set(state.named()) == {"module.network.head.weight", "carried.3", "sum.ce", "momentum.0", "pool.p"}
    assert LearnerState.of(state.named()) == state


def test_a_checkpoint_of_the_former_layout_goes_on(stopped: Path, tmp_path: Path) -> None:
    former = shutil.copytree(stopped, tmp_path / "former")
    for number in numbers(former / "checkpoint"):
        file, record = (former / "checkpoint" / f"{number:06d}.{ending}" for ending in ("safetensors", "json"))
        save_file(with_copies(load_file(file)), file)
        write_json(record, json.loads(record.read_text()) | {"sha256": sha256_of(file)})
    for folder in (stopped, former):
        ipll.resume(folder)
    check_equal(former, stopped)


def test_a_model_of_the_former_layout_is_read(tmp_path: Path) -> None:
    x, y = load_iris(return_X_y=True)
    first, more = (
        from_arrays(x[t::2], [[int(c)] for c in y[t::2]], ids=[f"{t}:{i}" for i in range(75)]) for t in (0, 1)
    )
    model = Model.fit(first, device="cpu", settings={"train.epochs": 2})
    replace(model, tensors=with_copies(model.tensors)).save(tmp_path)
    read = Model.load(tmp_path)
    assert read.tensors.keys() == model.tensors.keys()
    same, other = (one.update(more, device="cpu") for one in (model, read))
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in same.tensors.items())
