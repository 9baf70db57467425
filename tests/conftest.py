"""What the tests share: a run of a second, the command line with and without a process of its own, and file trees."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rich.console import Console

import ipll
from ipll import cli as command_line
from ipll import plugins
from ipll.learner import Position
from ipll.progress import Silent

ROOT = Path(__file__).resolve().parents[1]
QUICK = {"train.epochs": 2, "stream.tasks": 3, "train.steps_per_epoch": 3, "train.batch_size": 32}


class Finished(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


class StopAt(Silent):
    """A reporter that sends its own process a signal when it is told of the n-th step or of the n-th task's end."""

    def __init__(self, step: int = 0, *, task: int = 0, number: int = signal.SIGINT) -> None:
        self.at_step, self.at_task, self.number = step, task, number
        self.positions: list[Position] = []
        self.tasks = 0

    def step(self, position: Position, steps: int, phases: int) -> None:
        self.positions.append(position)
        if len(self.positions) == self.at_step:
            signal.raise_signal(self.number)

    def task(self, record: dict[str, Any]) -> None:
        self.tasks += 1
        if self.tasks == self.at_task:
            signal.raise_signal(self.number)


@pytest.fixture
def fewer_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this version had no preset for some of the paper's data sets."""
    monkeypatch.setattr("ipll.paper.catalogue.preset_names", lambda: ["cifar100", "cifar100-h", "digits"])


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Python's own handling of Ctrl-C, also where the tests run in the background and SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from more, and processes of other tests are busy too."""
    torch.set_num_threads(1)


@pytest.fixture
def forget() -> Iterator[Callable[[], None]]:
    """Whatever plugins a test loads into this process are gone when it ends, or when it asks for that."""
    before = [dict(registry.members) for registry in plugins.REGISTRIES]

    def restore() -> None:
        for registry, members in zip(plugins.REGISTRIES, before, strict=True):
            registry.members.clear()
            registry.members.update(members)
        plugins._files.clear()
        plugins._load_installed.cache_clear()

    yield restore
    restore()


@pytest.fixture(scope="session")
def root() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def quick() -> dict[str, Any]:
    """Settings of a run on digits that takes a second; it reports progress 24 times: (3 + 1) x 2 epochs x 3 tasks."""
    return dict(QUICK)


@pytest.fixture(scope="session")
def as_options() -> Callable[[Mapping[str, Any]], list[str]]:
    """Settings as they are given on the command line."""
    return lambda settings: [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="session")
def quick_options(quick: dict[str, Any], as_options: Callable[[Mapping[str, Any]], list[str]]) -> list[str]:
    return as_options(quick)


@pytest.fixture(scope="session")
def stop_at() -> type[StopAt]:
    return StopAt


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """The program in this process, which saves the seconds it takes to import torch: main("run", "digits", ...)."""

    def call(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["ipll", *map(str, arguments)])
        monkeypatch.setattr(command_line.console, "out_console", Console(width=200))
        capsys.readouterr()
        status: Any = 0
        try:
            command_line.main()
        except SystemExit as end:
            status = end.code or 0
        out, err = capsys.readouterr()
        return Finished(status, out, err)

    return call


def _environment() -> dict[str, str]:
    """The source tree comes first, so that the tests run whether or not ipll is installed."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `python -m ipll ...` in an empty folder and does not wait."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ipll", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=tmp_path, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


@pytest.fixture
def cli(launch: Callable[..., subprocess.Popen[str]]) -> Callable[..., Finished]:
    """Runs `python -m ipll ...` to its end."""

    def call(*arguments: object) -> Finished:
        with launch(*arguments) as process:
            out, err = process.communicate(timeout=300)
        return Finished(process.returncode, out, err)

    return call


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    """-> every file and folder below a path and what it holds. Locks are left out: they come and go."""

    def take(path: Path) -> dict[str, bytes | None]:
        found = sorted(p for p in path.rglob("*") if p.name != ".lock")
        return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in found}

    return take


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, quick: dict[str, Any]) -> Path:
    """The folder of a finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    ipll.run("digits", out=folder, **quick)
    return folder


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory: pytest.TempPathFactory, quick: dict[str, Any]) -> Path:
    """The folder of the same run, stopped within its second task; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=folder, reporter=StopAt(14), **quick | {"train.checkpoint_seconds": 0})
    return folder


@pytest.fixture
def finished(finished_run: Path, tmp_path: Path) -> Path:
    """The folder of a finished run, for this test alone."""
    return shutil.copytree(finished_run, tmp_path / "finished")


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path) -> Path:
    """The folder of a run that was stopped within its second task, with two checkpoints, for this test alone."""
    return shutil.copytree(stopped_run, tmp_path / "stopped")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths and data end up where the tests look for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPLL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()


@pytest.fixture
def refused(main: Any, snapshot: Any, tmp_path: Path, quick_options: list[str]) -> Callable[..., str]:
    """Runs a command that must be refused, and checks all that is the same for every refusal. -> the message.

    A run is given settings for a quick one first, so that a test that fails does not take long.
    """

    def call(*arguments: object) -> str:
        before = snapshot(tmp_path)
        if arguments[0] == "run":
            arguments = (*arguments[:2], *quick_options, *arguments[2:])
        status, out, err = main(*arguments)
        message = err.strip()
        assert "Traceback" not in out + err
        assert status == 2, (status, out, err)
        assert out == ""
        assert len(message.splitlines()) == 1, message
        assert message.startswith("ipll: ")
        assert len(message) < 400 + 3 * len(str(tmp_path)), message
        assert snapshot(tmp_path) == before
        return message

    return call


@pytest.fixture(scope="module")
def two_batches() -> Any:
    """Two species, one of them ambiguous; then the second and a third. Do not change it."""
    from estimators import NAMES, NEW, OLD, X, ambiguous
    from ipll import IncrementalClassifier

    learner = IncrementalClassifier(epochs=15, random_state=0)
    learner.partial_fit(X[OLD], ambiguous(NAMES[OLD], ["setosa", "versicolor"]))
    return learner.partial_fit(X[NEW], ambiguous(NAMES[NEW], ["versicolor", "virginica"]))
