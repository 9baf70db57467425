"""Incremental partial-label learning: learn from ambiguous labels that arrive task by task, without forgetting."""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipll.errors import ConfigError, DataError, Interrupted, IpllError, RunError

if TYPE_CHECKING:
    from ipll.benchmark.run import resume, run
    from ipll.benchmark.trained import Trained, load_learner
    from ipll.data.source import Source
    from ipll.data.sources import load_source
    from ipll.data.stream import Stream, StreamConfig, Task
    from ipll.estimator import IncrementalClassifier
    from ipll.own.model import Model
    from ipll.results.result import Result

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
    "Trained",
    "__version__",
    "load_learner",
    "load_source",
    "resume",
    "run",
]

LATER = {  # imported when they are asked for: torch takes a second or two, which `ipll --help` has no use for
    "IncrementalClassifier": "estimator",
    "Model": "own.model",
    "Result": "results.result",
    "Source": "data.source",
    "Stream": "data.stream",
    "StreamConfig": "data.stream",
    "Task": "data.stream",
    "Trained": "benchmark.trained",
    "load_learner": "benchmark.trained",
    "load_source": "data.sources",
    "resume": "benchmark.run",
    "run": "benchmark.run",
}


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(import_module(f"ipll.{LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *LATER]
