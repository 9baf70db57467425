"""The stream: which class is born in which task, when each sample arrives, and with which candidates.

It is built once from a source and a seed, and is the same for every method.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ipll.data.candidates import FLIPS, draw_candidates, flip_probabilities
from ipll.data.source import Source
from ipll.engine.files import parse_json, write_atomically
from ipll.engine.npz import read_npz
from ipll.engine.placement import Array, Selection, select
from ipll.errors import ConfigError, DataError
from ipll.rng import numpy_generator
from ipll.settings import Section, setting

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

ENDING = ".npz"
ARRAYS = ("class_order", "task", "candidates", "seed", "config")  # what a stream file holds
DROPPED = -1  # the task of a sample that never arrives


@dataclass(frozen=True)
class StreamConfig(Section, name="stream"):
    """The settings of a stream, `stream.*` in a configuration file."""

    tasks: int = setting(10, "T, the number of tasks", "paper", least=1)
    blurry: float = setting(
        10.0, "100 - W: the percentage of a class that arrives after its own task", "paper", least=0, below=100
    )
    q: float = setting(0.1, "probability that another seen class joins a candidate set", "paper", least=0, below=1)
    candidates: str = setting("uniform", "how sets are drawn; banded: by the paper's matrix", "paper", choices=FLIPS)
    order: str = setting(
        "random", "of the classes; superclass: whole ones a task", "paper", choices=("random", "natural", "superclass")
    )
    last_leftover: str = setting(
        "keep", "the last task's classes have no later task: 'keep' their rest, or 'drop' it", choices=("keep", "drop")
    )
    min_candidates: int = setting(1, "2: no set of a single label, where another class is seen", within=(1, 2))
    miss: float = setting(0.0, "share of the samples whose true label is not among their candidates", least=0, below=1)
    flip_scope: str = setting(
        "seen", "who can be flipped in: all 'seen' classes, or only the 'superclass'", choices=("seen", "superclass")
    )
    given: str = setting("", "SHA-256 of a stream of your own (`ipll run --stream`), filled in when a run is made")


@dataclass(frozen=True, eq=False)
class Task:
    """What a learner is given of one task. There is no label field, on purpose: the truth never reaches a learner.

    In a benchmark's stream the old classes are the first `old` ones. Where people's own data come in, a class may have
    been seen as somebody's false candidate only: then `known` says which classes count as old.
    """

    index: int  # from 0
    ids: Ints  # [n], of the training samples
    samples: Array | Selection  # images [n, channels, height, width], or features [n, d]
    candidates: Mask  # [n, seen], columns in order of arrival
    old: int  # how many classes count as old
    seen: int  # classes seen by now; those that are not old are new
    known: Mask | None = None  # [seen], which classes count as old; None: the first `old`
    votes: Floats | None = None  # [n, seen], that each candidate has; None: all candidates are the same
    certain: Ints | None = None  # ids, of the memory's samples too, whose sets hold the true label: not to be doubted

    def known_classes(self) -> Mask:
        """-> [seen], which classes count as old."""
        return np.arange(self.seen) < self.old if self.known is None else self.known


class TaskSummary(NamedTuple):
    """One task in numbers: its samples, of new and of old classes, and how ambiguous they are."""

    samples: int
    new: int
    old: int
    mean_candidates: float
    singletons: int


@dataclass(frozen=True, eq=False)
class Stream:
    """When every training sample arrives, and its candidate set."""

    class_order: Ints  # [classes], class ids in order of arrival
    task: Ints  # [n], from 0; DROPPED for a sample that never arrives
    candidates: Mask  # [n, classes], columns are class ids; a dropped sample has only its true label
    seed: int
    config: StreamConfig
    source_name: str
    classes_per_task: tuple[int, ...]

    @classmethod
    def build(cls, source: Source, config: StreamConfig, seed: int) -> Stream:
        """Draws class order, blurry split and candidate sets, each from a generator of its own."""
        if config.given:
            raise ConfigError(
                f"stream.given names a stream of your own ({config.given[:12]}...): give it, as --stream FILE."
            )
        _check(source, config)
        births = _births(source, config, numpy_generator(seed, "class-order"))
        class_order = np.concatenate(births)
        arrival = np.argsort(class_order)
        sizes = [len(classes) for classes in births]
        born = np.repeat(np.arange(len(births)), sizes)[arrival]  # [classes], by class id
        task = _blurry_split(source.train_labels, born, config, numpy_generator(seed, "blurry"))

        groups = source.superclasses if config.flip_scope == "superclass" else None
        superclasses = None if groups is None else groups[class_order]
        seen = np.where(task == DROPPED, 0, np.cumsum(sizes)[task])  # nothing seen: only the true label
        drawn = draw_candidates(
            labels=arrival[source.train_labels],
            seen=seen,
            probabilities=flip_probabilities(config.candidates, source.classes, config.q, superclasses),
            rng=numpy_generator(seed, "candidates"),
            min_candidates=config.min_candidates,
            missed=_missed(seen, config.miss, numpy_generator(seed, "misses")),
        )
        return cls(class_order, task, drawn[:, arrival], seed, config, source.name, tuple(sizes))

    def __len__(self) -> int:
        """-> the number of tasks."""
        return len(self.classes_per_task)

    @property
    def arrival(self) -> Ints:
        """[classes], class id -> its place in the order of arrival: the inverse of `class_order`."""
        return np.argsort(self.class_order)

    def seen(self, t: int) -> int:
        """-> |Y_t|, the number of classes seen once task `t` has begun; 0 for t = -1."""
        return sum(self.classes_per_task[: t + 1])

    def make_task(self, t: int, samples: Array | Selection) -> Task:
        """-> task `t` with its share of a source's training samples; those of a mapped file are not read yet."""
        if not 0 <= t < len(self):
            raise IndexError(f"task {t} of a stream of {len(self)} tasks")
        if len(samples) != len(self.task):
            raise DataError(
                f"the stream was built for {len(self.task)} samples of '{self.source_name}', but {len(samples)} are "
                "given: use the source it was built from."
            )
        ids = np.flatnonzero(self.task == t)
        candidates = self.candidates[np.ix_(ids, self.class_order[: self.seen(t)])]
        return Task(t, ids, select(samples, ids), candidates, old=self.seen(t - 1), seen=self.seen(t))

    def sets(self) -> Mask:
        """-> [n, classes], the candidates that a learner is given: of classes seen when the sample arrives. Columns are
        class ids. Of a stream that is drawn they are all; one of the user's own may name others too."""
        seen = np.cumsum(self.classes_per_task)[self.task]
        return self.candidates & (self.arrival < seen[:, None])

    def summary(self, labels: Ints) -> list[TaskSummary]:
        """-> one row per task, given the true labels [n] of the source."""
        place, sizes = self.arrival[labels], self.sets().sum(1)
        rows = []
        for t in range(len(self)):
            here = self.task == t
            old = int((place[here] < self.seen(t - 1)).sum())
            n, size = int(here.sum()), sizes[here]
            rows.append(TaskSummary(n, n - old, old, float(size.mean()), int((size == 1).sum())))
        return rows

    def sha256(self) -> str:
        """-> the digest of class order, tasks and candidates: equal for equal streams."""
        digest = hashlib.sha256()
        for array in (self.class_order, self.task, self.candidates):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Writes an uncompressed npz of ARRAYS. It appears under `path` whole or not at all."""
        settings = asdict(self.config) | {"source": self.source_name, "classes_per_task": self.classes_per_task}
        arrays = {
            "class_order": self.class_order,
            "task": self.task,
            "candidates": self.candidates,
            "seed": np.int64(self.seed),
            "config": np.array(json.dumps(settings)),
        }

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:  # a file, since a bare name would get an ending of numpy's choice
                np.savez(file, **arrays)  # type: ignore[arg-type]

        write_atomically(Path(path), write)

    @classmethod
    def load(cls, path: str | Path) -> Stream:
        """Reads what `save` wrote."""
        path = Path(path)
        again = "Build the stream again and save it."
        try:
            arrays = read_npz(path.resolve(), ARRAYS)  # a user may name a link
        except FileNotFoundError:
            raise DataError(f"there is no stream file {path}.") from None
        except (OSError, ValueError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise DataError(f"stream file {path} is cut short or damaged ({reason}). {again}") from error
        if missing := [name for name in ARRAYS if name not in arrays]:
            raise DataError(f"stream file {path} lacks the array '{missing[0]}'. {again}")
        try:
            settings = parse_json(str(arrays.pop("config").item()))
            name, sizes = settings.pop("source"), tuple(map(int, settings.pop("classes_per_task")))
            seed = int(arrays.pop("seed"))
            stream = cls(**arrays, seed=seed, config=StreamConfig(**settings), source_name=name, classes_per_task=sizes)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DataError(f"stream file {path}: its settings cannot be read ({error}). {again}") from error
        if problem := inconsistency(stream):
            raise DataError(f"stream file {path}: {problem}. {again}")
        return stream


def _check(source: Source, config: StreamConfig) -> None:
    """Refuses settings that do not fit the source."""
    for key in ("order", "flip_scope"):
        if getattr(config, key) == "superclass" and source.superclasses is None:
            raise ConfigError(
                f"stream.{key} is 'superclass', but '{source.name}' has no superclasses: choose another {key}."
            )
    groups = source.superclasses if config.order == "superclass" else None
    most, what = (source.classes, "classes") if groups is None else (len(np.unique(groups)), "superclasses")
    if config.tasks > most:
        raise ConfigError(
            f"stream.tasks is {config.tasks}, but '{source.name}' has {most} {what}: choose at most {most}."
        )
    check_classes(source)


def check_classes(source: Source) -> None:
    """Every class is learnt and scored: without test samples a task might have no accuracy at all."""
    if (empty := _empty_class(source, source.train_labels)) is not None:
        raise DataError(f"class '{empty}' of '{source.name}' has no training samples: leave it out of the classes.")
    if (empty := _empty_class(source, source.test_labels)) is not None:
        raise DataError(
            f"class '{empty}' of '{source.name}' has no test samples, so nothing could be said of it: leave it out of "
            "the classes, or score training samples that are set apart, --set data.validation=0.1."
        )


def _empty_class(source: Source, labels: Ints) -> str | None:
    """-> the name of a class that none of these labels is, if there is one."""
    counts = np.bincount(labels, minlength=source.classes)
    return None if counts.all() else source.class_names[int(counts.argmin())]


def _births(source: Source, config: StreamConfig, rng: np.random.Generator) -> list[Ints]:
    """-> the class ids born in each task; tasks differ by at most one class (or superclass), larger ones first."""
    if config.order == "superclass" and source.superclasses is not None:
        groups = np.array_split(rng.permutation(np.unique(source.superclasses)), config.tasks)
        return [rng.permutation(np.flatnonzero(np.isin(source.superclasses, group))) for group in groups]
    classes = rng.permutation(source.classes) if config.order == "random" else np.arange(source.classes)
    return np.array_split(classes, config.tasks)


def _blurry_split(labels: Ints, born: Ints, config: StreamConfig, rng: np.random.Generator) -> Ints:
    """-> the task of each sample [n]: W% of a class in the task where it is born, the rest evenly in all later ones."""
    task = born[labels]
    for c, birth in enumerate(born):
        ids = rng.permutation(np.flatnonzero(labels == c))
        count = min(round(len(ids) * config.blurry / 100), len(ids) - 1)  # a class is never born without a sample
        later = rng.permutation(np.arange(birth + 1, config.tasks))
        if len(later):
            # Dealt round and round: counts differ by at most one, and the shuffle says which tasks get the remainder.
            task[ids[:count]] = later[np.arange(count) % len(later)]
        elif config.last_leftover == "drop":
            task[ids[:count]] = DROPPED
    return task


def _missed(seen: Ints, share: float, rng: np.random.Generator) -> Mask:
    """-> whose true label is missed [n]: this share, as near as can be, of the samples with another class to be taken
    for; a smaller share gives a subset."""
    mistakable = rng.permutation(np.flatnonzero(seen > 1))
    missed = np.zeros(len(seen), dtype=bool)
    missed[mistakable[: round(share * len(mistakable))]] = True
    return missed


def inconsistency(stream: Stream) -> str | None:
    """-> what does not fit together in a stream that was not drawn here."""
    order, task, candidates = stream.class_order, stream.task, stream.candidates
    kinds = [(array.dtype.name, array.ndim) for array in (order, task, candidates)]
    if kinds != [("int64", 1), ("int64", 1), ("bool", 2)] or candidates.shape != (len(task), len(order)):
        return "its arrays are not of the right types and shapes"
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        return "'class_order' is not a permutation of the classes"
    if sum(stream.classes_per_task) != len(order) or len(stream) != stream.config.tasks:
        return f"its classes per task do not make {stream.config.tasks} tasks of {len(order)} classes"
    if not np.isin(task, np.arange(DROPPED, len(stream))).all():
        return f"'task' holds numbers outside {DROPPED}, ..., {len(stream) - 1}"
    return None
