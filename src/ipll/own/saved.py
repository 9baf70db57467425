"""A model in its folder: which of its fields are facts, and which are tensors."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ipll
from ipll.config import Config, check_plugins
from ipll.engine.state import LearnerState
from ipll.errors import ConfigError, DataError
from ipll.own.decisions import as_rows, from_rows
from ipll.own.defaults import Choice
from ipll.own.facts import check_folder
from ipll.own.folder import read_folder, write_folder
from ipll.own.history import as_facts, from_facts
from ipll.own.through import Through

SEQUENCES = ("names", "shape", "feature_names", "mean", "std", "voted")  # fields that stand in model.json as they are
PLAIN = ("kind", "capacity", "min_class_samples", "updates", "temperature", "far", "missed")


def write_model(path: Path, fields: Mapping[str, Any]) -> None:
    """Writes the fields of a model. What is there is replaced, and stays as it is where this fails."""
    versions = {"ipll": ipll.__version__, "python": platform.python_version(), "torch": torch.__version__}
    facts = {
        "versions": versions,
        **{key: fields[key] for key in (*SEQUENCES, *PLAIN)},
        "known": [name for name, known in zip(fields["names"], fields["known"], strict=True) if known],
        "given": dict(fields["given"]),
        "chosen": [choice._asdict() for choice in fields["chosen"]],
        "decisions": as_rows(fields["decisions"]),
        "history": as_facts(fields["history"]),
        "config": fields["config"].to_table(),
    }
    tensors = fields["tensors"] | {"centres": fields["centres"]}
    if fields["through"] is not None and fields["pictures"] is not None:
        facts["through"] = fields["through"]._asdict()
        tensors |= {"pictures": fields["pictures"]}
    write_folder(path, facts, tensors, fields["records"])


def read_model(path: Path) -> dict[str, Any]:
    """-> the fields of the model in a folder; what is missing or changed is a DataError."""
    check_folder(path)
    try:
        facts, tensors, records = read_folder(path)
        check_plugins(facts["config"])
        if isinstance(facts["voted"], bool):  # an older model did not tell in which updates
            facts["voted"] = np.unique(records.update).tolist() if facts["voted"] else ()
        known = set(facts["known"])
        fields: dict[str, Any] = {key: tuple(facts[key]) for key in SEQUENCES}
        fields |= {key: facts[key] for key in PLAIN}
        return fields | {
            "known": np.array([name in known for name in fields["names"]], np.bool_),
            "given": facts["given"],
            "chosen": tuple(Choice(**choice) for choice in facts["chosen"]),
            "config": Config.from_table(facts["config"]),
            "through": Through(**facts["through"]) if "through" in facts else None,
            "pictures": tensors.pop("pictures", None),
            "centres": tensors.pop("centres"),
            "tensors": LearnerState.of(tensors).named(),
            "records": records,
            "history": from_facts(facts.get("history", ()), facts["updates"]),
            "decisions": from_rows(facts.get("decisions", ()), len(records), fields["names"]),
        }
    except ConfigError as error:
        raise ConfigError(f"{path}/model.json: {error}") from None
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}/model.json is damaged: {error}. Take the model from a copy.") from error
