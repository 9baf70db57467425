"""What this process may use of the machine, its cores and its memory: less where a container (a cgroup) sets limits."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
# What a group's limit, its use, and the part of that which the system would give up at once are called, in version 2 of
# cgroups and in version 1.
NAMES = (("memory.max", "memory.current", "inactive_file"),
         ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))  # fmt: skip
UNKNOWN = 2**62  # bytes, more than any machine has


def cores() -> int:
    """Those that this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found = min(found, max(1, math.ceil(int(quota) / int(period))))
    return found


def memory() -> int:
    """Bytes that this process could have at most; where that cannot be told, more than any machine has."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        whole = UNKNOWN
    return min([whole, *(limit for limit, _ in _limits())])


def free_memory() -> int:
    """Bytes that this process could still have."""
    try:
        lines = MEMINFO.read_text().splitlines()
        left = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # no Linux: take it that half is in use
        left = memory() // 2
    return min([left, *(max(limit - used, 0) for limit, used in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """-> (limit, use) in bytes, of each group that this process is in and that has a limit."""
    for group in _groups("memory"):
        for limit, use, spare in NAMES:
            most, used = _text(group / limit), _text(group / use)
            if most.isdecimal() and used.isdecimal():
                stat = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
                yield int(most), int(used) - int(stat.get(spare, "0"))


def _groups(controller: str) -> Iterator[Path]:
    """-> the folders of the groups that this process is in, from its own up: of version 2, and of a controller of
    version 1. In a container its own is often the root."""
    for line in _text(OWN).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS
        own = root / path.strip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(root))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
