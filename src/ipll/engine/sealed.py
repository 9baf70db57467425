"""Sealed JSON: a file that is just as it was written, or is refused.

It holds `format` first and `seal` last, the SHA-256 of the text without it. `format` and `seal` guard each other: a
file that has either must have both, so damage cannot make a sealed file look like one of an older version, which had
no seal. Files beside it are vouched for by their SHA-256 in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipll.engine.files import open_ours, parse_json, read_ours, write_text
from ipll.errors import NewerVersion

FORMAT = 2  # of run and model folders; before it there were no seals, and only models had a number


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a table of fields, ready for JSON."""
    whole = {"format": FORMAT, **value}
    write_text(path, _text({**whole, "seal": _digest(whole)}))


def read_sealed(path: Path) -> dict[str, Any]:
    """-> the fields as they were written, of an old file too. OSError where it cannot be read, ValueError where it is
    damaged; both tell why, not where. NewerVersion where it is neither."""
    content = read_ours(path)
    try:
        value = parse_json(content)
    except UnicodeDecodeError:
        raise ValueError("is not text") from None
    except ValueError as error:
        raise ValueError(f"is cut short or damaged ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("is not a table of fields")
    number, seal = value.pop("format", None), value.pop("seal", None)
    if seal is None and (number is None or number == 1):
        return value  # written before there were seals
    if isinstance(number, int) and number > FORMAT and seal != _digest({"format": FORMAT, **value}):  # not one bit
        raise NewerVersion(f"{path} has format {number}, and this version of ipll reads {FORMAT}. Update ipll.")
    if number != FORMAT or not _is_whole({"format": number, **value}, seal, content):
        raise ValueError("is not as it was written: its seal is broken")
    return value


def _is_whole(value: Mapping[str, Any], seal: object, content: bytes) -> bool:
    """Is the seal that of the value, and the file what is written of both? The latter finds damage that changes no
    value, such as 1E5 for 1e5."""
    try:
        return seal == _digest(value) and _text({**value, "seal": seal}).encode() == content
    except (RecursionError, ValueError):  # nested too deeply, or no number: not of ours
        return False


def check_digest(path: Path, sha256: object) -> None:
    """Raises ValueError unless this is the file that a sealed one vouches for; OSError where it cannot be read."""
    with open_ours(path) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError(f"{path.name} is not the file that was written")


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
