"""History: when a model was fitted, updated or told what people decided, from what files, and how it scored then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ipll.own.decisions import Decisions
from ipll.own.prediction import Evaluation
from ipll.own.reading.samples import Samples


class Score(NamedTuple):
    """On rows of the split 'test', which were not learnt from."""

    samples: int
    right: int
    balanced_accuracy: float
    calibration_error: float

    @classmethod
    def of(cls, found: Evaluation) -> Score:
        right = round(found.accuracy * found.samples)
        return cls(found.samples, right, found.balanced_accuracy, found.calibration_error)


class Event(NamedTuple):
    """One change of a model. Of files, it is the name that is kept, not where they were."""

    update: int  # how many batches were learnt by then; 1 is the fit
    what: str  # 'fit', 'update', or 'decisions' where no samples came
    when: str  # in UTC, to the second
    source: str  # of the samples
    samples: int
    decisions: str  # the file that they came in; '' where none did
    decided: int  # decisions in it
    score: Score | None = None


def event(update: int, samples: Samples | None, decisions: Decisions | None) -> Event:
    """-> what has just been learnt."""
    what = "decisions" if samples is None else "fit" if update == 1 else "update"
    return Event(
        update, what, datetime.now(UTC).isoformat(timespec="seconds"),
        "" if samples is None else _name(samples.source), 0 if samples is None else len(samples),
        "" if decisions is None else _name(decisions.source), 0 if decisions is None else len(decisions.ids),
    )  # fmt: skip


def as_facts(history: Iterable[Event]) -> list[dict[str, Any]]:
    """-> for model.json."""
    return [one._asdict() | {"score": one.score._asdict() if one.score else None} for one in history]


def from_facts(facts: Iterable[Mapping[str, Any]], updates: int) -> tuple[Event, ...]:
    """Reads what `as_facts` gave; a ValueError or TypeError where it is of no model of so many updates."""
    found = tuple(Event(**{**one, "score": Score(**one["score"]) if one["score"] else None}) for one in facts)
    for one in found:
        texts, counts = (one.what, one.when, one.source, one.decisions), (one.update, one.samples, one.decided)
        if not all(isinstance(text, str) for text in texts) or not all(map(_is_count, counts)):
            raise ValueError("'history' holds something else than text and counts")
        if not 1 <= one.update <= updates:
            raise ValueError("'history' tells of an update that the model did not have")
        if one.score is not None and not _is_score(one.score):
            raise ValueError("'history' holds a score that no model has")
    return found


def _name(source: str) -> str:
    return Path(source).name or source


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_score(score: Score) -> bool:
    shares = (score.balanced_accuracy, score.calibration_error)
    fair = all(isinstance(share, int | float) and math.isfinite(share) for share in shares)
    return fair and _is_count(score.samples) and _is_count(score.right) and 0 <= score.right <= score.samples > 0
