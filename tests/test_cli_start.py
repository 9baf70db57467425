"""The program answers at once: help, its version and mistakes are told without what takes seconds to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipll.cli import app
from ipll.cli.mistakes import near_settings, setting_meanings
from ipll.component import FAMILIES
from ipll.config import SECTIONS
from ipll.settings import describe

HEAVY = {"torch", "numpy", "scipy", "sklearn", "jinja2", "pyarrow", "PIL", "safetensors", "matplotlib", "pydantic"}
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
ASK = """
import json, sys
from ipll.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["ipll", *words]
    try:
        main()
    except SystemExit:
        pass
    print("asked", *words, "imports", json.dumps(sorted(sys.modules)), file=sys.__stderr__)
"""


def test_help_version_and_mistakes_import_nothing_heavy(root: Path) -> None:
    asked = [["--version"], ["--help"], [], ["fitt"], ["fit", "--epochs", "3"], ["predict", "--oot", "x"]]
    asked += [[name, "--help"] for name in COMMANDS]
    command, environment = (
        [sys.executable, "-c", ASK, json.dumps(asked)],
        os.environ | {"PYTHONPATH": str(root / "src")},
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    told = [line.partition(" imports ") for line in done.stderr.splitlines() if " imports [" in line]
    assert len(told) == len(asked)
    for words, _, modules in told:
        assert not HEAVY & set(json.loads(modules)), words


def test_training_on_a_cpu_does_not_import_a_compiler(root: Path, quick_options: list[str], tmp_path: Path) -> None:
    """It takes more than a second, and PyTorch brings it along with its optimisers, among others."""
    words = ["run", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), *quick_options]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", ASK, json.dumps([words])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "run" / "result.json").exists(), done.stderr
    modules = set(json.loads(done.stderr.partition(" imports ")[2]))
    assert "torch.optim" in modules
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & modules


STOP = """
import os, signal, sys
from ipll.__main__ import main
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[0]:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background
sys.meta_path.insert(0, Stop())
sys.argv = sys.argv[1:]
main()
"""


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("ipll.cli", "Stopped."),
        ("typer", "Stopped."),
        ("rich.console", "Stopped."),
        ("ipll.benchmark.run", "Stopping."),
        ("torch", "Stopping."),
    ],
)
def test_ctrl_c_while_it_is_still_importing(root: Path, tmp_path: Path, module: str, told: str) -> None:
    command = [sys.executable, "-c", STOP, module, "run", "digits", "--out", "run"]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{told}\n")
    assert not list(tmp_path.iterdir())


def test_the_sources_tell_all_settings() -> None:
    """They are read, not imported, where an option is mistyped."""
    keys = {f"{section}.{name}" for section, kind in SECTIONS.items() for name, *_ in describe(kind)}
    for family, registry in FAMILIES.items():
        for kind, member in registry.members.items():
            section = f"{family}.{kind}" if family == "auxiliary" else family
            keys |= {f"{section}.{name}" for name, *_ in describe(member.Settings)}
    found = setting_meanings()
    assert set(found) == keys
    assert found["train.lr"] == "learning rate at the start of a task"


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("--epochs", ["train.epochs"]),
        ("--lr", ["train.lr"]),
        ("--batch-size", ["train.batch_size"]),
        ("--epohcs", ["train.epochs"]),
        ("--learning-rate", ["train.lr"]),
        ("--size", ["data.size", "memory.size"]),
        ("--nothing-like-it", []),
    ],
)
def test_settings_that_an_option_may_have_meant(option: str, settings: list[str]) -> None:
    assert near_settings(option) == settings


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fit", "--epochs", "3"), "No such option: --epochs. Did you mean --set train.epochs=VALUE?"),
        (("run", "digits", "--lr=1"), "No such option: --lr. Did you mean --set train.lr=VALUE?"),
        (("fit", "--oot", "m"), "--out"),
        (("update", "m", "--epochs", "3"), "A setting (train.epochs), which this command does not take."),
        (("fitt",), "Did you mean 'fit'?"),
    ],
)
def test_a_mistake_gets_a_way_out(
    main: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    status, out, err = main(*words)
    assert (status, out) == (2, "")
    assert told in err


def test_what_needs_the_data_sets_names_finds_them(cli: Any) -> None:
    """In a process of its own, in which nothing else has imported them."""
    assert "train.epochs" in cli("methods", "pgdr").out
    assert "holds no finished run of tab3" in cli("table", "tab3", "--preset", "digits").err
