"""People's own data: tables, raw votes and arrays become `Samples`, and samples a `Model`.

Arrow is imported only when a table or a model folder is read or written: arrays need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipll.own.reading.arrays import from_arrays
from ipll.own.reading.images import Images
from ipll.own.reading.samples import Samples

if TYPE_CHECKING:
    from ipll.own.decisions import Decisions, read_decisions
    from ipll.own.exporting import export
    from ipll.own.model import Model
    from ipll.own.model_card import card
    from ipll.own.prediction import Evaluation, Predictions, evaluate
    from ipll.own.reading.given import read_given
    from ipll.own.reading.read import read_table
    from ipll.own.reading.votes import read_votes
    from ipll.own.records import Records
    from ipll.own.work import fit_folder, update_folder

__all__ = [
    "Decisions",
    "Evaluation",
    "Images",
    "Model",
    "Predictions",
    "Records",
    "Samples",
    "card",
    "evaluate",
    "export",
    "fit_folder",
    "from_arrays",
    "read_decisions",
    "read_given",
    "read_table",
    "read_votes",
    "update_folder",
]

LATER = {
    "Decisions": "decisions",
    "Evaluation": "prediction",
    "Model": "model",
    "Predictions": "prediction",
    "Records": "records",
    "card": "model_card",
    "evaluate": "prediction",
    "export": "exporting",
    "read_decisions": "decisions",
    "read_table": "reading.read",
    "read_votes": "reading.votes",
    "fit_folder": "work",
    "read_given": "reading.given",
    "update_folder": "work",
}


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(import_module(f"ipll.own.{LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
