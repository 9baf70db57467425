"""What a campaign asks of whatever runs its cells, on this machine or elsewhere."""

from __future__ import annotations

from typing import Protocol

from ipll.paper.campaigns.worker import Job, Outcome

ATTEMPTS = 3  # a cell whose process dies is tried so many times, then counts as failed


class Executor(Protocol):
    slots: int  # how many cells run at once, for the time left; 0: not known

    def free(self) -> bool:
        """Does it take another job now?"""
        ...

    def submit(self, job: Job) -> None: ...

    def finished(self, timeout: float) -> list[tuple[Job, Outcome]]:
        """-> the jobs that have ended since the last call; waits so many seconds for the first."""
        ...

    def stop(self) -> None:
        """Asks every running cell to keep a checkpoint and end; their jobs are still reported."""
        ...

    def close(self) -> None:
        """Ends everything at once."""
        ...
