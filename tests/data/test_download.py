"""Transfers against a real server on this machine: cut, resumed, refused, damaged."""

from __future__ import annotations

import hashlib
import io
import os
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ipll.data import download
from ipll.data.download import extract, fetch
from ipll.errors import DataError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT. The settings say how it misbehaves; `ranges` records each request's Range."""

    honours_range = True
    cut_after: tuple[int, ...] = ()  # bytes after which the first, second, ... answers are cut
    failures: tuple[int, ...] = ()  # statuses that the first requests are answered with
    shift = 0  # bytes by which an answered range misses the one asked for
    says_total = True  # whether a 416 says how long the file is

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/data.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        number = len(self.server.ranges)
        self.server.ranges.append(asked)
        if number < len(self.server.failures):
            return self.send_error(self.server.failures[number])
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.server.honours_range else 0
        if start >= len(CONTENT):
            self.send_response(416)
            if self.server.says_total:
                self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        start += self.server.shift if asked else 0
        body = CONTENT[start:]
        self.send_response(206 if asked and self.server.honours_range else 200)
        if asked and self.server.honours_range:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut_after[number] if number < len(self.server.cut_after) else len(body)
        self.wfile.write(body[:cut])
        return None

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def part_of(destination: Path) -> Path:
    return destination.with_name(destination.name + ".part")


@pytest.mark.parametrize("checksum", [MD5, SHA256])
def test_plain(server: Server, tmp_path: Path, checksum: str) -> None:
    destination = tmp_path / "new folder" / "data.tar.gz"
    assert fetch(server.url, destination, checksum) == destination
    assert destination.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert os.listdir(destination.parent) == ["data.tar.gz"]


def test_present_file_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    destination = tmp_path / "data.tar.gz"
    destination.write_bytes(CONTENT)
    fetch(server.url, destination, MD5)
    assert server.ranges == []
    destination.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=rf"{MD5}\. Delete it and try again, or extract it by hand in {tmp_path}\."):
        fetch(server.url, destination, MD5)
    assert destination.exists()  # the user may have put it there: it is not ours to delete


def test_cut_transfers_are_resumed(server: Server, tmp_path: Path) -> None:
    server.cut_after = (300_000, 200_000)
    destination = fetch(server.url, tmp_path / "data.tar.gz", SHA256)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_part_file_of_an_earlier_call_is_resumed(server: Server, tmp_path: Path) -> None:
    destination = tmp_path / "data.tar.gz"
    part_of(destination).write_bytes(CONTENT[:123_456])
    fetch(server.url, destination, MD5)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == ["bytes=123456-"]
    assert not part_of(destination).exists()


def test_server_without_range(server: Server, tmp_path: Path) -> None:
    server.honours_range = False
    server.cut_after = (300_000,)
    destination = fetch(server.url, tmp_path / "data.tar.gz", MD5)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


@pytest.mark.parametrize("says_total", [True, False])
def test_complete_part_file(server: Server, tmp_path: Path, says_total: bool) -> None:
    server.says_total = says_total
    destination = tmp_path / "data.tar.gz"
    part_of(destination).write_bytes(CONTENT)
    fetch(server.url, destination, MD5)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000000-"] + [None] * (not says_total)


def test_part_file_longer_than_the_file(server: Server, tmp_path: Path) -> None:
    destination = tmp_path / "data.tar.gz"
    part_of(destination).write_bytes(CONTENT + b"more")
    fetch(server.url, destination, MD5)
    assert destination.read_bytes() == CONTENT


def test_wrong_range_is_not_stitched_on(server: Server, tmp_path: Path) -> None:
    server.shift = 10
    destination = tmp_path / "data.tar.gz"
    part_of(destination).write_bytes(CONTENT[:1000])
    fetch(server.url, destination, MD5)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-", None]


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    expected = "md5:" + "0" * 32
    with pytest.raises(DataError, match=f"{MD5}, expected {expected}"):
        fetch(server.url, tmp_path / "data.tar.gz", expected)
    assert os.listdir(tmp_path) == []


def test_a_line_that_keeps_breaking_keeps_what_has_come(server: Server, tmp_path: Path) -> None:
    server.cut_after = (1000,) * download.ATTEMPTS
    destination = tmp_path / "data.tar.gz"
    with pytest.raises(DataError, match=r"was cut 5 times .*5000 bytes are kept in .*data\.tar\.gz\.part: try again"):
        fetch(server.url, destination, MD5)
    assert part_of(destination).read_bytes() == CONTENT[:5000]
    fetch(server.url, destination, MD5)
    assert destination.read_bytes() == CONTENT


def test_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.failures = (503, 500)
    assert fetch(server.url, tmp_path / "data.tar.gz", MD5).read_bytes() == CONTENT
    assert len(server.ranges) == 3


def test_missing_file_at_the_server(server: Server, tmp_path: Path) -> None:
    server.failures = (404,) * download.ATTEMPTS
    with pytest.raises(DataError, match="answered 404"):
        fetch(server.url, tmp_path / "data.tar.gz", MD5)
    assert len(server.ranges) == 1


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/data.tar.gz"
    destination = tmp_path / "data.tar.gz"
    with pytest.raises(DataError) as caught:
        fetch(url, destination, MD5)
    message = str(caught.value)
    assert message.startswith(f"cannot reach {url}: ")
    assert f"as {destination} by hand." in message
    assert f"The data root in force is {tmp_path} " in message
    assert "--data-root" in message
    assert "IPLL_DATA" in message


def test_place_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, where a folder should be")
    with pytest.raises(DataError, match="cannot write"):
        fetch(server.url, tmp_path / "taken" / "data" / "data.tar.gz", MD5)


def test_a_root_that_is_a_file(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "data.tar.gz"
    root.write_bytes(CONTENT)
    with pytest.raises(
        DataError, match=f"^{root} is a file. Set --data-root to the folder that it is in: {tmp_path}.$"
    ):
        fetch(server.url, root / "data.tar.gz", MD5)


def test_a_root_that_is_not_there_is_not_made_for_nothing(server: Server, tmp_path: Path) -> None:
    server.failures = (404,)
    root = tmp_path / "mistyped" / "root"
    with pytest.raises(DataError, match=rf"answered 404 .* data root in force is {root}, which does not exist \("):
        fetch(server.url, root / "data.tar.gz", MD5)
    assert os.listdir(tmp_path) == []
    server.cut_after = (0, 1000) + (0,) * download.ATTEMPTS
    with pytest.raises(DataError, match=r"1000 bytes are kept in .*\.part"):
        fetch(server.url, root / "data.tar.gz", MD5)
    assert os.listdir(root) == ["data.tar.gz.part"]


def test_progress_bar_only_on_a_terminal(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    fetch(server.url, tmp_path / "first.tar.gz", MD5)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take stderr for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    fetch(server.url, tmp_path / "second.tar.gz", MD5)
    shown = capsys.readouterr()
    assert "second.tar.gz" in shown.err
    assert "1.0/1.0 MB" in shown.err
    assert shown.out == ""
    fetch(server.url, tmp_path / "third.tar.gz", MD5, progress=False)
    assert capsys.readouterr().err == ""


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_extract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = archive(tmp_path / "a.tar.gz", {"set/train": b"1", "set/test": b"2"})
    assert extract(file, tmp_path / "set") == tmp_path / "set"
    assert capsys.readouterr().err == f"Extracting {file} to {tmp_path / 'set'}. This is done once.\n"
    assert {p.name: p.read_bytes() for p in (tmp_path / "set").iterdir()} == {"train": b"1", "test": b"2"}
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "set"]


def test_extract_completes_a_folder_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "test").write_bytes(b"mine")
    extract(archive(tmp_path / "a.tar.gz", {"set/train": b"1", "set/test": b"2"}), tmp_path / "set")
    assert {p.name: p.read_bytes() for p in (tmp_path / "set").iterdir()} == {"train": b"1", "test": b"mine"}


def test_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    file = archive(tmp_path / "a.tar.gz", {"set/train": CONTENT, "set/test": CONTENT})
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5], b"", b"no archive", whole[:-2000] + bytes(2000)):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.tar\.gz .*Delete it and fetch it again"):
            extract(file, tmp_path / "set")
        assert os.listdir(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("name", ["../outside", "/tmp/ipll-outside", "other/train"])
def test_unsafe_or_foreign_archive(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "root"
    folder.mkdir()
    with pytest.raises(DataError):
        extract(archive(tmp_path / "a.tar.gz", {name: b"x"}), folder / "set")
    assert os.listdir(folder) == []
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "root"]
    assert not Path("/tmp/ipll-outside").exists()


def test_two_processes_that_want_the_same_file_fetch_it_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch(server.url, tmp_path / "data.tar.gz", MD5), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(server.ranges) == 1
    assert os.listdir(tmp_path) == ["data.tar.gz"]
