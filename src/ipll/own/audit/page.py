"""The audit's page: one HTML file to look through the samples. It needs no network and no other file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ipll.messages import batches, counted
from ipll.own.audit.beside import Beside
from ipll.own.decisions import NONE as OF_NONE
from ipll.pages.charts import shorten
from ipll.pages.drawings import share_bars
from ipll.pages.page import NONE, Row, render_page

DOUBTFUL = 0.8  # a sample is settled if its label has at least this weight
BANDS = {"sure": "95 % and more", "likely": "80 to 95 %", "doubtful": "50 to 80 %", "poor": "under 50 %"}
EDGES = (0.95, DOUBTFUL, 0.5)
LIMIT = f"{100 * DOUBTFUL:.0f} %"
GOAL = 100  # samples to decide, where the model is sure of all
BARS = 20  # at most, in a drawing; the numbers below it are complete
HEADS = ["samples", "settled", "mean confidence", "changed late", "agree with given label"]
COLUMNS = {
    "id": "sample",
    "label": "settled on",
    "confidence": "how sure",
    "runner": "runner-up",
    "candidates": "candidates",
    "judged": "judged",
    "update": "came in batch",
    "changed": "last changed",
    "memory": "in the memory",
    "given": "given label",
    "decided": "decided",
}
PRIVACY = (
    "This file holds the ids, class names and file names that the table shows. {pictures} Nothing is read from your "
    "disk when the page is made or opened, even where a sample’s file still is where it was, and nothing is sent."
)
SOME = "Pictures are shown of those samples alone whose pixels the model itself keeps, in its memory{capped}."
NO_PICTURES = "It holds no pictures."
FEATURES = " Of features it holds the few that stand beside a sample to decide on."
KEPT = " What you decide stays in this browser, until you save it."

Flags = npt.NDArray[np.bool_]


class Asked(NamedTuple):
    """What people are asked about. Records are numbered as the model does, rows as the table does."""

    audit: str  # which audit it is
    place: npt.NDArray[np.int64]  # [records], the row of each
    queue: npt.NDArray[np.int64]  # records, what would teach most first
    beside: Mapping[int, Beside]  # by record
    features: tuple[str, ...]
    names: tuple[str, ...]  # all classes

    def data(self, names: list[str], confidence: npt.NDArray[np.floating[Any]]) -> dict[str, Any]:
        """-> for the script, by row; `names` are the page's classes, to which those that it lacks are added."""
        names.extend(name for name in self.names if name not in set(names))
        number = {name: k for k, name in enumerate(names)}
        classes = [number[name] for name in self.names]
        queue, row = self.place[self.queue], self.place.tolist()
        open_ = int((confidence[queue] < EDGES[0]).sum()) if len(queue) else 0
        found = {
            row[record]: {
                "examples": [[number[self.names[c]], row[example]] for c, example in one.examples],
                "features": one.features,
                "values": one.values,
            }
            for record, one in self.beside.items()
        }
        return {
            "audit": self.audit, "queue": queue.tolist(), "goal": open_ or min(len(queue), GOAL), "classes": classes,
            "beside": found, "features": self.features,
        }  # fmt: skip


def render(
    table: pa.Table, *, footer: str, asked: Asked, pictures: Mapping[int, str] | None = None, capped: bool = False
) -> str:
    """-> the page of an audit table (see `audit_table`).

    `pictures`: 'image/png;base64,...', by row of the table; None where samples are features. `capped`: not all fitted.
    """
    confidence = table["confidence"].to_numpy()
    label, given = table["label"].combine_chunks(), table["given_label"].combine_chunks()
    late = _flags(table["changed_late"])
    known = _flags(pc.not_equal(given, ""))
    agrees = _flags(pc.equal(label, given))
    settled = confidence >= DOUBTFUL

    coded = label.dictionary_encode()
    settled_on: list[str] = coded.dictionary.to_pylist()
    named = {one["values"]: one["counts"] for one in pc.value_counts(pc.list_flatten(table["candidates"])).to_pylist()}
    classes = [*settled_on, *(name for name in named if name not in set(settled_on))]
    updates = table["update"].to_numpy()
    parts = (confidence, late, known, agrees)
    by_update = _Groups([str(u) for u in range(1, int(updates.max(initial=0)) + 1)], updates - 1, *parts)
    candidate = [named.get(name, 0) for name in classes]
    by_class = _Groups(classes, coded.indices.to_numpy(zero_copy_only=False), *parts, candidate)
    never = sorted(range(len(settled_on), len(classes)), key=lambda c: -candidate[c])
    drawn = [*never[: BARS // 2], *(c for c in by_class.doubtful() if by_class.samples[c])][:BARS]

    data = _columns(table)
    columns = _shown(table)
    one = pc.sum(pc.equal(pc.list_value_length(table["candidates"]), 1)).as_py() or 0
    shown = SOME.format(capped=", the most doubtful of them" if capped else "") if pictures else NO_PICTURES
    decided = int(pc.sum(pc.not_equal(table["decided"], "")).as_py() or 0)
    return render_page(
        __package__,
        "audit",
        scripts=("decide",),
        decided=f"{counted(decided, 'sample')} decided before this audit." if decided else "",
        heading=f"{counted(len(table), 'sample')} in {batches(len(by_update.names))}",
        headline=_headline(settled, late, known, agrees, one),
        bands=BANDS,
        by_update=by_update.drawn(range(len(by_update.names))[-BARS:], "How sure, by batch", "earlier batches"),
        by_class=by_class.drawn(drawn, "How sure, by class", "other classes"),
        unsettled="; those that were candidates and that no sample was settled on come before them" if never else "",
        classes=sorted(((data["names"].index(name), name) for name in settled_on), key=lambda pair: pair[1].casefold()),
        updates=by_update.names,
        choices=_choices(),
        given=bool(known.any()),
        pictures=bool(pictures),
        columns=columns,
        notes=_notes(columns)
        | {"Privacy": PRIVACY.format(pictures=shown + (FEATURES if asked.features else "") + KEPT)},
        footer=footer,
        data=_json(
            data
            | asked.data(data["names"], confidence)
            | {"pictures": pictures or None, "doubtful": round(DOUBTFUL * 10_000), "none": OF_NONE}
        ),
    )


class _Groups:
    """Samples by update or by class: how many, how sure, changed late, in agreement with the given label."""

    def __init__(
        self,
        names: Sequence[str],
        codes: npt.NDArray[np.integer[Any]],
        confidence: npt.NDArray[np.floating[Any]],
        late: Flags,
        known: Flags,
        agrees: Flags,
        candidate: Sequence[int] = (),
    ) -> None:
        def count(rows: Flags | slice, weights: Any = None) -> Any:
            return np.bincount(codes[rows], weights, len(names))

        band = np.searchsorted(-np.array(EDGES), -confidence, side="left")  # 0: the surest
        self.names, self.candidate = names, candidate  # of how many samples each is one, where that is told
        self.bands = np.stack([count(band == b) for b in range(len(BANDS))], axis=1)
        self.samples = self.bands.sum(1)
        self.late = count(late)
        self.mean = 100 * count(slice(None), confidence) / np.maximum(self.samples, 1)
        self.known, self.agrees = count(known), count(known & agrees)

    def doubtful(self) -> list[int]:
        """-> the groups by their share of doubtful samples, the highest first."""
        shares = self.bands[:, 2:].sum(1) / np.maximum(self.samples, 1)
        order: list[int] = np.lexsort((-self.samples, -shares)).tolist()
        return order

    def drawn(self, rows: Sequence[int], title: str, others: str) -> dict[str, Any]:
        """-> the chart of these groups, and the numbers of all."""
        shares = 100 * self.bands / np.maximum(self.samples, 1)[:, None]
        bars = [
            (shorten(self.names[row], 16), list(zip(BANDS.values(), shares[row].tolist(), strict=True))) for row in rows
        ]
        left_out = sorted(set(range(len(self.names))) - set(rows))
        return {
            "chart": share_bars(bars, title=title, kinds=list(BANDS)) if bars else "",
            "heads": [*(["candidate of"] if self.candidate else []), *(HEADS if self.known.any() else HEADS[:-1])],
            "table": [self._row(row) for row in (*rows, *left_out)],
            "left_out": f"{len(left_out):,} {others}" if left_out else "",
        }

    def _row(self, row: int) -> Row:
        known = int(self.known[row])
        cells = [
            *([f"{self.candidate[row]:,}"] if self.candidate else []),
            f"{self.samples[row]:,}",
            f"{self.bands[row, :2].sum():,}",
            f"{self.mean[row]:.1f} %" if self.samples[row] else NONE,
            f"{self.late[row]:,}",
        ]
        if self.known.any():
            cells.append(f"{self.agrees[row]:,} of {known:,}" if known else NONE)
        return self.names[row], cells


def _headline(settled: Flags, late: Flags, known: Flags, agrees: Flags, one: int) -> list[tuple[str, str, str, str]]:
    """-> what it is, the number, its unit, a remark."""
    n = max(len(settled), 1)
    numbers = [
        ("Settled", f"{100 * settled.sum() / n:.1f}", "%", f"{settled.sum():,} samples, at least {LIMIT} sure"),
        ("Doubtful", f"{(~settled).sum():,}", "", f"samples, less than {LIMIT} sure"),
        ("Changed late", f"{late.sum():,}", "", "samples whose label changed near the end"),
    ]
    if known.any():
        right = int((known & agrees).sum())
        share = f"{100 * right / known.sum():.1f}"
        numbers.append(("As the given label", share, "%", f"{right:,} of {known.sum():,} that have one"))
    if one:
        numbers.append(("One candidate", f"{one:,}", "", "samples that left nothing to settle"))
    return numbers


def _choices() -> list[tuple[str, str]]:
    """-> ranges of confidence to choose from, low to high: what they are called, and their ends in 1/10,000."""
    ends = [0, *(round(10_000 * edge) for edge in reversed(EDGES)), 10_001]
    words = [*reversed(BANDS.values())]
    bands = [(word, f"{low} {high}") for word, low, high in zip(words, ends[:-1], ends[1:], strict=True)]
    return [(f"doubtful: under {LIMIT}", f"0 {round(10_000 * DOUBTFUL)}"), *bands]


def _notes(columns: Mapping[str, str]) -> dict[str, str]:
    notes = {
        "Batch": "The fit’s samples are batch 1, those of the first update batch 2, and so on. In files: update.",
        "How sure": "How probable the label is. For tables this was judged by networks that had not learnt from the "
        "sample; for images it is the label’s weight: good for an order, not as a number.",
        "Settled, doubtful": f"A sample is settled if the model is at least {LIMIT} sure of its label, else doubtful.",
        "Changed late": "The label last changed in the second half of the epochs in which labels of that batch still "
        "changed, or in a batch after the one that brought the sample.",
        "In the memory": "The model keeps this sample and goes on learning from it, so its label can still change. "
        "The label of any other sample is final: it was settled in the batch that brought it.",
    }
    if "runner" in columns:
        notes["Runner-up"] = "The label with the second most weight, where the model still knows it."
    if "judged" in columns:
        notes["Judged"] = "Before it learnt a batch, the model judged whether a sample is of a class it knew (old)."
    if "decided" in columns:
        notes["Decided"] = "What people said of the sample, and who; the model takes it as given."
    if "given" in columns:
        notes["Given label"] = "The label column of your table. It was never learnt from."
    return notes


def _shown(table: pa.Table) -> dict[str, str]:
    """-> the page's columns, without those that would say nothing."""
    telling = {
        "runner": pc.not_equal(table["runner_up"], ""),
        "judged": pc.equal(table["judged"], "old"),
        "given": pc.not_equal(table["given_label"], ""),
        "decided": pc.not_equal(table["decided"], ""),
    }
    return {key: name for key, name in COLUMNS.items() if key not in telling or pc.any(telling[key]).as_py()}


def _columns(table: pa.Table) -> dict[str, Any]:
    """-> the rows as columns: names, sets and files are stored once and referred to by number."""
    candidates = table["candidates"].combine_chunks()
    texts = [candidates.flatten(), *(table[name].combine_chunks() for name in ("label", "given_label", "runner_up"))]
    names = pc.unique(pa.concat_arrays(texts))
    names = names.filter(pc.not_equal(names, ""))
    flat, label, given, runner = (pc.fill_null(pc.index_in(text, names), -1) for text in texts)
    codes = pa.ListArray.from_arrays(candidates.offsets, flat.cast(pa.string()))
    sets = pc.binary_join(codes, " ").dictionary_encode()  # Arrow tells texts apart, but not lists
    sources = table["source"].combine_chunks().dictionary_encode()
    return {
        "names": names.to_pylist(),
        "sets": [[int(code) for code in one.split()] for one in sets.dictionary.to_pylist()],
        "sources": sources.dictionary.to_pylist(),
        "id": table["id"].to_pylist(),
        "label": label.to_pylist(),
        "given": given.to_pylist(),
        "runner": runner.to_pylist(),
        "confidence": np.rint(10_000 * table["confidence"].to_numpy()).astype(int).tolist(),
        "set": sets.indices.to_pylist(),
        "source": sources.indices.to_pylist(),
        "old": _letters(pc.equal(table["judged"], "old")),
        "late": _letters(table["changed_late"]),
        "memory": _letters(table["in_memory"]),
        "decided": _decided(table),
        **{name: table[name].to_pylist() for name in ("update", "changed_update", "changed_epoch", "row")},
    }


def _decided(table: pa.Table) -> dict[int, list[str]]:
    """-> row -> what was decided, and by whom and when; of decided rows alone."""
    said = table.select(["decided", "decided_by"]).to_pydict()
    pairs = zip(said["decided"], said["decided_by"], strict=True)
    return {row: list(pair) for row, pair in enumerate(pairs) if pair[0]}


def _letters(flags: Any) -> str:
    """-> one letter a row, 0 or 1."""
    return (_flags(flags).astype(np.uint8) + ord("0")).tobytes().decode("ascii")


def _flags(values: Any) -> Flags:
    return np.asarray(values, np.bool_)


def _json(value: Any) -> str:
    """-> JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
