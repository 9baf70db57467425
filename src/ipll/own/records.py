"""Records: one row per sample ever seen, and what the model settled on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from ipll.own.reading.problems import Problems
from ipll.own.reading.samples import Samples

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

OFTEN = 5  # samples that have a class as a candidate: fewer say nothing of who is named with whom
SURGE = 0.5  # more than so much above what was usual
AGAIN = (
    "To correct labels: ipll update MODEL --decisions FILE, with the columns id and class. To add votes on samples "
    "that were learnt: ipll fit, with all votes."
)
SEEN_BEFORE = f"Leave out what was learnt already; new samples need ids of their own. {AGAIN}"
NUMBERED = (
    "Rows without ids are known by their table and row. If these are new ones, add a column 'id', or rename the table. "
    f"{AGAIN}"
)


@dataclass(frozen=True, eq=False)
class Records:
    """Columns of equal length n. A row's number is the id by which the learner knows the sample.

    Classes are numbers: columns of the model's `names`. The candidates of row i are codes[offsets[i] : offsets[i + 1]].
    """

    ids: list[str]
    update: Ints  # [n], from 1: when the sample came
    offsets: Ints  # [n + 1]
    codes: Ints  # [candidates of all rows]
    label: Ints  # [n], the class settled on: argmax of p
    confidence: Floats  # [n], that p
    judged_old: Bools  # [n], when it came: did it look like a sample of a known class?
    changed_update: Ints  # [n], the update in which `label` changed last
    changed_epoch: Ints  # [n], and its epoch, from 1
    in_memory: Bools  # [n], is the sample itself kept?
    given: list[str]  # the label that came with it, '' where none did; never learnt from
    row: Ints  # [n], in its source, as its owner counts
    source: list[str]
    runner_up: Ints  # [n], the class that comes next, by networks that had not learnt from it; -1: unknown, or none

    @classmethod
    def empty(cls) -> Records:
        return cls(
            ids=[], update=_ints(0), offsets=_ints(1), codes=_ints(0), label=_ints(0),
            confidence=np.zeros(0, np.float32), judged_old=_bools(0), changed_update=_ints(0), changed_epoch=_ints(0),
            in_memory=_bools(0), given=[], row=_ints(0), source=[],
            runner_up=_ints(0),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.ids)

    def candidates(self, names: tuple[str, ...]) -> list[list[str]]:
        """-> the candidates of each row by name."""
        flat = [names[code] for code in self.codes.tolist()]
        return [flat[start:end] for start, end in pairwise(self.offsets.tolist())]

    def labels(self, names: tuple[str, ...]) -> list[str]:
        """-> the class that each row settled on, by name."""
        return [names[label] for label in self.label.tolist()]

    def with_samples(self, samples: Samples, columns: Ints, update: int) -> Records:
        """-> the records with these samples behind them, not yet settled on anything.

        columns: [samples.names], the model's column of each class. Ids that are there already are a DataError.
        """
        ids = self.ids_of(samples, update)
        self._check_new(ids, samples)
        n = len(samples)
        rows, chosen = np.nonzero(samples.candidates)
        counts = np.bincount(rows, minlength=n)
        return Records(
            ids=self.ids + ids,
            update=np.append(self.update, np.full(n, update)),
            offsets=np.append(self.offsets, self.offsets[-1] + np.cumsum(counts)),
            codes=np.append(self.codes, columns[chosen]),
            label=np.append(self.label, np.full(n, -1)),
            confidence=np.append(self.confidence, np.zeros(n, np.float32)),
            judged_old=np.append(self.judged_old, _bools(n)),
            changed_update=np.append(self.changed_update, np.full(n, update)),
            changed_epoch=np.append(self.changed_epoch, _ints(n)),
            in_memory=np.append(self.in_memory, _bools(n)),
            given=self.given + samples.label_names,
            row=np.append(self.row, samples.rows),
            source=self.source + [samples.source] * n,
            runner_up=np.append(self.runner_up, np.full(n, -1)),
        )

    def ids_of(self, samples: Samples, update: int) -> list[str]:
        """-> ids that tell the samples from those of other tables.

        Samples without ids are called by their row; every table has a row 2, so the table's name, or the number of the
        update where there is no table, goes before it. The same table given twice is found out, by whatever path.
        """
        if samples.numbered_in is None:
            return list(samples.ids)
        before = samples.numbered_in or str(update)
        if samples.numbered_in:
            here = os.path.realpath(before)
            before = next((name for name in dict.fromkeys(self.source) if os.path.realpath(name) == here), before)
        return [f"{before}:{name}" for name in samples.ids]

    def _check_new(self, ids: list[str], samples: Samples) -> None:
        row_of = dict(zip(ids, samples.rows.tolist(), strict=True))
        problems = Problems(samples.source, samples.word)
        for index in [index for index, name in enumerate(self.ids) if name in row_of]:
            name, update = self.ids[index], int(self.update[index])
            when = "fit" if update == 1 else f"update {update} (the fit is 1)"
            remedy = NUMBERED if samples.numbered_in else SEEN_BEFORE
            problems.add([row_of[name]], f"id '{name}' was learnt before, in the model's {when}", remedy)
        problems.stop()

    def settled(self, rows: Ints, label: Ints, confidence: Floats, update: int, epoch: int) -> Records:
        """-> the records after an epoch: what the samples of these rows settled on, and how sure that is."""
        changed = rows[self.label[rows] != label]
        return replace(
            self,
            label=_put(self.label, rows, label),
            confidence=_put(self.confidence, rows, confidence),
            changed_update=_put(self.changed_update, changed, update),
            changed_epoch=_put(self.changed_epoch, changed, epoch),
        )

    def ambiguous(self, classes: int) -> tuple[Ints, Floats]:
        """-> how many samples with several candidates settled on each class [classes], and how many would have if each
        had taken one of its candidates at random."""
        sizes = np.diff(self.offsets)
        open_ = sizes > 1
        weights = np.where(open_, 1 / np.maximum(sizes, 1), 0)
        settled = np.bincount(self.label[open_], minlength=classes)
        return settled, np.bincount(self.codes, np.repeat(weights, sizes), classes).astype(np.float32)

    def twins(self, classes: int) -> list[list[int]]:
        """-> groups of two or more classes that are candidates of exactly the same samples."""
        marks = np.random.default_rng(0).integers(2**63, size=len(self), dtype=np.uint64)
        sums = np.zeros(classes, np.uint64)
        np.add.at(sums, self.codes, np.repeat(marks, np.diff(self.offsets)))
        groups: dict[int, list[int]] = {}
        for c in np.unique(self.codes).tolist():
            groups.setdefault(int(sums[c]), []).append(c)
        return [group for group in groups.values() if len(group) > 1]

    def companions(self, classes: int) -> list[tuple[int, int]]:
        """-> (class, other): no sample that has the class as a candidate, of some, lacks the other, which others have
        without."""
        named = csr_matrix((np.ones(len(self.codes), np.int64), self.codes, self.offsets), (len(self), classes))
        together = (named.T @ named).toarray()
        counts = together.diagonal()
        always = (together == counts[:, None]) & (counts[:, None] >= OFTEN) & (counts > counts[:, None])
        return [(int(c), int(other)) for c, other in np.argwhere(always)]

    def arrived(self, classes: int, least: int) -> Bools:
        """-> which classes have really come [classes]: `least` samples settled on them, and as many with one candidate,
        or of the others no fewer than by chance. A class that is only ever a false candidate gets fewer."""
        counts = np.bincount(self.label, minlength=classes)
        settled, chance = self.ambiguous(classes)
        found: Bools = (counts >= least) & ((counts - settled >= least) | (settled >= np.floor(chance)))
        return found

    def surging(self, classes: int, update: int) -> Bools:
        """-> which classes are named far more often in this update than in any before [classes].

        So is one that only now really comes, if false settlements made it known before its time; one that did come
        was named as often then. Names of a sample count as many together as one.
        """
        sizes = np.diff(self.offsets)
        when, weights = np.repeat(self.update, sizes), np.repeat(1 / np.maximum(sizes, 1), sizes)
        batch = np.bincount(self.update, minlength=update + 1)
        named = np.bincount(when * classes + self.codes, weights, (update + 1) * classes).reshape(update + 1, classes)
        now = named[update]
        before = (named[:update] / np.maximum(batch[:update], 1)[:, None]).max(0) * batch[update]
        found: Bools = now - before > np.maximum(SURGE * before, 2 * np.sqrt(now))
        return found

    def assured(self, rows: Ints, confidence: Floats, runner_up: Ints) -> Records:
        """-> the records with how sure the labels of these rows are, and what comes next, as it was judged at the
        end."""
        return replace(
            self, confidence=_put(self.confidence, rows, confidence), runner_up=_put(self.runner_up, rows, runner_up)
        )

    def finished(self, judged: Ints, memory: Ints) -> Records:
        """-> the records at the end of an update; rows judged old in it, and rows that the memory keeps."""
        return replace(
            self, judged_old=_put(self.judged_old, judged, True), in_memory=_put(_bools(len(self)), memory, True)
        )


def _put(column: Any, rows: Ints, values: Any) -> Any:
    """-> a copy of the column with these values in these rows."""
    changed = column.copy()
    changed[rows] = values
    return changed


def _ints(n: int) -> Ints:
    return np.zeros(n, np.int64)


def _bools(n: int) -> Bools:
    return np.zeros(n, np.bool_)
