"""On a CUDA device: the same code learns, also from people's own data, a run that was stopped goes on, captured steps
are the plain ones, and samples on the host are learnt from like those on the device."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import ipll
from ipll import batches as loader
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from ipll.engine import placement as residence
from ipll.engine import processes
from ipll.engine.device import arithmetic
from ipll.engine.placement import place
from ipll.learner import Learner, Position
from ipll.own import Model, from_arrays
from ipll.progress import Plan, Silent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


class StopAt(Silent):
    """Asks the run to stop in the middle of its second task."""

    def begin(self, plan: Plan, position: Position) -> None:
        self.seen = False

    def step(self, position: Position, steps: int, phases: int) -> None:
        if position.task == 1 and position.epoch == 2 and not self.seen:
            self.seen = True
            os.kill(os.getpid(), signal.SIGINT)


def test_digits_on_the_gpu() -> None:
    result = ipll.run("digits", device="cuda")
    assert result.average_incremental_accuracy > 95
    assert result["environment"]["device"] == "cuda"


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """Momenta come back in the layout of their weights, which fused kernels insist on."""
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=tmp_path / "run", device="cuda", reporter=StopAt())
    assert ipll.resume(tmp_path / "run", device="cuda").average_incremental_accuracy > 95


@pytest.mark.parametrize("kind", ["features", "images"])
def test_own_data(kind: str) -> None:
    """Learnt, updated with new classes, and used; predictions of a CPU are the same but for rounding."""
    digits, rng = load_digits(), np.random.default_rng(0)
    samples = digits.data.astype(np.float32) if kind == "features" else (digits.images * 15).astype(np.uint8)
    model = ipll.IncrementalClassifier(random_state=0, device="cuda")
    for first in (0, 5):
        arriving = np.flatnonzero((digits.target >= first) & (digits.target < first + 5))
        others = rng.integers(first, first + 5, len(arriving))
        model.partial_fit(samples[arriving], np.stack([digits.target[arriving], others], axis=1).tolist())
    assert model.score(samples, digits.target) > 0.9
    by_gpu = model.predict_proba(samples)
    by_cpu = model.set_params(device="cpu").predict_proba(samples)
    assert np.abs(by_gpu - by_cpu).mean() < 0.02


METHODS = [
    *("pgdr", "pico+pgdr", "papi+pgdr", "pgdr/pp", "proden", "terial+wa", "pico+icarl", "pico+bic", "pico+er-ace"),
    *("papi+ancl", "pico+c-flat", "pgdr/best", "pgdr/boosted"),
]
SMALL = {"stream.tasks": 3, "train.epochs": 3, "train.batch_size": 32, "train.deterministic": True}


def learner_of(
    name: str, where: str = "device", *, backbone: str = "small-cnn", **settings: str
) -> tuple[Learner, Stream]:
    overrides = SMALL | {"data.residence": where, "model.backbone": backbone}
    overrides |= {f"train.{key}": value for key, value in settings.items()}
    config = resolve("digits", name, overrides=overrides)
    source = load_source("digits")
    stream = Stream.build(source, config.stream, config.seed)
    device = torch.device("cuda")
    return Learner(config, channels=1, classes=10, mean=source.mean, std=source.std, device=device), stream


def learn(name: str, where: str = "device", *, backbone: str = "small-cnn", **settings: str) -> dict[str, torch.Tensor]:
    learner, stream = learner_of(name, where, backbone=backbone, **settings)
    with arithmetic(deterministic=True, device=learner.ctx.device):
        for t in range(len(stream)):
            for _ in learner.fit(stream.make_task(t, load_source("digits").train_samples)):
                pass
    return learner.tensors()


@pytest.mark.parametrize("name", METHODS)
def test_captured_steps_are_the_plain_ones(name: str) -> None:
    """Bit for bit: whatever changes from epoch to epoch reaches the captured step."""
    plain = learn(name, compile="off", graphs="off", precision="float32")
    captured = learn(name, compile="off", graphs="on", precision="float32")
    for key, tensor in plain.items():
        assert torch.equal(captured[key], tensor), key


@pytest.mark.parametrize("backbone", ["resnet18-thin", "resnet18-imagenet"])
def test_captured_kernels_give_the_same_bits(backbone: str) -> None:
    """In bf16, with our own kernels, those of a max-pool and the folded teacher."""
    plain = learn("pgdr", backbone=backbone, compile="off", graphs="off")
    captured = learn("pgdr", backbone=backbone, compile="off", graphs="on")
    for key, tensor in plain.items():
        assert torch.equal(captured[key], tensor), key


@pytest.mark.parametrize("name", ["pgdr/best", "pico+pgdr", "papi+ancl", "pico+c-flat"])
def test_what_processes_say_to_each_other_can_be_captured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By NCCL, with a single process that shares with nobody: the calls are those of several."""
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        monkeypatch.setattr(processes, "_group", processes.Group(0, 1))
        plain, captured = (
            learn(name, compile="off", graphs=graphs, backbone="resnet18-thin") for graphs in ("off", "on")
        )
    finally:
        torch.distributed.destroy_process_group()
    assert plain.keys() == captured.keys()
    for key, tensor in plain.items():
        assert torch.equal(tensor, captured[key]), key


@pytest.fixture
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of 32 a chunk, so that an epoch has many."""
    monkeypatch.setattr(loader, "CHUNK", 64)


@pytest.mark.usefixtures("_short_chunks")
@pytest.mark.parametrize("graphs", ["off", "on"])
@pytest.mark.parametrize("name", ["pgdr", "pico+pgdr", "papi+pgdr", "pico+er-ace", "pico+bic"])
def test_samples_on_the_host_give_the_same_batches(name: str, graphs: str) -> None:
    """Bit for bit, though chunks are copied while the device still works on the one before."""
    on_device = learn(name, "device", compile="off", graphs=graphs, precision="float32")
    on_host = learn(name, "host", compile="off", graphs=graphs, precision="float32")
    for key, tensor in on_device.items():
        assert torch.equal(on_host[key], tensor), key


def test_chunks_that_are_asked_for_faster_than_they_are_used() -> None:
    """The device is kept busy, so that every copy is asked for long before the last chunk has been read."""
    samples = torch.randint(256, (400, 1, 64, 64), dtype=torch.uint8)
    device = torch.device("cuda")
    held = place(samples[:300].numpy(), device, "host", samples[300:].to(device))
    chunks = [torch.randint(400, (250,), device=device) for _ in range(20)]
    work, found = torch.randn(4096, 4096, device=device), []
    for chunk in held.prefetch(chunks):
        for _ in range(20):
            work = torch.tanh(work @ work)
        found.append(chunk)
    for rows, chunk in zip(chunks, found, strict=True):
        assert torch.equal(chunk.cpu(), samples[rows.cpu()])


def test_samples_that_do_not_fit_stay_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ipll.run("digits", device="cuda", **SMALL)["residence"] == "device"
    monkeypatch.setattr(residence, "free_memory", lambda device: 0)
    result = ipll.run("digits", device="cuda")
    assert result["residence"] == "host"
    assert result.average_incremental_accuracy > 95


@pytest.mark.usefixtures("_short_chunks")
@pytest.mark.parametrize("where", ["device", "host"])
def test_no_wait_for_the_device_within_an_epoch(where: str) -> None:
    learner, stream = learner_of("pico+pgdr", where, compile="off", graphs="on")
    for t in range(2):
        for position in learner.fit(stream.make_task(t, load_source("digits").train_samples)):
            inside = 5 < position.step < learner.steps and position.epoch > 1
            torch.cuda.set_sync_debug_mode("error" if inside else "default")
    torch.cuda.set_sync_debug_mode("default")


def test_compiled_and_captured_learns_and_compiles_once() -> None:
    learner, stream = learner_of("pico+pgdr")
    for t in range(len(stream)):
        torch.compiler.set_stance("fail_on_recompile" if t else "default")
        for _ in learner.fit(stream.make_task(t, load_source("digits").train_samples)):
            pass
    torch.compiler.set_stance("default")
    assert all(torch.isfinite(tensor).all() for tensor in learner.tensors().values() if tensor.is_floating_point())


def test_running_out_of_memory_says_what_helps() -> None:
    torch.cuda.set_per_process_memory_fraction(0.0001)
    try:
        with pytest.raises(ipll.RunError, match=r"train\.batch_size=.*data\.residence=host"):
            ipll.run("digits", device="cuda", **{"train.batch_size": 512, "model.backbone": "resnet18"})
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_networks_side_by_side_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    """Their folds are as long as the task, and lie on the device again."""
    digits = load_source("digits")
    truth = digits.train_labels[:400]
    sets = np.eye(10, dtype=bool)[truth] | (np.random.default_rng(0).random((400, 10)) < 0.2)
    features = digits.train_samples[:400].reshape(400, -1).astype(np.float32)
    samples = from_arrays(features, sets, [str(c) for c in range(10)])

    class Stop(Silent):
        def epoch(self, position: Position, record: dict[str, Any]) -> None:
            if position.epoch == 3:
                os.kill(os.getpid(), signal.SIGINT)

    def fit(**more: Any) -> Model:
        settings = {"train.epochs": 20, "augment.drop": 0.3, "model.inputs": "z-scores", "disambiguation.prior": 0.0}
        return Model.fit(samples, device="cuda", settings=settings, pending=tmp_path / "pending", **more)

    with pytest.raises(ipll.Interrupted, match="goes on from here"):
        fit(reporter=Stop())
    model = fit()
    assert model.config.model.members > 1
    assert (np.array(model.records.labels(model.names)).astype(int) == truth).mean() > 0.9
