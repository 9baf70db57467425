"""The audit: every training sample, what the model settled on and how sure it is, the most doubtful first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ipll.engine.files import write_atomically
from ipll.engine.state import MEMORY
from ipll.errors import DataError
from ipll.own.audit.beside import beside
from ipll.own.audit.order import asking_order
from ipll.own.audit.page import Asked, render
from ipll.own.decisions import audit_id, decided_words
from ipll.own.folder import named, records_table
from ipll.own.records import Ints
from ipll.own.writing import WRITERS, write_table
from ipll.pages.thumbnails import LARGE, MANY, SMALL, data_uri

if TYPE_CHECKING:
    from ipll.own.model import Model

DIGITS = 4  # of a confidence; what is equal to a hundredth of a percent is equally sure
PICTURES = 2000  # at most, on a page
WIDE, WIDE_SIDE = 300, 192  # so many of them, the first to be asked about, are large enough to judge, in pixels
PAGE = ".html"
ENDINGS = (*WRITERS, PAGE)
COLUMNS = (
    "id", "candidates", "label", "confidence", "runner_up", "judged", "changed_update", "changed_epoch", "changed_late",
    "update", "in_memory", "given_label", "source", "row", "decided", "decided_by",
)  # fmt: skip


def audit_table(model: Model) -> pa.Table:
    """-> one row per training sample, columns COLUMNS (docs/audit.md says what they hold), most doubtful first.

    The least sure come first; of equally sure ones, those whose label changed last; then the order of arrival. What
    people decided comes after all others.
    """
    return _rows(model)[0]


def write_audit(model: Model, path: Path | str) -> None:
    """Writes the table as .csv, .parquet or .jsonl, or a page to look through it as .html."""
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise DataError(f"cannot write an audit as {path.name!r}. The name must end with {', '.join(ENDINGS)}.")
    if path.suffix.lower() == PAGE:
        write_atomically(path, lambda temporary: _write_page(model, temporary))
    else:
        write_table(audit_table(model), path)


def _rows(model: Model) -> tuple[pa.Table, Ints]:
    """-> the table, and for each of its rows the number of its record [n]."""
    table = records_table(model.records, model.names)
    table = table.set_column(
        table.column_names.index("confidence"), "confidence", pc.round(table["confidence"].cast(pa.float64()), DIGITS)
    ).rename_columns([{"given": "given_label"}.get(name, name) for name in table.column_names])
    update, changed, epoch = (table[name].to_numpy() for name in ("update", "changed_update", "changed_epoch"))
    table = table.append_column("changed_late", pa.array(_late(update, changed, epoch)))
    table = table.append_column("judged", pc.if_else(table["judged_old"], "old", "new"))
    table = table.set_column(table.column_names.index("runner_up"), "runner_up", _runners_up(model))
    words = decided_words(model.decisions)
    for k, name in enumerate(("decided", "decided_by")):
        said = [words[i][k] if i in words else "" for i in range(len(table))]
        table = table.append_column(name, pa.array(said, pa.string()))
    settled = np.isin(np.arange(len(table)), list(words))
    order = np.lexsort((-epoch, -changed, table["confidence"].to_numpy(), settled))
    return table.take(pa.array(order)).select(COLUMNS).combine_chunks(), order


def _late(update: Ints, changed: Ints, epoch: Ints) -> npt.NDArray[np.bool_]:
    """-> whether a label changed in a later update than its sample's, or in the second half of the epochs in which
    labels of its update still changed. What the first epoch settled is never late.
    """
    last = np.zeros(changed.max(initial=0) + 1, np.int64)
    np.maximum.at(last, changed, epoch)
    late: npt.NDArray[np.bool_] = (changed > update) | ((epoch > 1) & (2 * epoch > last[changed]))
    return late


def _runners_up(model: Model) -> pa.Array:
    """-> the class that is next, by name; '' where it is not known.

    Networks tell that had not learnt from the sample; else it is the class with the second most weight in the memory,
    or of two candidates the one that was not settled on.
    """
    records = model.records
    runner = np.full(len(records), -1)
    first = records.offsets[:-1]
    pairs = np.flatnonzero(np.diff(records.offsets) == 2)
    two = records.codes[first[pairs, None] + np.arange(2)]
    is_label = two == records.label[pairs, None]
    one = is_label.any(1)
    runner[pairs[one]] = two[one][~is_label[one]]
    ids, p = model.tensors[f"{MEMORY}ids"], model.tensors[f"{MEMORY}p"]
    if len(ids) and p.shape[1] > 1:
        weights, classes = torch.topk(p, 2, dim=1)
        runner[ids.numpy()] = torch.where(weights[:, 1] > 0, classes[:, 1], -1).numpy()
    runner = np.where((records.runner_up >= 0) & (records.runner_up != records.label), records.runner_up, runner)
    return named(runner, model.names)


def _write_page(model: Model, path: Path) -> None:
    table, order = _rows(model)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    queue = asking_order(model)
    found = beside(model, queue)
    names = model.feature_names if model.kind == "features" else ()
    asked = Asked(audit_id(model.records.ids), place, queue, found, tuple(names), model.names)
    examples = [example for one in found.values() for _, example in one.examples]
    pictures, capped = _pictures(model, order, place, queue, examples)
    words = f"{model.config.method}, seed {model.config.seed}, {len(model.names):,} classes"
    page = render(table, footer=words, asked=asked, pictures=pictures, capped=capped)
    path.write_text(page, encoding="utf-8")


def _pictures(model: Model, order: Ints, place: Ints, queue: Ints, examples: list[int]) -> tuple[dict[int, str], bool]:
    """-> PNG or JPEG files in base64 of the memory's images, by row of the table, and whether some were left out.

    Those that are asked about first are large; the others, and the examples beside them, are thumbnails.
    """
    ids, images = model.tensors[f"{MEMORY}ids"].numpy(), model.kept_pictures()
    if images is None:
        return {}, False
    at = {row: k for k, row in enumerate(ids.tolist())}
    doubtful = [row for row in order.tolist() if row in at][:PICTURES]
    wide = set(queue[:WIDE].tolist()) & set(doubtful)
    chosen = list(dict.fromkeys([*doubtful, *examples]))
    size = LARGE if len(chosen) <= MANY else SMALL
    uris = {row: data_uri(images[at[row]], WIDE_SIDE if row in wide else size) for row in chosen}
    return {int(place[row]): uri.partition(":")[2] for row, uri in uris.items()}, len(chosen) < len(ids)
