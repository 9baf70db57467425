"""People's own data: tables, raw votes and arrays become `Samples`.

Arrow is imported only when a table is read: an array needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipll.own.arrays import from_arrays
from ipll.own.images import Images
from ipll.own.samples import Samples

if TYPE_CHECKING:
    from ipll.own.read import read_table
    from ipll.own.votes import read_votes

__all__ = ["Images", "Samples", "from_arrays", "read_table", "read_votes"]


def __getattr__(name: str) -> Any:
    if name == "read_table":
        from ipll.own.read import read_table

        return read_table
    if name == "read_votes":
        from ipll.own.votes import read_votes

        return read_votes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
