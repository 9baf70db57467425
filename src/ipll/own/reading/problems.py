"""Bad rows: all of them are found before any is reported, so that a table is mended in one go."""

from __future__ import annotations

from collections.abc import Iterable

from ipll.errors import DataError

SHOWN = 5
GAPS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})  # how tables say that something is missing, in any case

NO_NUMBERS = GAPS | {"none", "-"}  # of a column of numbers; a word may be 'none'
UNSURE = frozenset(  # how people say that they do not know, in any case
    {"don't know", "dont know", "do not know", "unsure", "not sure", "unknown", "uncertain", "unclear", "can't tell",
     "cant tell", "cannot tell", "no idea", "idk", "*"}
)  # fmt: skip


class Problems:
    """The rows of one input that cannot be used, each with the reason and what to do."""

    def __init__(self, source: str, word: str = "row") -> None:
        self.source, self.word = source, word  # `word`: what the user calls a row of it
        self._found: list[tuple[int, str, str]] = []

    def add(self, rows: Iterable[int], reason: str, remedy: str) -> None:
        """Notes that these rows, as the user counts them, have the same fault."""
        self._found.extend((int(row), reason, remedy) for row in rows)

    def stop(self) -> None:
        """Raises a DataError with the first few of the rows and the number of all, if there are any."""
        if not self._found:
            return
        found = sorted(self._found, key=lambda one: one[0])
        remedies = " ".join(dict.fromkeys(remedy for _, _, remedy in found))
        if len(found) == 1:
            row, reason, _ = found[0]
            raise DataError(f"{self.source}, {self.word} {row}: {reason}. {remedies}")
        lines = [f"  {self.word} {row}: {reason}" for row, reason, _ in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN:,} more")
        raise DataError("\n".join([f"{self.source}: {len(found):,} faults.", *lines, remedies]))
