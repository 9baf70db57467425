"""Incremental partial-label learning: learn from ambiguous labels that arrive task by task, without forgetting."""

__version__ = "0.1.0"

from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream, StreamConfig, Task
from ipll.errors import ConfigError, DataError, Interrupted, IpllError, RunError
from ipll.results.result import Result
from ipll.run import resume, run

__all__ = [
    "ConfigError",
    "DataError",
    "Interrupted",
    "IpllError",
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
