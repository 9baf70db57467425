"""Locks between processes, which leave no file behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ipll.engine.locks import one_at_a_time


def test_many_that_want_the_same_lock_take_turns(tmp_path: Path) -> None:
    """The file is removed by each that is done, while others wait for it: none may stumble over that."""
    inside: list[int] = []
    most = 0

    def work(number: int) -> None:
        nonlocal most
        for _ in range(200):
            with one_at_a_time(tmp_path / "lock"):
                inside.append(number)
                most = max(most, len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert most == 1
    assert not (tmp_path / "lock").exists()
