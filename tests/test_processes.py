"""Several processes learn as one does: the same streams, targets and memories, losses but for rounding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ipll.benchmark.run import resume, run_config
from ipll.config import Config, resolve
from ipll.data.fingerprint import check_shared, fingerprint
from ipll.data.sources import load_source
from ipll.engine import launch as own_launch
from ipll.engine import processes
from ipll.engine.device import channels_last
from ipll.engine.launch import STORE, launch
from ipll.engine.placement import place
from ipll.errors import ConfigError, DataError, RunError
from ipll.networks.backbones import BACKBONES, Backbone, build_backbone
from ipll.networks.network import ModelConfig, Network
from ipll.results.folder import RunFolder

METHODS = ("pgdr", "pico", "papi+pgdr", "proden+bic", "proden+ancl", "proden+c-flat")
ROWS = 11  # not to be halved
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and gloo's files are POSIX's")


def configured(method: str) -> Config:
    quick = {
        "stream.tasks": 3, "train.epochs": 2, "train.steps_per_epoch": 4, "train.lr": 0.01, "train.threads": 1,
        "data.per_class": 40,
    }  # fmt: skip
    return resolve("digits", method, seed=3, overrides=quick)


def passed() -> dict[str, Tensor]:
    """What a pass of a batch says, and its gradients and statistics, in float64."""
    torch.manual_seed(0)
    network = channels_last(Network(ModelConfig(backbone="resnet18-thin"), 3, 5, seed=0, project=True).double())
    network.head.birth(0, 4, seed=0)
    x = torch.randn(ROWS, 3, 8, 8, dtype=torch.float64)
    out = network(x)
    loss = out.logits[:, :4].logsumexp(dim=1).mean() + (out.features**2).mean() + (out.embedding[0] @ out.embedding[-1])
    weights = list(network.parameters())
    gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    laid = [(w.stride(), g.stride()) for w, g in zip(weights, gradients, strict=True) if g is not None]
    assert all(weight == gradient for weight, gradient in laid)  # as a fused step needs them
    loss.backward()
    again = network(x[:3])  # too few to share: everybody has them all
    grads = {
        f"gradient of {name}": weight.grad for name, weight in network.named_parameters() if weight.grad is not None
    }
    said = {"logits": out.logits.detach(), "loss": loss.detach(), "few": again.features.detach()}
    return said | grads | dict(network.named_buffers())


def one_of_two(folder: Path) -> None:
    """What each of two processes does."""
    with processes.joined(torch.device("cpu")):
        torch.save(passed(), folder / f"passed{os.environ['RANK']}.pt")
        for method in METHODS:
            run_config(configured(method), out=folder / method, device="cpu")
        finished = resume(folder / METHODS[0], device="cpu")  # every process has the result, whoever has the folder
        (folder / f"finished{os.environ['RANK']}.txt").write_text(str(finished.average_incremental_accuracy))
    (folder / f"threads{os.environ['RANK']}.txt").write_text("\n".join(threads()))


def threads() -> list[str]:
    """-> the names of this process's threads, those of libraries among them; none where there is no /proc."""
    return [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes did their work."""
    folder = tmp_path_factory.mktemp("pair")
    code = f"import sys; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += f"import test_processes\ntest_processes.one_of_two(Path({str(folder)!r}))"
    assert launch(["-c", code], 2) == 0
    return folder


def test_a_shared_pass_is_the_whole_one(pair: Path) -> None:
    alone = passed()
    for rank in range(2):
        together = torch.load(pair / f"passed{rank}.pt")
        assert together.keys() == alone.keys()
        for name, tensor in alone.items():
            torch.testing.assert_close(together[name], tensor, rtol=1e-5, atol=1e-7, msg=name)


def test_a_finished_run_is_shown_by_all(pair: Path) -> None:
    known = json.loads((pair / METHODS[0] / "result.json").read_text())["average_incremental_accuracy"]
    assert [float((pair / f"finished{rank}.txt").read_text()) for rank in range(2)] == [known, known]


def test_what_connected_them_is_gone_when_they_have_parted(pair: Path) -> None:
    """A thread of gloo's that is still there when the interpreter ends may take the process down with it."""
    for rank in range(2):
        assert "gloo" not in (pair / f"threads{rank}.txt").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_learn_as_one_does(pair: Path, tmp_path: Path, method: str) -> None:
    run_config(configured(method), out=tmp_path / "alone", device="cpu")
    alone, both = tmp_path / "alone", pair / method
    assert (alone / "stream.npz").read_bytes() == (both / "stream.npz").read_bytes()
    for one, two in zip(epochs(alone), epochs(both), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=2e-3), one
    mine, theirs = (state_of(folder) for folder in (alone, both))
    if "memory.ids" in mine:
        (ids, order), (others, their_order) = (state["memory.ids"].sort() for state in (mine, theirs))
        assert torch.equal(ids, others)  # in an order that rounding may change: by distance
        torch.testing.assert_close(mine["memory.p"][order], theirs["memory.p"][their_order], rtol=0, atol=2e-3)


def epochs(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


def state_of(folder: Path) -> dict[str, Tensor]:
    run = RunFolder.reopen(folder)
    try:
        found = run.load_checkpoint()
    finally:
        run.close()
    assert found is not None
    return {name.removeprefix("module."): tensor for name, tensor in found.tensors.items()}


SLOWLY = ("--set", "train.epochs=8", "--set", "train.threads=1", "--set", "stream.tasks=2")


def begin(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "ipll", *arguments], stderr=subprocess.PIPE, **options)


def test_stopped_it_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    command = begin("run", "digits", *SLOWLY, "--processes", "2", "--out", out)
    wait_for(Path(out) / "metrics.jsonl", command)
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=60) == 128 + signal.SIGINT
    assert command.stderr is not None
    assert b"Resume with: ipll resume" in command.stderr.read()
    assert not alive("RANK=1", out), "the other process is still there"
    command = begin("resume", out)
    assert command.wait(timeout=120) == 0, command.communicate()
    result = json.loads((Path(out) / "result.json").read_text())
    assert "average_incremental_accuracy" in json.dumps(result)


@pytest.mark.slow
def test_a_run_goes_on_in_two_processes_and_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    command = begin("run", "digits", *SLOWLY, "--out", out)
    wait_for(Path(out) / "metrics.jsonl", command)
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=60) == 128 + signal.SIGINT
    lines = len(epochs(Path(out)))
    command = begin("resume", out, "--processes", "2")
    wait_for(Path(out) / "metrics.jsonl", command, more_than=lines)
    kept = checkpoints(out)
    command.kill()
    until = time.monotonic() + 30
    while (alive("RANK=0", out) or alive("RANK=1", out)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive("RANK=0", out)
    assert not alive("RANK=1", out)
    assert checkpoints(out) > kept


def checkpoints(out: str) -> list[str]:
    return sorted(path.name for path in (Path(out) / "checkpoint").glob("*.json"))[-1:]


def test_the_first_one_killed_is_told() -> None:
    with pytest.raises(
        RunError, match=r"process 1 of 2 was ended by signal 9 \(out of memory\?\).* ipll resume runs/a"
    ):
        launch(
            ["-c", "import os, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), 9)\ntime.sleep(60)"],
            2,
            "runs/a",
        )


def test_ended_by_a_signal_that_was_passed_on_it_ends_like_one_process() -> None:
    """As by a second Ctrl-C: no failure to tell of."""
    script = (
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "if os.environ['RANK'] == '0': print(flush=True)\ntime.sleep(60)"
    )
    launcher = f"import sys; from ipll.engine.launch import launch; sys.exit(launch(['-c', {script!r}], 2))"
    command = subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    command.stdout.readline()
    command.send_signal(signal.SIGINT)
    assert command.communicate(timeout=60)[1] == b""
    assert command.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WORLD_SIZE": "2"}, "2 processes (WORLD_SIZE), but not RANK and MASTER_ADDR and MASTER_PORT"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a number"),
    ],
)
def test_half_an_environment_is_told(
    environment: dict[str, str], told: str, main: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, _, err = main("run", "digits", "--device", "cpu", "--out", tmp_path / "run")
    assert status == 2
    assert told in err


def test_an_empty_number_of_processes_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    assert own_launch.wanted() == 1


def test_one_that_dies_ends_the_others_with_its_message(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(
        "import atexit, os, time\nfrom ipll.learner import Learner\n"
        "def broken(self):\n    raise SystemError('this machine is too small')\n"
        "if os.environ.get('RANK') == '1':\n    Learner._end_task = broken\n"
        "    atexit.register(time.sleep, 0.5)\n"  # the other one has noticed before this one is gone
    )
    quick = ("--set", "train.epochs=1", "--set", "stream.tasks=2")
    command = begin(
        "run", "digits", *quick, "--plugin", str(plugin), "--processes", "2", "--out", str(tmp_path / "run")
    )
    said = command.communicate(timeout=120)[1].decode()
    assert command.returncode == 2
    assert "process 2 of 2 ended" in said
    assert "this machine is too small" in said


def test_one_whose_own_line_fails_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot know that the others are well; the first, busy on its GPU, says nothing."""
    monkeypatch.setattr("ipll.engine.launch.FAREWELL", 0.5)
    script = (
        "import os, time, torch\nfrom ipll.engine import processes\n"
        "with processes.joined(torch.device('cpu')):\n"
        "    if os.environ['RANK'] == '0': time.sleep(60)\n"
        "    raise torch.distributed.DistBackendError('NCCL error in: x\\nLast error:\\nno shared memory is left')"
    )
    with pytest.raises(RunError, match=r"(?s)process 2 of 2 ended.*Last error: no shared memory is left"):
        launch(["-c", script], 2)


def test_on_gpus_others_are_left_behind_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's farewell is everybody's: who waits for it there waits for those who wait for a step."""
    left: list[str] = []
    monkeypatch.setattr("ipll.engine.launch.abandoned", False)
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name, does in {
        "init_process_group": lambda *_, **__: None,
        "get_rank": lambda: 0,
        "get_world_size": lambda: 2,
        "destroy_process_group": lambda: left.append("together"),
    }.items():
        monkeypatch.setattr(torch.distributed, name, does)
    with processes.joined(torch.device("cuda", 0)):
        pass
    assert (left, own_launch.abandoned) == (["together"], False)
    with pytest.raises(KeyError), processes.joined(torch.device("cuda", 0)):
        raise KeyError
    assert (left, own_launch.abandoned) == (["together"], True)


@pytest.mark.parametrize(("ends", "status"), [("SystemExit(130)", 130), ("SystemExit()", 0), ("KeyError('mine')", 1)])
@pytest.mark.parametrize("abandoned", [True, False])
def test_who_has_left_others_behind_ends_at_once(ends: str, status: int, abandoned: bool) -> None:
    code = (
        "import atexit\nfrom ipll.engine import launch\natexit.register(print, 'waits for others')\n"
        f"launch.abandoned = {abandoned}\n"
        f"try: raise {ends}\nexcept BaseException as error: launch.leave(error); raise"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("waits for others" in done.stdout) is not abandoned
    assert done.stderr.count("KeyError: 'mine'") == ("mine" in ends)


@pytest.mark.parametrize(
    ("environment", "told"),
    [({"RANK": "0", "WORLD_SIZE": "1"}, 7), ({"RANK": "0", "WORLD_SIZE": "3"}, 2)],  # launched; refused
)
def test_a_number_that_is_asked_for_is_never_passed_over(
    environment: dict[str, str], told: int, main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_launch, "launch", lambda command, processes, folder: 5 + processes)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, _, err = main("run", "digits", "--processes", "2")
    assert status == told
    assert ("there are 3 already" in err) is (told == 2)


def test_other_data_than_the_first_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = load_source("digits", None)
    theirs = replace(source, train_samples=source.train_samples + 1)
    check_shared(source)
    monkeypatch.setattr(processes, "_group", processes.Group(1, 2))
    monkeypatch.setattr(processes, "from_first", lambda _: fingerprint(theirs))
    with pytest.raises(DataError, match="are not those of the first: other pixels in the training samples"):
        check_shared(source)


def test_memory_is_shared_by_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, room = np.zeros((100, 10), np.uint8), {"cpu": 3000, "cuda": 2000}
    monkeypatch.setattr("ipll.engine.placement.free_memory", lambda device: room[device.type])
    cpu = torch.device("cpu")
    assert place(samples, cpu).residence == "device"
    monkeypatch.setattr(processes, "_group", processes.Group(0, 8))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert place(samples, cpu).residence == "host"
    assert place(samples[:75], cpu).residence == "device"


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        launch(["-m", "ipll", "run", "digits"], 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="3 processes need a GPU each, and there are 2 here"):
        processes.own_device(torch.device("cuda"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert processes.own_device(torch.device("cuda")) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # one is shown to each
    assert processes.own_device(torch.device("cuda")) == torch.device("cuda", 0)
    assert processes.own_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setenv(STORE, "store")  # by our own launcher, which shows all that there are to each
    with pytest.raises(ConfigError, match="3 processes need a GPU each, and there are 1 here"):
        processes.own_device(torch.device("cuda"))


def test_batch_norm_of_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def backbone(channels: int) -> Backbone:
        made = build_backbone("small-cnn", channels, torch.Generator())
        made.layers = torch.nn.Sequential(torch.nn.Conv2d(channels, 64, 3), torch.nn.BatchNorm2d(64))
        return made

    monkeypatch.setitem(BACKBONES.members, "strange", backbone)
    config = ModelConfig(backbone="strange")
    Network(config, 3, 5, seed=0)
    monkeypatch.setattr(processes, "_group", processes.Group(0, 2))
    with pytest.raises(ConfigError, match=r"its batch norm \('layers.1'\) knows the rows of one process only"):
        Network(config, 3, 5, seed=0)


@pytest.mark.parametrize(("processes", "told"), [(0, "at least 1, got 0"), (10_000, "this machine has [0-9]+ cores")])
def test_a_number_that_makes_no_sense_starts_nothing(processes: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        launch(["-c", "pass"], processes)


def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    command = begin("run", "digits", "--method", "nonsense", "--processes", "2", "--out", str(tmp_path / "run"))
    said = command.communicate(timeout=120)[1].decode()
    assert command.returncode == 2
    assert said.count("unknown method") == 1


def wait_for(file: Path, command: subprocess.Popen[bytes], more_than: int = 2) -> None:
    """Until so many lines are there."""
    until = time.monotonic() + 120
    while not file.exists() or len(file.read_text().splitlines()) <= more_than:
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(*words: str) -> bool:
    """Is there a process with these words in its command or environment?"""
    for one in Path("/proc").glob("[0-9]*"):
        try:
            told = (one / "cmdline").read_bytes() + (one / "environ").read_bytes()
            if all(word.encode() in told for word in words) and "Z" not in (one / "stat").read_text().split()[2]:
                return True
        except OSError:
            continue
    return False
