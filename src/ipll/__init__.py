"""Incremental partial-label learning: learn from ambiguous labels that arrive task by task, without forgetting."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from ipll.benchmark.run import resume, run
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream, StreamConfig, Task
from ipll.errors import ConfigError, DataError, Interrupted, IpllError, RunError
from ipll.results.result import Result

if TYPE_CHECKING:
    from ipll.estimator import IncrementalClassifier
    from ipll.own.model import Model

__all__ = [
    "ConfigError",
    "DataError",
    "IncrementalClassifier",
    "Interrupted",
    "IpllError",
    "Model",
    "Result",
    "RunError",
    "Source",
    "Stream",
    "StreamConfig",
    "Task",
    "__version__",
    "load_source",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "IncrementalClassifier":  # imported when it is asked for: a run of the benchmark does without it
        from ipll.estimator import IncrementalClassifier

        return IncrementalClassifier
    if name == "Model":
        from ipll.own.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
