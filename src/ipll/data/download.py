"""Fetches a data set's archive and unpacks it.

The transfer is the standard library's. pooch would verify and unpack as well, but it cannot resume a transfer that was
cut, and a few hundred megabytes over a poor line need that. A file that is not whole is never found under its own
name: the transfer goes to `NAME.part` and is renamed once its checksum is right; an archive is unpacked in a temporary
folder and then renamed.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import re
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ipll.engine.locks import one_at_a_time
from ipll.engine.regular import check_regular, clear_link
from ipll.errors import DataError
from ipll.messages import tell

ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt; it doubles from one attempt to the next
TIMEOUT = 30.0  # seconds without an answer or a byte
CHUNK = 1 << 18


class _Cut(Exception):
    """The connection broke, or the server was busy: what has come is kept, and another attempt may bring the rest."""


def fetch(url: str, destination: Path, checksum: str, progress: bool = True) -> Path:
    """Fetches `url` to `destination`, a file directly under the data root, unless it is there. -> `destination`.

    `checksum` is 'md5:HEX' or 'sha256:HEX'. A part file left by an earlier call is resumed. `progress` shows a bar on
    stderr where that is a terminal.
    """
    if destination.exists():
        found = _checksum_of_file(destination, checksum)
        if found != checksum:
            raise DataError(
                f"{destination} has checksum {found}, expected {checksum}. Delete it and try again, or extract it "
                f"by hand in {destination.parent}."
            )
        return destination
    root = destination.parent
    if root.is_file():
        raise DataError(f"{root} is a file. Set --data-root to the folder that it is in: {root.absolute().parent}.")
    advice = _advice(destination)
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    part = destination.with_name(destination.name + ".part")
    try:
        clear_link(part)
        root.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(destination.with_name(f".{destination.name}.lock")):
            if not destination.exists():  # no other process has fetched it meanwhile
                _fetch(url, part, destination, checksum, progress, advice)
        return destination
    except OSError as error:  # of the disk: those of the network are dealt with where they arise
        raise DataError(f"cannot write {part}: {error.strerror or error}. {advice}") from error
    finally:
        for folder in missing:
            with suppress(OSError):  # it holds something, or was not made
                folder.rmdir()


def _fetch(url: str, part: Path, destination: Path, checksum: str, progress: bool, advice: str) -> None:
    _attempts(url, part, progress, advice)
    found = _checksum(part, checksum)
    if found != checksum:
        part.unlink()
        raise DataError(f"what came from {url} has checksum {found}, expected {checksum}. It was removed; try again.")
    os.replace(part, destination)


def extract(archive: Path, into: Path) -> Path:
    """Unpacks the folder `into.name` of a tar.gz or zip `archive` as `into`. -> `into`.

    `into` appears at once and whole. Where it is there already, only the files that it lacks are added to it.
    """
    tell(f"Extracting {archive} to {into}. This is done once.")
    try:
        with tempfile.TemporaryDirectory(prefix=f"{into.name}.", suffix=".tmp", dir=into.parent) as temporary:
            _unpack(archive, temporary)
            unpacked = Path(temporary, into.name)
            if not unpacked.is_dir():
                raise DataError(f"{archive} holds no folder '{into.name}'. Delete it and fetch it again.")
            try:
                os.replace(unpacked, into)
            except OSError:  # `into` is there and not empty
                for item in unpacked.iterdir():
                    if not (into / item.name).exists():
                        os.replace(item, into / item.name)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{archive} is damaged ({error}). Delete it and fetch it again.") from error
    except OSError as error:
        raise DataError(
            f"cannot unpack {archive} to {into}: {error}. Is the disk full or the folder closed?"
        ) from error
    return into


def _unpack(archive: Path, folder: str) -> None:
    """No member can lead out of the folder."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)  # drops '..' and drives
        return
    with tarfile.open(archive, "r:gz") as tar:
        # Python 3.11 before 3.11.4 has no filters; the archive's checksum has been verified there all the same.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(folder)


def _advice(destination: Path) -> str:
    absent = "" if destination.parent.is_dir() else ", which does not exist"
    return (
        f"You may put the file as {destination} by hand. The data root in force is {destination.parent}{absent} "
        "(--data-root, else the environment variable IPLL_DATA, sets it)."
    )


def _checksum_of_file(path: Path, like: str) -> str:
    """Like `_checksum`; what is no file, or cannot be read, is a DataError."""
    try:
        check_regular(path)
        return _checksum(path, like)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Move it away, and try again.") from error


def _checksum(path: Path, like: str) -> str:
    """-> 'ALGORITHM:HEX' of the file, by the algorithm that `like` names."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _attempts(url: str, part: Path, progress: bool, advice: str) -> None:
    """Transfers `url` to `part`, in as many attempts as it takes and as are allowed."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bar:
        shown = bar.add_task(part.stem, total=None)
        for attempt in range(ATTEMPTS):
            try:
                return _transfer(url, part, lambda done, total: bar.update(shown, completed=done, total=total))
            except urllib.error.HTTPError as error:
                raise DataError(f"{url} answered {error.code} {error.reason}. {advice}") from error
            except urllib.error.URLError as error:
                if attempt == 0:  # nothing was cut, there was no connection: do not keep the user waiting
                    raise DataError(f"cannot reach {url}: {error.reason}. {advice}") from error
                cause: Exception = error
            except _Cut as error:
                cause = error
            if attempt < ATTEMPTS - 1:
                time.sleep(PAUSE * 2**attempt)
    kept = part.stat().st_size if part.exists() else 0
    raise DataError(
        f"the transfer of {url} was cut {ATTEMPTS} times ({cause}). {kept} bytes are kept in {part}: "
        f"try again, and it goes on from there. {advice}"
    ) from cause


def _transfer(url: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """One attempt: asks for what `part` lacks and adds it, or starts anew where the server cannot give a part.

    `report` is told how many bytes are there, and of how many where the server says so.
    """
    have = part.stat().st_size if part.exists() else 0
    if (response := _ask(url, part, have)) is None:
        return
    with response:
        # A server that ignores Range answers 200 and sends the whole file; a range other than the one asked for is
        # as useless as none.
        first = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if response.status == http.HTTPStatus.PARTIAL_CONTENT and (first is None or int(first[1]) != have):
            part.unlink(missing_ok=True)
            raise _Cut("the server sent another part than the one asked for")
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            report(have, total)
            while chunk := _read(response):
                file.write(chunk)
                have += len(chunk)
                report(have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:  # a short read does not raise when it is made piece by piece
        raise _Cut(f"{have} of {total} bytes came")


def _ask(url: str, part: Path, have: int) -> Any:
    """-> the server's answer on what `part`, of which we `have` so many bytes, lacks; None where that is nothing."""
    headers = {"User-Agent": "ipll"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return None
            part.unlink()
            raise _Cut("the part file did not fit the file at the server") from error
        if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _Cut(f"the server answered {error.code}") from error
        raise
    except urllib.error.URLError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(str(error)) from error


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(str(error)) from error
