"""How a cell stands, told by its folder alone: done, failed, stopped or open. A corrupt result counts as none."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ipll.config import Config, read_toml
from ipll.data.stream import Stream
from ipll.engine.files import parse_json, read_ours, write_json
from ipll.errors import IpllError, NewerVersion, RunError
from ipll.results.folder import check_whole
from ipll.results.result import Result


class State(StrEnum):
    DONE = "done"
    FAILED = "failed"  # the last attempt left error.json
    STOPPED = "stopped"  # a run that can be resumed
    OPEN = "open"


class Status(NamedTuple):
    state: State
    result: Mapping[str, Any] = MappingProxyType({})  # of a cell that is done
    error: str = ""  # of one that failed
    damage: str = ""  # what is wrong with the result.json that lies there; the caller says what comes of it


def read_status(folder: Path) -> Status:
    damage = ""
    if (folder / "result.json").exists():
        try:
            return Status(State.DONE, Result.load(folder, remedy=""))
        except NewerVersion:  # no damage: it must not be set aside
            raise
        except RunError as problem:
            damage = str(problem)
    if (folder / "error.json").exists():
        return Status(State.FAILED, error=_message(folder / "error.json"), damage=damage)
    return Status(State.STOPPED if (folder / "config.toml").exists() else State.OPEN, damage=damage)


def set_aside(folder: Path) -> Path | None:
    """Renames a corrupt result.json to result.json.corrupt-N, for the holder of the cell's claim. -> the new name."""
    if not read_status(folder).damage:
        return None
    number = 1
    while (target := folder / f"result.json.corrupt-{number}").exists():
        number += 1
    return (folder / "result.json").rename(target)


def can_resume(folder: Path, config: Config) -> bool:
    """Does the folder hold an unfinished run of just this configuration? One of other settings (an older version's
    defaults), of plugins that have changed since, or with damaged files is begun anew."""
    if not (folder / "config.toml").exists():
        return False
    try:
        check_whole(folder)
        found, wanted = read_toml(folder / "config.toml"), config.to_table()
        plugins = [sorted(table.pop("plugins", {}).values()) for table in (found, wanted)]
        return found == wanted and plugins[0] == plugins[1] and Stream.load(folder / "stream.npz").seed == config.seed
    except NewerVersion:
        raise
    except (IpllError, OSError, AttributeError, TypeError):  # `plugins` need not be a table there
        return False


def record_error(folder: Path, error: BaseException) -> str:
    """Writes error.json. -> its message, in one line."""
    text = " ".join(str(error).split())
    message = text if isinstance(error, IpllError) else f"{type(error).__name__}: {text}".removesuffix(": ")
    lines = traceback.format_exception(error)
    return write_error(folder, message, "".join(lines))


def write_error(folder: Path, message: str, details: str) -> str:
    record = {
        "message": message,
        "traceback": details,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
    }
    write_json(folder / "error.json", record)
    return message


def _message(file: Path) -> str:
    try:
        return str(parse_json(read_ours(file))["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its error.json cannot be read"
