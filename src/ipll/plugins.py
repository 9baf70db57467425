"""Plugins: members, data sets, backbones and methods from outside the package.

A plugin is a Python file that registers what it adds when it is run, or an installed package that names such a module
under the entry point group 'ipll.plugins'. Files are known by their SHA-256: a run keeps it, and is only ever resumed
with the very same code. A folder never brings code: a file that a run or a model was made with is loaded where the user
names it, and nowhere else.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from ipll.component import FAMILIES
from ipll.data.candidates import FLIPS
from ipll.data.sources import SOURCES
from ipll.engine.regular import check_regular
from ipll.errors import ConfigError, IpllError
from ipll.method import ADDED
from ipll.networks.backbones import BACKBONES
from ipll.registry import Registry
from ipll.views.augment import VIEWS

GROUP = "ipll.plugins"
REGISTRIES: tuple[Registry[Any], ...] = (*FAMILIES.values(), SOURCES, BACKBONES, VIEWS, FLIPS, ADDED)

_files: dict[str, str] = {}  # absolute path -> SHA-256, of all that this process has loaded


def load_plugins(files: str | Path | Iterable[str | Path] = ()) -> None:
    """Loads the plugins of installed packages, and these files. What is there already is not loaded again."""
    _load_installed()
    for file in [files] if isinstance(files, (str, Path)) else files:
        path = Path(file).expanduser().resolve()
        source = _read(path)
        digest = hashlib.sha256(source).hexdigest()
        if digest in _files.values():
            continue
        if str(path) in _files:
            raise ConfigError(f"the plugin {path} has changed since it was loaded: start Python anew.")
        _all_or_nothing(str(path), partial(_execute, path, source))
        _files[str(path)] = digest


def loaded_files() -> dict[str, str]:
    """-> absolute path and SHA-256 of the files loaded so far."""
    return dict(_files)


def check_recorded(recorded: Mapping[str, str]) -> None:
    """Raises unless all files that a run or a model was made with (path -> SHA-256) are loaded, from wherever.

    None is loaded by itself: who sends a folder could have put any code beside it.
    """
    for path, digest in recorded.items():
        if digest in _files.values():
            continue
        others = [file for file, loaded in _files.items() if loaded not in recorded.values()]
        if changed := next((file for file in others if Path(file).name == Path(path).name), None):
            raise ConfigError(
                f"the plugin {changed} has changed since the run began (the SHA-256 was {digest}): put the former "
                "file back, name a copy of it with --plugin FILE, or start anew with --overwrite."
            )
        there = "" if Path(path).is_file() else " The file is missing there: put it back, or name a copy of it."
        raise ConfigError(
            f"this was made with the plugin {path} (SHA-256 {digest}), and no folder runs code by itself. Where you "
            f"trust that file, name it: --plugin {shlex.quote(path)} (in Python: plugins=[FILE]).{there}"
        )


def plugin_options(recorded: Iterable[tuple[str, str]]) -> str:
    """-> ' --plugin FILE' for each of these files, to be added to a command that is told to people."""
    return "".join(f" --plugin {shlex.quote(path)}" for path, _ in recorded)


@cache
def _load_installed() -> None:
    for entry in metadata.entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else "a package"
        _all_or_nothing(f"the plugin '{entry.name}' of {package}", entry.load)


def _read(path: Path) -> bytes:
    try:
        check_regular(path)
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the plugin {path}: {error.strerror}.") from None


def _execute(path: Path, source: bytes) -> None:
    """Runs a file as a module of its own. It stays in sys.modules, where type hints of its classes are looked up."""
    module = ModuleType(f"ipll_plugin_{path.stem}_{hashlib.sha256(source).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), vars(module))


def _all_or_nothing(what: str, load: Callable[[], object]) -> None:
    """Loads a plugin; where that fails, says where, and takes back what it had registered by then."""
    before = [dict(registry.members) for registry in REGISTRIES]
    try:
        load()
    except (Exception, SystemExit) as error:
        for registry, members in zip(REGISTRIES, before, strict=True):
            registry.members.clear()
            registry.members.update(members)
        raise ConfigError(f"{what}{_line(what, error)}: {_reason(error)}") from None


def _line(path: str, error: BaseException) -> str:
    """-> ', line N' of the plugin's own file, as deep in the traceback as that goes; '' where it is not in it."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""


def _reason(error: BaseException) -> str:
    """In one line; the type's name is left out where the message was written for users."""
    message = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return message if isinstance(error, IpllError) else f"{type(error).__name__}: {message}".removesuffix(": ")
