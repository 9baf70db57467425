"""Raw votes: a long table of who called which sample what becomes candidate sets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ipll.data.pictures import is_picture
from ipll.errors import DataError
from ipll.messages import counted
from ipll.own.reading.ballots import Ballots, Ints, ballots_of, open_votes
from ipll.own.reading.problems import Problems
from ipll.own.reading.read import TEXT, accept, gather
from ipll.own.reading.samples import Annotator, Samples, with_candidates
from ipll.own.reading.tables import Table, open_table
from ipll.own.reading.tools import is_export, open_export
from ipll.settings import check

KNOWN = 0.7  # how often an annotator knows the label, to begin with
FEW = 4.0  # votes for which an annotator is taken to be like all
ROUNDS, SUREST = 50, 0.99


def read_votes(
    path: str | Path,
    *,
    samples: str | Path | None = None,
    min_votes: int = 1,
    skip_bad: bool = False,
    image_size: int | None = None,
    allow_one_class: bool = False,
    known: Iterable[str] = (),
) -> Samples:
    """-> samples whose candidates are all labels with at least `min_votes` votes, and these votes, each by how reliable
    its annotator is.

    The file is a table, or an export of Label Studio, CVAT or COCO; a folder is all exports in it.
    `samples` is a table with `id` and an image or features; without it, `sample` is an image's path, from the votes'
    folder. An annotator who gives a sample the same label twice has one vote, with two labels, or with a bar between
    them, one for each. `skip_bad` leaves out votes whose sample is not in the table, and samples without votes, too.
    The other arguments are those of `read_table`.
    """
    check(min_votes >= 1, "min_votes", "be at least 1", min_votes)
    path = Path(path)
    votes = open_export(path, by_id=samples is not None) if is_export(path) else open_votes(path)
    ballots = ballots_of(votes)
    table = _images_table(votes, ballots) if samples is None else _samples_table(Path(samples))
    problems = table.problems()
    found, broken = gather(table, problems, unlabelled=True, known=known)
    problems.stop()  # where two samples have the same id, their votes could not be told apart
    sample = _sample_of(votes, ballots, found)
    shape = len(found), len(ballots.names)
    candidates = _summed(sample, ballots, np.ones(len(sample)), shape) >= min_votes
    if not skip_bad:
        _check_all_there(votes, ballots, sample, found)
        _check_empty(candidates, found, ballots, min_votes, problems)
        problems.stop()
    kept = np.flatnonzero(candidates.any(0))
    knows = reliability(ballots.sample, ballots.annotator, ballots.label)
    weighed = (_summed(sample, ballots, knows[ballots.annotator], shape) * candidates)[:, kept]
    cast = np.bincount(ballots.annotator)
    people = tuple(Annotator(ballots.people[a], int(cast[a]), float(knows[a])) for a in np.argsort(knows).tolist())
    found = with_candidates(found, tuple(ballots.names[k] for k in kept.tolist()), candidates[:, kept])
    notes = ballots.notes + _left_out(votes, ballots, sample, found)
    found = replace(found, votes=weighed, annotators=people, warnings=notes + found.warnings)
    found = accept(found, broken, problems, skip_bad, image_size, allow_one_class)
    return found.take(np.flatnonzero(found.candidates.any(1)))


def _images_table(votes: Table, ballots: Ballots) -> Table:
    """-> the table of the images that the votes are about; the row of an image is that of its first vote."""
    if not any(is_picture(name) or os.path.isfile(votes.path.parent / name) for name in ballots.ids):
        raise DataError(
            f"{votes.path}: its samples are no images, such as {ballots.ids[0]!r}. Votes on others need the samples' "
            "table, too: ipll fit features.csv --votes votes.csv (samples='features.csv')."
        )
    first = np.unique(ballots.sample, return_index=True)[1]
    return Table(votes.path, {"image": pa.array(ballots.ids)}, ballots.row[first], votes.word)


def _samples_table(path: Path) -> Table:
    table = open_table(path, TEXT)
    if "candidates" in table.columns:
        raise DataError(f"{path}: a column 'candidates' beside votes. Remove it, or learn from this table alone.")
    if "id" not in table.columns and "image" not in table.columns:
        raise DataError(f"{path}: no column 'id'. Votes find their sample by its id; add one.")
    return table


def reliability(sample: Ints, annotator: Ints, label: Ints) -> npt.NDArray[np.float64]:
    """-> how often each annotator knows the label [annotators], from 0 to 1, by the votes alone.

    Whoever does not know says one at random, a common label more often. By who agrees with whom, the true label of each
    sample, among those that it was given, and how often each annotator knows it are estimated in turn (EM). One with
    few votes is taken to be about as good as all are. Nothing tells which of two is right who vote beside nobody else:
    they count alike; and whoever votes alone is like the rest.
    """
    labels, people = int(label.max()) + 1, int(annotator.max()) + 1
    pairs, pair = np.unique(sample * labels + label, return_inverse=True)  # of a sample and a label: what is asked
    owner = np.unique(pairs // labels, return_inverse=True)[1]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    common = (np.bincount(label) / len(label))[label]
    seen = np.unique(sample * people + annotator)  # whoever gives a sample two labels knows it, if one is true
    cast = np.bincount(seen % people, minlength=people)
    true = np.bincount(pair) / np.bincount(owner, np.bincount(pair))[owner]
    r = np.full(people, KNOWN)
    for _ in range(ROUNDS):
        knows = true[pair] * r[annotator] / (r[annotator] + (1 - r[annotator]) * common)
        r = (np.bincount(annotator, knows, people) + FEW * knows.sum() / len(seen)) / (cast + FEW)
        r = r.clip(1 - SUREST, SUREST)
        odds = np.bincount(pair, np.log1p(r[annotator] / ((1 - r[annotator]) * common)))
        true = np.exp(odds - np.maximum.reduceat(odds, first)[owner])
        true /= np.bincount(owner, true)[owner]
    least, most = _beside(seen // people, seen % people, people)
    alone, one = most < 0, least == most
    partner = np.where(one, most, 0)
    pairs_ = one & one[partner] & (partner[partner] == np.arange(people))
    if not alone.all():
        r[alone] = np.average(r[~alone], weights=cast[~alone])
    together = (r * cast + (r * cast)[partner]) / (cast + cast[partner])
    return np.where(pairs_, together, r)


def _beside(sample: Ints, annotator: Ints, people: int) -> tuple[Ints, Ints]:
    """-> of each annotator the first and the last of the others who vote on the same samples [people]: the same where
    there is one; `people` and -1 where nobody does. What is given is sorted by sample, then annotator."""
    first = np.flatnonzero(np.diff(sample, prepend=-1))
    size = np.diff(np.append(first, len(sample)))
    last, owner = first + size - 1, np.repeat(np.arange(len(first)), size)
    least, most = np.full(people, people), np.full(people, -1)
    for ends, next_, found, keep in (
        (first, np.minimum(first + 1, last), least, np.minimum),
        (last, np.maximum(last - 1, first), most, np.maximum),
    ):
        end = annotator[ends][owner]
        other = np.where(annotator == end, annotator[next_][owner], end)
        several = size[owner] > 1
        keep.at(found, annotator[several], other[several])
    return least, most


def _sample_of(votes: Table, ballots: Ballots, samples: Samples) -> Ints:
    """-> the position of each vote's sample; -1 where it is not there. None at all is a DataError."""
    position = {name: index for index, name in enumerate(samples.ids)}
    sample = np.array([position.get(name, -1) for name in ballots.ids])[ballots.sample]
    if (sample < 0).all():
        raise DataError(
            f"{votes.path}: none of its samples, such as '{ballots.ids[0]}', is in {samples.source}, where they are "
            f"called '{samples.ids[0]}' and the like. Give the samples that the votes are about."
        )
    return sample


def _check_all_there(votes: Table, ballots: Ballots, sample: Ints, samples: Samples) -> None:
    problems = votes.problems()
    for index in np.flatnonzero(sample < 0).tolist():
        reason = f"sample '{ballots.ids[ballots.sample[index]]}' is not in {samples.source}"
        problems.add(
            [ballots.row[index]],
            reason,
            "Add it there, or remove its votes, or leave them out: --skip-bad (skip_bad=True).",
        )
    problems.stop()


def _left_out(votes: Table, ballots: Ballots, sample: Ints, samples: Samples) -> list[str]:
    """-> what does not match, with `skip_bad`: votes without their sample, and samples that no vote, or too few, made
    anything of."""
    lost, bare = np.flatnonzero(sample < 0), np.flatnonzero(~samples.candidates.any(1))
    notes = []
    if len(lost):
        name = ballots.ids[ballots.sample[lost[0]]]
        what = f"{counted(len(lost), 'vote')} on samples that are not in {samples.source}"
        notes.append(f"{votes.path}: left out {what}, such as '{name}'.")
    if len(bare):
        name = samples.ids[bare[0]]
        what = f"{counted(len(bare), 'sample')} without votes, or with too few"
        notes.append(f"{samples.source}: left out {what}, such as '{name}'.")
    return notes


def _summed(
    sample: Ints, ballots: Ballots, weight: npt.NDArray[np.float64], shape: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """-> the votes that each sample's labels have [n, labels], by their weights."""
    found, there = np.zeros(shape, np.float32), sample >= 0
    np.add.at(found, (sample[there], ballots.label[there]), weight[there])
    return found


def _check_empty(
    candidates: npt.NDArray[np.bool_], samples: Samples, ballots: Ballots, min_votes: int, problems: Problems
) -> None:
    """Notes the samples that have no label left, or never had one."""
    voted = set(ballots.ids)
    for index in np.flatnonzero(~candidates.any(1)).tolist():
        name = samples.ids[index]
        fault = f"no label with {min_votes} votes" if name in voted else "no votes"
        remedy = "Lower --min-votes (min_votes), add votes, or leave such samples out: --skip-bad (skip_bad=True)."
        problems.add([samples.rows[index]], f"sample '{name}' has {fault}", remedy)
