"""Scripts of the repository, as modules: those of the benchmarks' folder, or of another."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"


def load_script(name: str, folder: str = "benchmarks") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
