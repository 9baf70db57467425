"""Samples that stay on the host give the same batches as those on the device, and come in chunks, one ahead."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ipll
from ipll import batches as loader
from ipll.batches import chunk_steps
from ipll.config import resolve
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from ipll.driver import enough_memory
from ipll.engine import placement as residence
from ipll.engine.placement import Resident, Selection, Staged, place
from ipll.errors import ConfigError, RunError
from ipll.learner import Learner, Position

CPU = torch.device("cpu")
SMALL = {"stream.tasks": 3, "train.epochs": 2, "train.batch_size": 32, "train.steps_per_epoch": 5, "memory.size": 60}
METHODS = ["pgdr", "pico+pgdr", "papi", "papi+pgdr", "pico+er-ace", "pico+bic", "proden+icarl", "terial+wa"]


@pytest.fixture
def digits() -> Source:
    return load_source("digits")


@pytest.fixture
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of 32 a chunk, so that an epoch has several."""
    monkeypatch.setattr(loader, "CHUNK", 64)


def mapped(array: Any, folder: Path) -> np.memmap[Any, Any]:
    np.save(folder / "samples.npy", array)
    return np.load(folder / "samples.npy", mmap_mode="r")  # type: ignore[no-any-return]


def learnt(method: str, where: str, samples: Any, source: Source, kind: type) -> dict[str, torch.Tensor]:
    """-> the state of a learner after its second task."""
    config = resolve("digits", method, overrides=SMALL | {"data.residence": where})
    stream = Stream.build(source, config.stream, config.seed)
    learner = Learner(config, channels=1, classes=10, mean=source.mean, std=source.std)
    for t in range(2):
        for _ in learner.fit(stream.make_task(t, samples)):
            assert isinstance(learner.ctx.pool.samples, kind)
    return learner.tensors() | {"features": learner.ctx.pool_features()}


@pytest.mark.usefixtures("_short_chunks")
@pytest.mark.parametrize("method", METHODS)
def test_the_same_to_the_bit(method: str, digits: Source) -> None:
    on_device = learnt(method, "device", digits.train_samples, digits, Resident)
    on_host = learnt(method, "host", digits.train_samples, digits, Staged)
    assert on_host.keys() == on_device.keys()
    for name, tensor in on_device.items():
        assert torch.equal(on_host[name], tensor), name


@pytest.mark.usefixtures("_short_chunks")
@pytest.mark.parametrize("where", ["device", "host"])
def test_a_mapped_file_is_learnt_from_like_an_array(
    where: str, digits: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = learnt("pgdr", "device", digits.train_samples, digits, Resident)
    monkeypatch.setattr(residence, "free_memory", lambda device: 0)  # nothing is read into memory
    monkeypatch.setattr(residence, "BLOCK", 1000)
    samples = mapped(digits.train_samples, tmp_path)
    found = learnt("pgdr", where, samples, digits, {"device": Resident, "host": Staged}[where])
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.usefixtures("_short_chunks")
@pytest.mark.parametrize("step", [1, 2, 4], ids=["within a chunk", "after a chunk", "at the end of the epoch"])
def test_a_run_goes_on_within_an_epoch(step: int, tmp_path: Path, stop_at: Any) -> None:
    """It is begun on the host; the whole one, to compare with, is on the device."""
    whole, part, reporter = tmp_path / "whole", tmp_path / "part", stop_at(10 + step)
    settings = SMALL | {"train.steps_per_epoch": 4}
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", "pico+pgdr", out=part, reporter=reporter, **settings | {"data.residence": "host"})
    assert reporter.positions[-1] == Position(1, 0, 0, step)
    assert ipll.resume(part)["residence"] == "host"
    assert ipll.run("digits", "pico+pgdr", out=whole, **settings)["residence"] == "device"
    expected, found = (load_file(max((path / "checkpoint").glob("*.safetensors"))) for path in (whole, part))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    lines = [[json.loads(line) for line in (path / "metrics.jsonl").open()] for path in (whole, part)]
    tasks = [[line.pop("residence") for line in run if line["kind"] == "task"] for run in lines]
    assert tasks == [["device"] * 3, ["host"] * 3]
    assert lines[0] == lines[1]


# Rows


@pytest.fixture
def staged() -> Staged:
    """Ten samples on the host, whose values tell them apart, and three of a memory behind them."""
    everything = torch.arange(13 * 6, dtype=torch.uint8).view(13, 1, 2, 3)
    held = place(everything[:10].numpy(), CPU, "host", everything[10:])
    assert isinstance(held, Staged)
    return held


WHOLE = torch.arange(13 * 6, dtype=torch.uint8).view(13, 1, 2, 3)
ROWS = [
    pytest.param(torch.tensor([12, 0, 3, 3, 11, 9, 3]), id="mixed, some twice"),
    pytest.param(torch.tensor([12, 10]), id="of the memory only"),
    pytest.param(torch.arange(13).flip(0).repeat(3), id="more than there are"),
    pytest.param(torch.tensor([], dtype=torch.int64), id="none"),
    pytest.param(torch.arange(13) % 3 == 0, id="mask"),
    pytest.param(slice(4, 12), id="slice"),
    pytest.param(slice(None), id="all"),
]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("threads", [1, 3, 8])
def test_rows(rows: Any, threads: int, staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residence, "THREADS", threads)
    assert staged.shape == WHOLE.shape
    assert torch.equal(staged[rows], WHOLE[rows])
    assert torch.equal(place(WHOLE.numpy(), CPU, "device")[rows], WHOLE[rows])


def test_chunks_stay_what_they_are_when_later_ones_come(staged: Staged) -> None:
    chunks = staged.split(torch.randperm(13, generator=torch.Generator().manual_seed(0)).repeat(3), 5)
    for rows, chunk in zip(chunks, list(staged.prefetch(chunks)), strict=True):
        assert torch.equal(chunk, WHOLE[rows])


def test_an_array_of_any_layout() -> None:
    backwards = WHOLE.permute(0, 2, 3, 1).contiguous().numpy().transpose(0, 3, 1, 2)
    assert torch.equal(place(backwards, CPU, "host")[torch.tensor([3, 1])], WHOLE[[3, 1]])


def test_the_next_chunk_is_gathered_while_one_is_worked_on(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, one chunk ahead and no more; a caller that leaves early leaves no thread behind."""
    gathered, plain, threads = threading.Semaphore(0), Staged._copy, []

    def copy(self: Staged, rows: Any, staged: torch.Tensor) -> None:
        threads.append(threading.current_thread())
        plain(self, rows, staged)
        gathered.release()

    monkeypatch.setattr(residence, "THREADS", 1)
    monkeypatch.setattr(Staged, "_copy", copy)
    chunks = staged.prefetch(staged.split(None, 4))
    for _ in range(2):
        next(chunks)
        assert gathered.acquire(timeout=10)
    assert gathered.acquire(timeout=10)  # the third, while the second is worked on
    assert not gathered.acquire(timeout=0.05)
    assert threading.current_thread() not in threads
    chunks.close()  # type: ignore[attr-defined]
    assert not threads[0].is_alive()


def test_a_failure_to_read_is_not_lost(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Staged, rows: Any, staged: torch.Tensor) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Staged, "_copy", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        staged[:3]


# What is chosen


def test_chosen_from_the_sizes(digits: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device if that leaves half of its free memory; on the host in memory if that does, else in the file."""
    samples = mapped(digits.train_samples, tmp_path)
    own = residence.select(samples, np.arange(0, len(samples), 2))
    assert isinstance(own, Selection)
    assert np.shares_memory(own.array, samples)
    kept = torch.zeros(10, 1, 8, 8, dtype=torch.uint8)
    size = (len(own) + 10) * 64
    free = {"cpu": 0, "meta": 2 * size}
    monkeypatch.setattr(residence, "free_memory", lambda device: free[device.type])
    device = torch.device("meta")
    assert place(own, device, "auto", kept.to(device)).residence == "device"
    free["meta"] -= 1
    in_file = place(own, device, "auto", kept.to(device))
    assert isinstance(in_file, Staged)
    assert in_file.own is own
    free["cpu"] = 2 * len(own) * 64
    in_memory = place(own, device, "auto", kept.to(device))
    assert isinstance(in_memory, Staged)
    assert not np.shares_memory(in_memory.own.array, samples)
    assert place(own, device, "device", kept.to(device)).residence == "device"
    free["meta"] = 10 * size
    assert place(own, device, "host", kept.to(device)).residence == "host"


def test_a_run_says_where_its_samples_were(quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residence, "free_memory", lambda device: 0)
    assert ipll.run("digits", **quick)["residence"] == "host"
    assert ipll.run("digits", **quick | {"data.residence": "device"})["residence"] == "device"


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.residence"):
        resolve("digits", overrides={"data.residence": "disk"})


def test_free_memory_is_some() -> None:
    assert 2**20 < residence.free_memory(CPU) < 2**50


def test_running_out_of_memory_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 2**30))
    with pytest.raises(RunError, match=r"data\.residence=host"), enough_memory(resolve("digits")):
        raise torch.OutOfMemoryError


@pytest.mark.parametrize("size", [8, 32, 64])
def test_small_images_have_their_chunks_as_ever(size: int) -> None:
    """A chunk's size is part of the random stream: other chunks, other numbers."""
    for batch in (32, 128, 256, 4096, 9000):
        assert chunk_steps((1, 3, size, size), batch) == max(1, 8192 // batch)


@pytest.mark.parametrize("size", [112, 224, 448])
def test_views_of_a_chunk_of_large_images_are_bounded(size: int) -> None:
    steps = chunk_steps((1, 3, size, size), 16)
    assert 2**28 < 4 * 3 * size * size * 16 * steps <= 2**29
    assert chunk_steps((1, 3, size, size), 10_000) == 1
