"""The tree shows the architecture: every import of one package or module of another points down, wherever it stands.

Late imports (inside functions) and those for annotations alone count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ipll

SOURCE = Path(ipll.__file__).parent

# From the ground up. Names in one row do not import each other; within a package, modules may, without cycles.
LAYERS = (
    ("errors", "rng", "messages"),
    ("registry", "settings"),
    ("engine",),
    ("networks",),
    ("views",),
    ("data",),
    ("pool",),
    ("component",),
    ("prototypes", "batches"),
    ("families",),
    ("method", "step"),
    ("plugins",),
    ("config",),
    ("learner",),
    ("grow", "testing"),
    ("results",),
    ("progress",),
    ("driver",),
    ("pages",),
    ("report",),
    ("benchmark",),
    ("paper",),
    ("own",),
    ("estimator", "demo"),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, Path]:
    found = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name != "__init__"}


def imported(path: Path) -> Iterator[str]:
    """-> the modules of ipll that a file imports, anywhere in it; a name of a package counts as its door."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ipll":
            package = (node.module or "").removeprefix("ipll").removeprefix(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".removeprefix(".")
                yield inner if inner in modules() else package
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("ipll.") for a in node.names if a.name.startswith("ipll."))


GRAPH = {name: sorted(set(imported(path)) - {"", name}) for name, path in modules().items()}


def test_every_name_has_its_layer() -> None:
    assert {name.split(".")[0] for name in GRAPH} == set(LEVEL)


def test_imports_point_down() -> None:
    upward = [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if name.split(".")[0] != other.split(".")[0] and LEVEL[other.split(".")[0]] >= LEVEL[name.split(".")[0]]
    ]
    assert not upward


def test_modules_do_not_import_each_other_in_circles() -> None:
    done: set[str] = set()

    def follow(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        for other in GRAPH.get(name, ()):
            follow(other, (*path, name))
        done.add(name)

    for name in GRAPH:
        follow(name, ())
