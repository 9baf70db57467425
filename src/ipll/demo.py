"""The demonstration: PGDR beside a learner that forgets, on handwritten digits, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ipll.benchmark.run import run
from ipll.progress import Listener
from ipll.report.build import write_report
from ipll.results.result import Result

METHODS = ("pgdr", "pgdr/no-memory")


def run_demo(out: Path, *, overwrite: bool, reporter: Callable[[], Listener]) -> list[Result]:
    """Both methods on the same stream, and one report over both."""
    results = [
        run(
            "digits",
            method,
            out=out / method.replace("/", "-"),
            device="cpu",
            overwrite=overwrite,
            reporter=reporter(),
        )
        for method in METHODS
    ]
    write_report([out / method.replace("/", "-") for method in METHODS], out / "report.html")
    return results
