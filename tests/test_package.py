"""The package as a stranger gets it: data files travel, and it runs from any folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import resources
from pathlib import Path

import pytest

import ipll

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "ipll"
FILES = sorted(
    file.relative_to(PACKAGE).as_posix()
    for file in PACKAGE.rglob("*")
    if file.is_file() and file.parent.name != "__pycache__"
)
DATA = [name for name in FILES if not name.endswith(".py")]


@pytest.mark.parametrize("name", DATA)
def test_data_files_are_found_as_resources(name: str) -> None:
    file = resources.files("ipll").joinpath(name)
    assert file.is_file()
    if name != "py.typed":
        assert file.read_text(encoding="utf-8").strip()


def test_every_file_is_in_the_wheel(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern in .gitignore or a rule of the build would drop one in silence."""
    build = pytest.importorskip("hatchling.build")
    assert {"methods.toml", "paper/paper_results.csv", "paper/measured.jsonl"} <= set(DATA)
    monkeypatch.chdir(root)
    with zipfile.ZipFile(tmp_path / build.build_wheel(str(tmp_path))) as wheel:
        packed = [name.removeprefix("ipll/") for name in wheel.namelist() if name.startswith("ipll/")]
    assert sorted(packed) == FILES


def test_the_version_is_the_same_everywhere(root: Path) -> None:
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"] == ipll.__version__
    assert f"version: {ipll.__version__}" in (root / "CITATION.cff").read_text()


def test_public_names_are_there() -> None:
    assert all(hasattr(ipll, name) for name in ipll.__all__)
    assert {"run", "resume", "Stream", "Result", "load_source", "IpllError"} <= set(ipll.__all__)


def test_no_path_of_one_machine_in_the_source(root: Path) -> None:
    places = [re.escape(str(place)) for place in (root, root.parent) if place != Path(place.anchor)]
    absolute = re.compile(rf"(?<![\w.~-])(?:{'|'.join(places)}|/home/|/root/|/Users/|[A-Z]:\\)")
    for file in sorted((root / "src").rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            found = absolute.search(file.read_text(encoding="utf-8"))
            assert found is None, f"{file}: {found}"


def test_every_pin_is_within_the_range_that_the_package_states(root: Path) -> None:
    """A dependency without a pin would make the set-up depend on the day."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {line.partition("==")[0].lower(): line.partition("==")[2] for line in lines}
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    for requirement in (*project["dependencies"], *(one for one in extras if not one.startswith("ipll["))):
        name, _, lowest = requirement.partition(">=")
        name = name.partition("[")[0]  # ray[default]
        assert name.lower() in pins, f"{name} is not pinned"
        assert [int(x) for x in pins[name.lower()].split(".")[:2]] >= [int(x) for x in lowest.split(".")[:2]]


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_a_fresh_environment(root: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}

    def call(*command: object, cwd: Path = tmp_path) -> str:
        done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", root)
    (wheel,) = (tmp_path / "dist").glob("ipll-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    call(scripts / "python", "-m", "pip", "install", "--quiet", "-c", root / "constraints.txt", wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = call(scripts / "python", "-c", "import ipll; print(ipll.__file__)", cwd=elsewhere).strip()
    assert Path(place).is_relative_to(tmp_path / "venv")
    out = call(scripts / "ipll", "demo", cwd=elsewhere)
    assert "pgdr/no-memory" in out
    report = elsewhere / "runs" / "demo" / "report.html"
    assert "<html" in report.read_text(encoding="utf-8")
    demo = {name: ipll.Result.load(report.parent / name) for name in ("pgdr", "pgdr-no-memory")}
    assert demo["pgdr"].average_incremental_accuracy > demo["pgdr-no-memory"].average_incremental_accuracy
    assert demo["pgdr"]["environment"]["commit"] is None  # it is not run from a source tree
