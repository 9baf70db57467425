"""What a process may use of the machine, inside a container too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipll.engine import machine

GIB = 2**30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB, 48 of them free, and no limits yet."""
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr(machine, "GROUPS", root)
    monkeypatch.setattr(machine, "OWN", tmp_path / "own")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 * 2**20}.__getitem__)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    (tmp_path / "meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {48 * 2**20} kB\n")
    return root


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def all_of_it() -> tuple[int, float, float]:
    return machine.cores(), machine.memory() / GIB, machine.free_memory() / GIB


def test_without_limits(groups: Path) -> None:
    assert all_of_it() == (16, 64, 48)
    machine.OWN.write_text("0::/\n")
    write(groups, memory__max="max", memory__current=GIB, cpu__max="max 100000")
    assert all_of_it() == (16, 64, 48)


def test_the_tightest_limit_from_the_own_group_up_counts(groups: Path) -> None:
    machine.OWN.write_text("0::/pod/job\n")
    write(groups / "pod", memory__max=8 * GIB, memory__current=7 * GIB, cpu__max="1000000 100000")
    write(groups / "pod" / "job", memory__max=12 * GIB, memory__current=2 * GIB, cpu__max="150000 100000")
    assert all_of_it() == (2, 8, 1)
    (groups / "pod" / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GIB}\n")  # given up at once
    assert all_of_it() == (2, 8, 3)


def test_the_older_kind_seen_from_within_a_container(groups: Path) -> None:
    """Its own path is not there: what is mounted is its own group."""
    machine.OWN.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n")
    write(groups / "memory", memory__limit_in_bytes=4 * GIB, memory__usage_in_bytes=GIB)
    assert all_of_it() == (16, 4, 3)
    write(groups / "memory", memory__limit_in_bytes=2**63 - 4096)
    assert all_of_it() == (16, 64, 48)


def test_no_linux(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.MEMINFO.unlink()
    assert all_of_it() == (16, 64, 32)
    monkeypatch.delattr("os.sysconf")
    assert machine.memory() > 2**60
