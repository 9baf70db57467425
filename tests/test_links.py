"""Folders that others prepared: nothing is written through a link, deleted behind one, or waited for at a pipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from sklearn.datasets import load_iris

import ipll
import ipll.paper.catalogue
from ipll.engine import checkpoint
from ipll.engine.files import write_text
from ipll.engine.locks import lock
from ipll.errors import DataError, IpllError, RunError
from ipll.own import Model, from_arrays
from ipll.own.folder import working_on
from ipll.paper.campaigns import claims
from ipll.paper.campaigns.state import State, read_status
from ipll.paper.campaigns.worker import Job, work
from ipll.results import tensorboard
from ipll.results.folder import RunFolder, read_result

TEXT = "years of work"
X, Y = load_iris(return_X_y=True)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder of someone else's, which must come out as it was."""
    folder = tmp_path / "theirs"
    (folder / "deep").mkdir(parents=True)
    names = ("thesis.tex", "000001.json", "000001.safetensors", "events.out.tfevents.1", "deep/a")
    for name in names:
        (folder / name).write_text(TEXT)
    yield folder
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}
    assert found.keys() == set(names)
    assert all(path.read_text() == TEXT for path in found.values())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    settings = {"train.epochs": 1, "train.threads": 1}
    Model.fit(from_arrays(X, [[str(y)] for y in Y]), device="cpu", settings=settings).save(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def exchange(path: Path, target: Path) -> None:
    """Puts a link in place of whatever is there."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    path.symlink_to(target)


# Links in runs


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "config.toml", "stream.npz", "manifest.json"])
def test_a_file_that_is_a_link_is_refused_by_name(name: str, stopped: Path, victim: Path) -> None:
    exchange(stopped / name, victim / "thesis.tex")
    with pytest.raises(RunError, match=rf"{name}.*symbolic link"):
        ipll.resume(stopped, device="cpu")


@pytest.mark.parametrize("again", ["resume", "overwrite"])
def test_checkpoints_behind_a_link_are_left_alone(
    again: str, stopped: Path, victim: Path, quick: dict[str, Any]
) -> None:
    exchange(stopped / "checkpoint", victim)
    with pytest.raises(DataError, match=r"checkpoint: it is a symbolic link"):
        ipll.resume(stopped) if again == "resume" else ipll.run("digits", out=stopped, overwrite=True, **quick)


def test_links_are_replaced_where_files_are(stopped: Path, victim: Path) -> None:
    """A whole file comes under its name by renaming, which replaces the link, not what it points to."""
    for name in ("report.html", "gallery.npz", ".owner", f".report.html.{os.getpid()}.tmp"):
        exchange(stopped / name, victim / "thesis.tex")
    ipll.resume(stopped, device="cpu")
    assert not any(path.is_symlink() for path in stopped.rglob("*"))


def test_a_planted_temporary_name(tmp_path: Path, victim: Path) -> None:
    planted = tmp_path / f".a.json.{os.getpid()}.tmp"
    planted.symlink_to(victim / "thesis.tex")
    write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert not planted.is_symlink()


def test_only_our_files_are_removed(tmp_path: Path, quick: dict[str, Any]) -> None:
    for name in ("checkpoint/mine.txt", "checkpoint/.mine", "checkpoint/000001.json", "mine.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    RunFolder.create(tmp_path, overwrite=True).close()
    checkpoint.save(tmp_path / "checkpoint", {}, {})
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    ours = {"checkpoint/000001.json", "checkpoint/000001.safetensors", ".lock"}
    assert left == {"checkpoint/mine.txt", "checkpoint/.mine", "mine.txt"} | ours


def test_events_behind_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(victim)
    for wanted in (True, False):
        with pytest.raises(DataError, match="tensorboard: it is a symbolic link"):
            tensorboard.prepare(tmp_path / "run", wanted=wanted)


def test_a_folder_of_events_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    for name in ("events.out.tfevents.1", "notes.txt"):
        (tmp_path / "tensorboard" / name).write_text(TEXT)
    with pytest.raises(RunError, match="Remove it yourself"):
        tensorboard.prepare(tmp_path, wanted=False)
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["notes.txt"]


def test_a_link_to_the_folder_itself_is_the_user_s_own(stopped: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(stopped)
    ipll.resume(tmp_path / "link", device="cpu")
    assert read_result(stopped)["method"] == "pgdr"


# Links in campaigns


def test_claims_and_logs_behind_links(tmp_path: Path, victim: Path) -> None:
    cell = ipll.paper.catalogue.Cell("digits", "pgdr", 0, ())
    for name, target in (("claims", victim), ("worker.log", victim / "thesis.tex")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).symlink_to(target)
        outcome = work(Job(cell, folder, device="cpu"))
        assert (outcome.kind, "symbolic link" in outcome.message) == ("failed", True)


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"machine": 3, "pid": "x", "stale": "y"}', None])
def test_odd_claims_grow_stale(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "claims" / "000001.json"
    file.parent.mkdir()
    file.write_bytes(content) if content is not None else os.mkfifo(file)
    watch = claims.Watch(stale=0.0)
    assert watch.look(tmp_path)[1] is False
    assert watch.look(tmp_path)[1] is True


# Links in models


def test_links_in_a_model(model: Path, victim: Path, main: Any, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("candidates,features.a\nx,1\n")
    (model / ".lock").symlink_to(victim / "thesis.tex")
    status, _, err = main("update", model, tmp_path / "table.csv")
    assert (status, ".lock: it is a symbolic link" in err) == (2, True), err
    (model / ".lock").unlink()
    (model / ".pending").symlink_to(victim)
    settings = {"train.epochs": 1, "train.threads": 1}
    with pytest.raises(DataError, match=r"\.pending: it is a symbolic link"):
        Model.fit(from_arrays(X, Y.astype(str)), device="cpu", settings=settings, pending=model / ".pending")


def test_a_state_that_is_a_link(model: Path, victim: Path) -> None:
    state = next(model.glob("state-*"))
    state.rename(victim.parent / "state")
    state.symlink_to(victim.parent / "state")
    with pytest.raises(DataError, match="symbolic link"):
        Model.load(model)


# Pipes


def in_time(call: Callable[[], object]) -> BaseException | None:
    """-> what the call raises; a failure where it waits."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return raised[0] if raised else None


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("name", [".lock", "config.toml", "stream.npz", "manifest.json", "metrics.jsonl"])
def test_no_file_of_a_run(name: str, kind: str, stopped: Path) -> None:
    (stopped / name).unlink(missing_ok=True)
    os.mkfifo(stopped / name) if kind == "pipe" else (stopped / name).mkdir()
    error = in_time(lambda: ipll.resume(stopped, device="cpu"))
    assert isinstance(error, IpllError)
    assert f"{stopped / name}: " in str(error)
    assert "no regular file" in str(error)


def test_a_pipe_for_a_result_and_for_checkpoints(stopped: Path, finished: Path) -> None:
    (finished / "result.json").unlink()
    os.mkfifo(finished / "result.json")
    assert isinstance(in_time(lambda: read_result(finished)), RunError)
    assert read_status(finished).state is not State.DONE
    newest = max((stopped / "checkpoint").glob("*.json"))
    newest.unlink()
    os.mkfifo(newest)
    assert in_time(lambda: checkpoint.look(stopped / "checkpoint")) is None


@pytest.mark.parametrize("name", ["model.json", "state-000001.safetensors", "records-000001.parquet"])
def test_a_pipe_in_a_model(name: str, model: Path) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    error = in_time(lambda: Model.load(model))
    assert isinstance(error, DataError)
    assert name in str(error)


# Locks

HOLD = """
import sys
from pathlib import Path
from ipll.own.folder import working_on
with working_on(Path(sys.argv[1]), new=True):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_fit_waits_for_another_and_says_for_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        threading.Timer(0.5, other.stdin.close).start()
        with working_on(folder, new=True):
            assert other.wait(20) == 0
    assert f"process {other.pid} is working on this model; waiting." in capsys.readouterr().err
    assert not [*folder.glob("*")]  # no lock is left


def test_a_run_names_who_works_on_it(stopped: Path) -> None:
    folder = RunFolder.reopen(stopped)
    with pytest.raises(RunError, match=rf"process {os.getpid()} is working on this run"):
        RunFolder.reopen(stopped)
    folder.close()
    RunFolder.reopen(stopped).close()


def test_our_locks_are_those_of_filelock(tmp_path: Path) -> None:
    with FileLock(str(tmp_path / "a")), pytest.raises(BlockingIOError):
        lock(tmp_path / "a", wait=False)
    lock(tmp_path / "a", wait=False).release()
