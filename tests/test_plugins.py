"""Plugins: the walk-through of docs/adding_a_method.md, what a run keeps of them, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ipll
from ipll.component import FAMILIES, Batch, uniform_over
from ipll.config import resolve
from ipll.errors import ConfigError
from ipll.method import method_table
from ipll.networks.network import Output
from ipll.plugins import load_plugins, loaded_files
from ipll.testing import check_method

SMALL = """
from ipll.component import FAMILIES, Component
from ipll.method import register_method

@FAMILIES["retention"].register("mine")
class Mine(Component):
    def losses(self, out, targets, batch):
        return {"mine": out["weak"].features.square().mean()}

register_method("proden+mine", {"retention": "mine"}, base="proden+wa", doc="PRODEN with mine")
"""


@pytest.fixture(autouse=True)
def _alone(forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder of its own, with the plugins of no other test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A plugin with one member and one method."""
    file = tmp_path / "small.py"
    file.write_text(SMALL)
    return file


@pytest.fixture
def walk_through(tmp_path: Path, root: Path) -> Path:
    """fd.py, its tests, tiny.py and cc.py beside it, as they stand in the page."""
    page = (root / "docs" / "adding_a_method.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, text in zip(("fd.py", "tiny.py", "cc.py", "test_fd.py"), blocks, strict=True):
        (tmp_path / name).write_text(text)
    return tmp_path / "fd.py"


def terms(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """(task, mean terms of the loss) of every epoch."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["task"], line["terms"]) for line in lines if line["kind"] == "epoch"]


# The walk-through


def test_the_walk_through_learns(main: Any, walk_through: Path, as_options: Any) -> None:
    options = as_options({"train.epochs": 8, "stream.tasks": 3})
    status, out, err = main("run", "digits", "--plugin", "fd.py", "-m", "proden+fd", "--out", "run", *options)
    assert status == 0, err
    result = ipll.Result.load("run")
    assert result.last_accuracy > 80  # of ten classes
    assert "proden+fd" in out
    for task, found in terms(Path("run")):
        assert ("fd" in found) == (task > 0)
        if task:
            assert 0 < found["fd"] < 2 * 5.0 * (8 / 2) ** 0.5
    listed = main("methods", "--plugin", walk_through).out
    for line in (
        r"│ proden\+fd +│ proden · feature-distillation · herding memory",
        r"│ pgdr/fd +│ pgdr, but feature-d",
    ):
        assert re.search(line, listed)
    assert re.search(r"│ retention.base +│ 5.0 +│ official code", main("methods", "proden+fd").out)
    assert re.search(r"│ retention.base +│ 1.0 +│ method", main("methods", "pgdr/fd").out)
    assert (
        "temperature" not in main("methods", "proden+fd").out
    )  # iCaRL's distillation is gone, and what was set for it


def test_the_walk_through_keeps_features(walk_through: Path, quick: dict[str, Any]) -> None:
    """The constraint does what it is for: with it, features of the next task's network point where they pointed."""
    drift = {}
    for base in (0.01, 50.0):
        out = Path(f"run-{base}")
        settings = quick | {"retention.base": base, "train.epochs": 4, "train.steps_per_epoch": 0}
        ipll.run("digits", "proden+fd", plugins=[walk_through], out=out, **settings)
        (last,) = (found["fd"] for task, found in terms(out)[7:8] if task == 1)
        drift[base] = last / base
    assert drift[50.0] < drift[0.01] / 2


def test_the_tests_of_the_walk_through(walk_through: Path, root: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-k", "distance or proden+fd", "test_fd.py"]
    done = subprocess.run(command, env=environment, cwd=walk_through.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_disambiguation_of_the_page_keeps_the_contract(walk_through: Path) -> None:
    check_method("cc+wa", plugins=[walk_through.with_name("cc.py")])


def test_the_backbone_of_the_page_learns(walk_through: Path, quick: dict[str, Any]) -> None:
    settings = quick | {"model.backbone": "tiny"}
    result = ipll.run("digits", plugins=[walk_through.with_name("tiny.py")], **settings)
    assert len(result.accuracy_per_task) == 3


def test_the_disambiguation_of_the_page_descends_its_loss(walk_through: Path) -> None:
    """Cross-entropy with its targets has the gradient of - log sum_{j in S_i} f_j(x_i), as the page says."""
    load_plugins([walk_through.with_name("cc.py")])
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    sets = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 1]]).bool()
    wanted = torch.zeros_like(logits)
    for i in range(5):
        (gradient,) = torch.autograd.grad(-logits.softmax(dim=1)[i][sets[i]].sum().log() / 5, logits)
        wanted += gradient
    out = {"weak": Output(logits, logits, logits, logits[:, :0])}
    batch = Batch(torch.arange(5), sets, uniform_over(sets), torch.zeros(5, dtype=torch.bool), {})
    cc: Any = FAMILIES["disambiguation"]["cc"](None)
    with torch.no_grad():
        used, stored = cc.targets(batch.p, out, batch)
    (found,) = torch.autograd.grad(cc.losses(out, used, batch)["ce"], logits)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(used, stored)


# What a run keeps


def test_a_run_keeps_its_plugins_and_resumes_with_them(
    cli: Any, main: Any, small: Path, tmp_path: Path, quick: dict[str, Any], stop_at: Any, forget: Callable[[], None]
) -> None:
    whole = ipll.run("digits", "proden+mine", plugins=[small], out=tmp_path / "whole", **quick)
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", "proden+mine", plugins=["small.py"], out=tmp_path / "run", reporter=stop_at(14), **quick)
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["plugins"]
    assert kept == {str(small): hashlib.sha256(small.read_bytes()).hexdigest()}
    assert whole["config"]["plugins"] == kept
    status, _, err = cli("resume", "run", "--plugin", small)  # a process of its own
    assert status == 0, err
    assert ipll.Result.load("run").accuracy_per_task == whole.accuracy_per_task
    assert all("mine" in found for _, found in terms(tmp_path / "run"))
    forget()
    assert main("report", "run", "whole", "--out", "both.html").status == 0  # for which the plugin is not needed


@pytest.fixture
def stopped_with(small: Path, quick: dict[str, Any], stop_at: Any, forget: Callable[[], None]) -> Path:
    """The folder of a run with a plugin, stopped, as another process finds it."""
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", "proden+mine", plugins=[small], out="run", reporter=stop_at(14), **quick)
    forget()
    return Path("run")


def test_a_changed_plugin_is_not_resumed_with(
    main: Any, small: Path, stopped_with: Path, snapshot: Any, forget: Callable[[], None]
) -> None:
    before = snapshot(stopped_with)
    small.write_text(SMALL.replace(".square()", ".abs()"))
    status, _, err = main("resume", stopped_with, "--plugin", small)
    assert status == 2
    assert f"the plugin {small} has changed since the run began" in err
    assert "Traceback" not in err
    assert snapshot(stopped_with) == before
    small.write_text(SMALL)
    forget()
    assert main("resume", stopped_with, "--plugin", small).status == 0


def test_a_missing_plugin_and_a_copy_of_it(main: Any, small: Path, stopped_with: Path) -> None:
    moved = shutil.move(small, "elsewhere.py")
    status, _, err = main("resume", stopped_with)
    assert status == 2
    assert f"the plugin {small} (SHA-256 " in err
    assert "The file is missing there" in err
    assert "--plugin" in err
    assert main("resume", stopped_with, "--plugin", moved).status == 0


def test_a_run_without_plugins_keeps_none(finished: Path) -> None:
    assert "plugins" not in (finished / "config.toml").read_text()
    assert "plugins" not in ipll.Result.load(finished)["config"]


def test_a_configuration_given_as_a_file_runs_no_code(
    main: Any, small: Path, quick_options: list[str], forget: Callable[[], None]
) -> None:
    """A new run takes settings from it; plugins are what its own command names."""
    assert main("run", "digits", "--plugin", small, *quick_options, "--out", "first").status == 0
    forget()
    assert main("run", "digits", "--config", "first/config.toml", "--out", "second").status == 0
    assert "mine" not in FAMILIES["retention"]
    assert "plugins" not in ipll.Result.load("second")["config"]


# Loading


def test_the_same_file_is_loaded_once(small: Path, tmp_path: Path) -> None:
    small.write_text(SMALL + f"\nwith open({str(tmp_path / 'log')!r}, 'a') as log:\n    log.write('loaded ')\n")
    copy = shutil.copy(small, tmp_path / "copy.py")
    load_plugins([small, str(small), "small.py"])
    load_plugins([tmp_path / "." / "small.py", copy])
    load_plugins("small.py")
    assert (tmp_path / "log").read_text() == "loaded "
    assert list(loaded_files()) == [str(small)]
    small.write_text(SMALL)
    with pytest.raises(ConfigError, match="has changed since it was loaded"):
        load_plugins([small])


def test_methods_of_plugins_are_methods(small: Path) -> None:
    load_plugins([small])
    row = method_table()["proden+mine"]
    assert row["doc"] == "PRODEN with mine"
    assert (row["retention"], row["memory"]) == ("mine", "herding")
    assert resolve("cifar100", "proden+mine").train.lr == 0.1
    with pytest.raises(ConfigError, match=r"Did you mean 'proden\+mine'"):
        resolve("digits", "proden+mnie")


def test_data_sets_and_backbones_of_plugins(main: Any, tmp_path: Path, quick_options: list[str]) -> None:
    (tmp_path / "more.py").write_text("""
from dataclasses import replace
from torch import nn
from ipll.data.source import SOURCES, SourceLoader
from ipll.data.sources.digits import Digits
from ipll.networks.backbones import BACKBONES, Backbone

@SOURCES.register("six-digits")
class SixDigits(Digits):
    name, description = "six-digits", "the first six of the digits"

    def load(self, data_root):
        source = super().load(data_root)
        train, test = source.train_labels < 6, source.test_labels < 6
        return replace(
            source, name=self.name, class_names=source.class_names[:6],
            train_samples=source.train_samples[train], train_labels=source.train_labels[train],
            test_samples=source.test_samples[test], test_labels=source.test_labels[test],
        )

@BACKBONES.register("linear")
class Linear(Backbone):
    def __init__(self, channels):
        super().__init__()
        self.dim = 16
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 16), nn.ReLU())

    def forward(self, x):
        return self.layer(x)
""")
    source = ["--set", "data.source=six-digits", "--set", "stream.tasks=3"]
    assert re.search(r"│ six-digits +│ yes +│ +│ the first six", main("datasets", "--plugin", "more.py").out)
    status, out, _ = main("stream", "digits", "--plugin", "more.py", *source)
    assert status == 0
    assert re.search(r"│ 3 +│ 4 \+ 2", out)
    options = [*quick_options, *source, "--set", "model.backbone=linear", "--plugin", "more.py", "--out", "run"]
    assert main("run", "digits", *options).status == 0
    assert ipll.Result.load("run")["seen_classes_per_task"] == [2, 4, 6]


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A package 'nice' with an entry point, as pip would leave it."""
    site = tmp_path / "site"
    (site / "nice-1.0.dist-info").mkdir(parents=True)
    (site / "nice-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: nice\nVersion: 1.0\n")
    (site / "nice-1.0.dist-info" / "entry_points.txt").write_text("[ipll.plugins]\nours = nice_plugin\n")
    (site / "nice_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "nice_plugin", raising=False)


def test_plugins_of_installed_packages(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Any, quick: dict[str, Any]
) -> None:
    installed(tmp_path, monkeypatch, SMALL)
    forget()
    assert "proden+mine" not in method_table()  # not before someone asks
    result = ipll.run("digits", "proden+mine", **quick)
    assert len(result.accuracy_per_task) == 3
    assert "proden+mine" in main("methods").out


def test_a_broken_plugin_of_an_installed_package(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Any
) -> None:
    installed(tmp_path, monkeypatch, "import no_such_module\n")
    forget()
    status, out, err = main("methods")
    assert (status, out) == (2, "")
    assert "the plugin 'ours' of nice: ModuleNotFoundError: No module named 'no_such_module'" in err


# Refusals

AGAIN = 'from ipll.component import FAMILIES, Component\n\nFAMILIES["retention"].register("wa")(Component)\n'
BASELESS = (
    "from ipll.component import FAMILIES, Component\n\n\n@FAMILIES['{}'].register('x')\nclass X(Component):\n    pass\n"
)
METHOD = "from ipll.method import register_method\n\n\nregister_method({}, doc='')\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n\nraise RuntimeError('no such\\nluck')\n", "line 3: RuntimeError: no such luck"),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: "),
        ("def f():\n    raise KeyError\n\n\nf()\n", "line 2: KeyError"),
        ("x = 1\nif x\n    pass\n", "line 2: SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        (AGAIN, "line 3: retention 'wa' is registered twice."),
        (
            BASELESS.format("disambiguation"),
            "line 4: disambiguation 'x' is not made of the family's base: write class X(Disambiguation), after from "
            "ipll.families.disambiguation import Disambiguation.",
        ),
        (BASELESS.format("memory"), "line 4: memory 'x' is not made of the family's base: write class X(Memory)"),
        (BASELESS.format("separation"), "line 4: separation 'x' is not made of the family's base"),
        (
            "from ipll.component import FAMILIES\n\nFAMILIES['retention'].register('x')(lambda settings: None)\n",
            "line 3: retention 'x' is not made of the family's base",
        ),
        (METHOD.format("'pgdr', {}, base='proden'"), "line 4: method 'pgdr' is there already"),
        (METHOD.format("'x', {}, base='prodne'"), "line 4: unknown method 'prodne'. Did you mean 'proden'?"),
        (METHOD.format("'x', {'retention': 'wa'}"), "line 4: method 'x' names no disambiguation"),
        (METHOD.format("'x', {'memory': 'herdng'}, base='pgdr'"), "line 4: unknown memory 'herdng'. Did you mean"),
        (METHOD.format("'x', {'auxiliary': 'consistency'}, base='pgdr'"), "line 4: method 'x': auxiliary takes a list"),
    ],
)
def test_a_plugin_that_fails(main: Any, tmp_path: Path, snapshot: Any, text: str, says: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    before = snapshot(tmp_path)
    status, out, err = main("run", "digits", "--plugin", "bad.py")
    assert (status, out) == (2, "")
    assert err.startswith(f"ipll: {tmp_path / 'bad.py'}, {says}")
    assert len(err.splitlines()) == 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(("name", "says"), [("gone.py", "No such file"), (".", "directory")])
def test_a_plugin_that_cannot_be_read(main: Any, tmp_path: Path, name: str, says: str) -> None:
    for command in (["run", "digits"], ["methods"], ["datasets"], ["stream", "digits"]):
        status, out, err = main(*command, "--plugin", name)
        assert (status, out) == (2, "")
        assert err.startswith(f"ipll: cannot read the plugin {(tmp_path / name).resolve()}: ")
        assert says in err


def test_a_plugin_that_failed_leaves_nothing_and_can_be_mended(small: Path) -> None:
    small.write_text(SMALL + "\noops\n")
    with pytest.raises(ConfigError, match="NameError"):
        load_plugins([small])
    assert "mine" not in FAMILIES["retention"]
    assert "proden+mine" not in method_table()
    assert loaded_files() == {}
    small.write_text(SMALL)
    load_plugins([small])
    assert "proden+mine" in method_table()


def test_two_plugins_of_one_name(small: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("# another file\n" + SMALL)
    with pytest.raises(ConfigError, match=r"other\.py, line 6: retention 'mine' is registered twice"):
        load_plugins([small, tmp_path / "other.py"])
    assert "mine" in FAMILIES["retention"]


def test_an_unknown_setting_in_a_method_of_a_plugin(main: Any, small: Path) -> None:
    small.write_text(SMALL.replace('"retention": "mine"', '"retention": "mine", "memory.sise": 5'))
    status, _, err = main("run", "digits", "--plugin", small, "-m", "proden+mine")
    assert status == 2
    assert "Did you mean 'memory.size'?" in err


def test_plugins_are_no_setting(main: Any) -> None:
    status, _, err = main("run", "digits", "--set", "plugins.x=abc")
    assert status == 2
    assert "use the option --plugin" in err


def test_a_damaged_record_of_plugins(main: Any, stopped_with: Path) -> None:
    (stopped_with / "manifest.json").unlink()  # as of an older version: else the change itself is refused
    file = stopped_with / "config.toml"
    text = file.read_text()
    file.write_text('plugins = ["small.py"]\n' + text[: text.index("[plugins]")])
    status, _, err = main("resume", stopped_with)
    assert status == 2
    assert str(file) in err
    assert "'plugins' is a section" in err
