"""A stranger's folder brings no code: what it names is loaded where the user names it, and nowhere else."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipll
from ipll.component import FAMILIES
from ipll.config import resolve
from ipll.errors import ConfigError
from ipll.own import Model, from_arrays
from ipll.paper.campaigns.plan import Plan
from ipll.paper.campaigns.state import State, can_resume, read_status
from ipll.paper.campaigns.worker import Job, work
from ipll.paper.catalogue import find_bench
from ipll.plugins import load_plugins

PLUGIN = """
from pathlib import Path
from ipll.component import FAMILIES, Component
from ipll.method import register_method

Path({witness!r}).touch()

@FAMILIES["retention"].register("mine")
class Mine(Component):
    pass

register_method("proden+mine", {{"retention": "mine"}}, base="proden+wa", doc="PRODEN with mine")
"""


@pytest.fixture(autouse=True)
def _alone(forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder of its own, with the plugins of no other test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """A file that is there once the plugin has run."""
    return tmp_path / "witness"


@pytest.fixture
def plugin(tmp_path: Path, witness: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(witness=str(witness)))
    return file


@pytest.fixture
def model(plugin: Path, witness: Path, forget: Callable[[], None]) -> Path:
    """The folder of a model that was made with the plugin, as another process finds it; and a table."""
    load_plugins(plugin)
    X = np.random.default_rng(0).normal(size=(24, 3)) + 4 * (np.arange(24) % 2)[:, None]
    names = ["cat", "dog"] * 12
    settings = {"train.epochs": 1, "memory.size": 4}
    Model.fit(from_arrays(X, names), method="proden+mine", device="cpu", settings=settings).save("model")
    rows = [{"features": row.tolist(), "candidates": [n], "label": n} for row, n in zip(X, names, strict=True)]
    Path("table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    forget()
    witness.unlink()
    return Path("model")


COMMANDS = (
    ("info", "model"),
    ("audit", "model"),
    ("predict", "model", "table.jsonl"),
    ("evaluate", "model", "table.jsonl"),
    ("update", "model", "table.jsonl"),
)


def test_no_command_runs_what_a_model_names(main: Any, model: Path, plugin: Path, witness: Path) -> None:
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    for command in COMMANDS:
        status, _, err = main(*command)
        assert status == 2, command
        assert not witness.exists(), command
        for wanted in (str(plugin), digest, f"--plugin {shlex.quote(str(plugin))}", "model.json"):
            assert wanted in err, (command, wanted)


def test_every_command_takes_it_from_the_user(
    main: Any, model: Path, plugin: Path, witness: Path, forget: Callable[[], None]
) -> None:
    for command in COMMANDS:
        status, _, err = main(*command, "--plugin", plugin)
        assert status == 0, (command, err)
        assert witness.exists()
        witness.unlink()
        forget()


def test_from_python(model: Path, plugin: Path, witness: Path, forget: Callable[[], None]) -> None:
    for load in (Model.load, ipll.IncrementalClassifier.load):
        with pytest.raises(ConfigError, match="no folder runs code by itself"):
            load(model)
        assert not witness.exists()
        load(model, plugins=[plugin])
        load(model)  # it is loaded by now
        forget()
        witness.unlink()
    load_plugins(plugin)
    assert Model.load(model).config.method == "proden+mine"


@pytest.mark.parametrize("named", ["model/evil.py", "evil.py", "model/../evil.py"])
def test_a_path_within_the_folder(main: Any, model: Path, witness: Path, named: str) -> None:
    """As an attacker writes it: relative to where the victim works, with the right SHA-256."""
    Path(named).write_text(f"open({str(witness)!r}, 'w')\n")
    facts = json.loads((model / "model.json").read_text())
    facts["config"]["plugins"] = {named: hashlib.sha256(Path(named).read_bytes()).hexdigest()}
    (model / "model.json").write_text(json.dumps(facts))
    for command in COMMANDS:
        assert main(*command).status == 2
        assert not witness.exists()


def test_a_run_that_was_stopped(
    main: Any, plugin: Path, witness: Path, quick: dict[str, Any], stop_at: Any, forget: Callable[[], None]
) -> None:
    with pytest.raises(ipll.Interrupted, match=f"ipll resume run --plugin {plugin}"):
        ipll.run("digits", "proden+mine", plugins=[plugin], out="run", reporter=stop_at(14), **quick)
    forget()
    witness.unlink()
    status, _, err = main("resume", "run")
    assert status == 2
    assert f"name it: --plugin {plugin}" in err
    with pytest.raises(ConfigError, match="plugins="):
        ipll.resume("run")
    assert not witness.exists()
    assert "mine" not in FAMILIES["retention"]
    assert main("resume", "run", "--plugin", plugin).status == 0


def test_a_cell_of_a_campaign_runs_no_code_of_its_folder(witness: Path, tmp_path: Path) -> None:
    """The folder of a stranger's campaign, whose configuration names a plugin: it is begun anew, without it."""
    settings = {"train.epochs": 1, "stream.tasks": 2, "train.steps_per_epoch": 1, "train.batch_size": 32}
    track = Plan.make(find_bench("prior").on("digits").with_settings(settings), (0,), tmp_path / "out").tracks[0]
    job = Job(track.cell, track.folder, "cpu")
    assert work(job).kind == "done"
    (track.folder / "result.json").unlink()
    evil, config = tmp_path / "evil.py", track.folder / "config.toml"
    evil.write_text(f"open({str(witness)!r}, 'w')\n")
    digest = hashlib.sha256(evil.read_bytes()).hexdigest()
    config.write_text(config.read_text() + f'\n[plugins]\n"{evil}" = "{digest}"\n')
    assert work(job).kind == "done"
    assert not witness.exists()


def test_what_comes_next_names_the_plugin(main: Any, model: Path, plugin: Path) -> None:
    out = main("update", "model", "table.jsonl", "--plugin", plugin).out
    assert out.count(f" --plugin {plugin}") == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_plugin_is_a_regular_file(main: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    status, _, err = main("methods", "--plugin", "pipe.py")
    assert status == 2
    assert "named pipe" in err


@pytest.mark.parametrize("content", ["[" * 200_000, '{"message": 3', "[]", "null"])
def test_the_state_of_a_stranger_s_campaign(tmp_path: Path, content: str) -> None:
    """Whatever lies in a cell's folder, it is told how the cell stands."""
    for name in ("result.json", "error.json"):
        (tmp_path / name).write_text(content)
    status = read_status(tmp_path)
    assert status.state is State.FAILED
    assert "result.json" in status.damage
    (tmp_path / "error.json").unlink()
    (tmp_path / "result.json").unlink()
    os.mkfifo(tmp_path / "result.json")
    assert "no regular file" in read_status(tmp_path).damage


@pytest.mark.parametrize("plugins", ['plugins = ["a"]', "plugins = 3", "[plugins]\na = [1]"])
def test_a_damaged_record_in_a_campaign(tmp_path: Path, plugins: str) -> None:
    (tmp_path / "config.toml").write_text(plugins + "\n")
    assert not can_resume(tmp_path, resolve("digits"))
