"""A model of people's own data: the learner's state and the records of all samples. An update makes the next one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.config import Config
from ipll.data.stream import Task
from ipll.driver import enough_memory
from ipll.engine.device import arithmetic, cpu_threads, find_device
from ipll.engine.state import MEMORY
from ipll.errors import ConfigError, DataError
from ipll.grow import grow
from ipll.learner import Learner
from ipll.own.deciding import all_again, check_any_left, impose, keeps_all, no_samples, settle
from ipll.own.decisions import Decision, Decisions, decided_sets
from ipll.own.defaults import AUTO, METHODS, Choice, Facts, choose, choose_again, configure, in_force, reconfigure
from ipll.own.embedding import embedded, small_pictures
from ipll.own.folder import working_on
from ipll.own.history import Event, event
from ipll.own.inputs import array_of, blocks, columns_in, kind_of, matched, spread, with_used_words, without_gaps
from ipll.own.pending import Pending, key_of
from ipll.own.prediction import Predictions
from ipll.own.reading.images import Images
from ipll.own.reading.samples import Samples, check_spelling
from ipll.own.records import Records
from ipll.own.saved import read_model, write_model
from ipll.own.stages import Stages, stages
from ipll.own.through import Through, network_for
from ipll.own.training import Update, predict_block
from ipll.own.trials import for_a_fit, for_all_anew, try_settings
from ipll.plugins import load_plugins
from ipll.progress import Listener, Silent
from ipll.settings import check

SMALLEST = 8  # columns of a new model's head; they double when classes outgrow them


class Stacking(NamedTuple):
    """What classifies, and the mean over held-out samples of -log of the probability of their candidate sets."""

    used: str  # 'the linear head', 'prototypes', 'a forest', or several of them
    head: float
    prototypes: float
    chosen: float


@dataclass(frozen=True, eq=False)
class Model:
    """Never changes: `update` gives a new one, so what fails or is stopped loses nothing.

    Classes are numbered in order of arrival; `names[c]` is the name of column c, of the learner's and of predictions.
    """

    names: tuple[str, ...]
    config: Config  # of the last update
    kind: str  # 'images' or 'features': what is learnt from
    shape: tuple[int, ...]  # (channels, size, size), or (features,)
    feature_names: tuple[str, ...]
    mean: tuple[float, ...]  # of the first fit's samples
    std: tuple[float, ...]
    given: Mapping[str, Any]  # settings that the user chose
    chosen: tuple[Choice, ...]  # settings that were chosen from the data
    min_class_samples: int
    tensors: dict[str, Tensor]  # the learner's state between tasks, the memory's samples among it
    centres: Tensor  # [names, dim], prototypes, or means of features; NaN for a class on which no sample settled
    capacity: int
    known: npt.NDArray[np.bool_]  # [names], the classes that count as old
    records: Records
    updates: int  # learnt so far; 1 after `fit`
    temperature: float
    far: float  # the 99th percentile of the training samples' distance to the nearest centre
    missed: float = 0.0  # share of the last update's samples whose sets clearly seem to miss the true label
    decisions: tuple[Decision, ...] = ()  # of people, the last of each on a sample
    history: tuple[Event, ...] = ()  # what it learnt, when; an older version did not keep it
    voted: tuple[int, ...] = ()  # the updates whose samples came with votes
    skipped: tuple[tuple[int, str], ...] = ()  # (row, reason) of images left out of the last update; not kept on disk
    through: Through | None = None  # the network whose features of photos are learnt from; None: samples as they come
    pictures: Tensor | None = None  # uint8 [memory, 3, size, size], then, small: in the order of the memory

    @classmethod
    def fit(
        cls, samples: Samples, *, method: str = AUTO, network: str = AUTO, seed: int = 0, device: str = "auto",
        settings: Mapping[str, Any] | None = None, min_class_samples: int = 5, skip_bad: bool = False,
        reporter: Listener | None = None, pending: str | Path | None = None, decisions: Decisions | None = None,
    ) -> Model:  # fmt: skip
        """-> a new model of these samples, and of what people decided on some of them.

        `method` 'auto' is PGDR with what tables ('pgdr/tables') or a few images ('pgdr/images') need.
        `network` is what photos are seen through: 'efficientnet-lite0', 'torchvision:NAME', 'timm:NAME', or 'scratch'
        for none; 'auto' takes the first where it is installed. What it gives is then learnt as a table.
        `settings` have dotted keys, {"train.epochs": 5}; what they leave open is chosen from the data (`choices`).
        `pending` is a folder for checkpoints: where training is stopped, the same call goes on with it.
        """
        check(min_class_samples >= 1, "min_class_samples", "be at least 1", min_class_samples)
        load_plugins()
        given, where, samples = dict(settings or {}), find_device(device), with_used_words(samples)
        seen = network_for(samples, network, given, reporter or Silent())
        facts = Facts.of(samples, len(samples.names), where, dim=seen.dim if seen else 0)
        method = METHODS[facts.kind] if method == AUTO else method
        chosen = choose(facts, given)
        config = configure(method, seed, chosen, given)
        if message := _too_small(config, len(samples.names)):
            raise ConfigError(f"{message} Set memory.size to {len(samples.names)} or more.")
        if facts.kind == "images" and not config.data.size:
            raise ConfigError("data.size is 0: choose the size that images are learnt at, in pixels.")
        if seen is not None:
            samples = embedded(samples, seen, where, skip_bad=skip_bad, listener=reporter)
        samples = samples.decoded(config.data.size or None, skip_bad=skip_bad)
        said, samples = settle(Records.empty(), (), samples, samples.names, 1, decisions)
        samples, mean, std = without_gaps(samples)
        array = array_of(samples)
        with stages(reporter) as under_way:
            if config.model.folds:
                tried = for_a_fit(config, given, votes=samples.votes is not None)
                found = try_settings(tried, config, array, samples.candidates, mean, std, where, under_way)
                chosen, config = _latest(chosen, found), reconfigure(config, found)
            new = cls(
                names=(), config=config, kind=kind_of(samples), shape=array.shape[1:],
                feature_names=samples.feature_names, mean=mean, std=std, given=given, chosen=in_force(chosen, config),
                min_class_samples=min_class_samples, tensors={}, centres=torch.zeros(0, 0), capacity=0,
                known=np.zeros(0, np.bool_), records=Records.empty(), updates=0, temperature=1.0, far=0.0,
                decisions=said, through=Through(seen.name, seen.digest) if seen else None,
            )  # fmt: skip
            return new._learn(samples, where, under_way, pending)._noted(samples, decisions)

    def update(
        self, samples: Samples | None, *, device: str = "auto", skip_bad: bool = False,
        reporter: Listener | None = None, pending: str | Path | None = None, decisions: Decisions | None = None,
    ) -> Model:  # fmt: skip
        """-> the model after one more batch of samples, which may bring new classes. `pending` is as in `fit`.

        `decisions` are on samples learnt before, or on these. Without samples, what is learnt from is the memory: anew
        where it keeps every sample of a table, else it goes on; where it holds none of the decided ones, records
        change and nothing is learnt.
        """
        where = find_device(device)
        if samples is None:
            given = no_samples(self.kind, self.shape, self.feature_names)
        else:
            given = self.seen(samples, device=device, skip_bad=skip_bad, reporter=reporter)
            given = given.decoded(self.shape[-1], self.shape[0], skip_bad=skip_bad)
        names = self._names_with(given)
        for message in check_spelling(self.names, names[len(self.names) :], given.source):
            warnings.warn(message, stacklevel=2)
        said, given = settle(self.records, self.decisions, given, names, self.updates + 1, decisions)
        model = self._imposed(said, names)
        if samples is None and not model._may_learn(self, said):
            return model._noted(None, decisions)
        classes, dim = len(self._names_with(given)), self.shape[0] if self.through else 0
        facts = Facts.of(given, classes, where, kept=int(model.records.in_memory.sum()), dim=dim)
        chosen = choose_again(self.config, facts, self.given)
        config = reconfigure(self.config, chosen)
        if message := _too_small(config, classes):
            warnings.warn(f"{message} Classes take turns in it; old ones may be forgotten.", stacklevel=2)
        anew = samples is None and model._keeps_all
        with stages(reporter) as under_way:
            if anew and config.model.folds:
                tried, task = for_all_anew(self.chosen), all_again(model.tensors, classes, None)
                assert isinstance(task.samples, np.ndarray)
                found = try_settings(
                    tried, config, task.samples, task.candidates, self.mean, self.std, where, under_way
                )
                chosen, config = _latest(chosen, found), reconfigure(config, found)
            model = replace(model, config=config, chosen=_latest(self.chosen, chosen))
            model = model._learn(given, where, under_way, pending, anew=anew)
            return model._noted(None if samples is None else given, decisions)

    @property
    def takes(self) -> str:
        """-> 'images' or 'features': what the model is given."""
        return "images" if self.through else self.kind

    def seen(
        self, samples: Samples, *, device: str = "auto", skip_bad: bool = False, reporter: Listener | None = None
    ) -> Samples:
        """-> the samples as the model learns them: features in its order; photos with what its network gives for them,
        where it has one."""
        if self.through is None:
            return matched(samples, self.kind, self.shape, self.feature_names, self.mean)
        if samples.images is None:
            raise DataError(f"{samples.source} holds features, but the model learnt photos. Use another model.")
        if samples.features is not None:  # they went through it already
            return samples
        return embedded(samples, self.through.find(), find_device(device), skip_bad=skip_bad, listener=reporter)

    def decide(self, decisions: Decisions, **options: Any) -> Model:
        """-> the model after people said what some of its samples are: `update` with decisions and no new samples."""
        return self.update(None, decisions=decisions, **options)

    def _noted(self, samples: Samples | None, decisions: Decisions | None) -> Model:
        """-> the model, whose history tells what it has just learnt."""
        return replace(self, history=(*self.history, event(self.updates, samples, decisions)))

    def _imposed(self, decisions: tuple[Decision, ...], names: tuple[str, ...]) -> Model:
        """-> the model with these decisions, in its records and its memory. They may say that a sample is of a class
        which comes only now: then there is room for all `names`."""
        past = [one for one in decisions if one.row < len(self.records)]
        model = self if {one.name for one in past} <= {None, *self.names} else self._wider(names)
        records, tensors = impose(self.records, model.tensors, decided_sets(past, model.names))
        pictures = _pictured(None, len(self.records), tensors, self)
        return replace(model, decisions=decisions, records=records, tensors=tensors, pictures=pictures)

    def _wider(self, names: tuple[str, ...]) -> Model:
        """-> the model with room for these classes, of which its own are the first."""
        capacity, tensors = _room(self.capacity, len(names)), self.tensors
        if self.updates and capacity > self.capacity:
            tensors = grow(tensors, self.config, self.shape[0], self.capacity, capacity)
        known = np.append(self.known, np.zeros(len(names) - len(self.names), np.bool_))
        return replace(self, names=names, capacity=capacity, tensors=tensors, known=known)

    @property
    def _keeps_all(self) -> bool:
        """Can all that was learnt be learnt again? Of votes, the memory does not keep how many there were."""
        return self.kind == "features" and not self.voted and keeps_all(self.records, self.decisions)

    def _may_learn(self, before: Model, decisions: tuple[Decision, ...]) -> bool:
        """Is there something in the memory that was decided since `before`, in it or by leaving it?"""
        rows = sorted({one.row for one in set(decisions) - set(before.decisions)})
        return bool(before.records.in_memory[rows].any() and self.records.in_memory.any())

    def _names_with(self, samples: Samples) -> tuple[str, ...]:
        """-> the model's classes, then those that these samples bring as a candidate."""
        arriving = (samples.names[k] for k in np.flatnonzero(samples.candidates.any(0)).tolist())
        return tuple(dict.fromkeys((*self.names, *arriving)))

    def _learn(
        self, samples: Samples, device: torch.device, under_way: Stages, folder: str | Path | None, anew: bool = False
    ) -> Model:
        if len(bare := np.flatnonzero(~samples.candidates.any(1))):
            row = f"{samples.word} {samples.rows[bare[0]]}"
            raise DataError(f"{samples.source}, {row}: no candidates. Give each sample at least one, or leave it out.")
        under_way.begin("preparing the samples")
        names = self._names_with(samples)
        records = self.records.with_samples(samples, columns_in(samples.names, names), self.updates + 1)
        under_way.check()
        wider, number = self._wider(names), self.updates + 1
        old = wider.known & ~records.surging(len(names), number)
        sets = decided_sets(self.decisions, names)
        out = [row - len(self.records) for row, classes in sets.items() if row >= len(self.records) and not classes]
        certain = np.array([row for row, classes in sets.items() if classes], np.int64) if sets else None
        learnt = np.setdiff1d(np.arange(len(samples)), out)  # not what is none of its classes
        check_any_left(samples, len(learnt), self.records)
        votes = None if samples.votes is None else samples.votes[learnt]
        task = Task(
            index=self.updates,
            ids=len(self.records) + learnt,
            samples=array_of(samples) if not out else array_of(samples)[learnt],
            candidates=spread(samples.candidates[learnt], samples.names, names),
            old=int(old.sum()),
            seen=len(names),
            known=old,
            votes=None if votes is None else spread(votes, samples.names, names),
            certain=certain,
        )
        if anew:
            task = all_again(self.tensors, len(names), certain)
        computing = arithmetic(deterministic=self.config.train.deterministic, device=device)
        with cpu_threads(self.config.train.threads), computing, enough_memory(self.config):
            learner = self._learner(self.config, wider.capacity, device, pretrained=not self.updates)
            if self.updates and not anew:
                learner.restore(wider.tensors)
            under_way.check()
            pending = None
            if folder is not None:
                pending = Pending(Path(folder), key_of(self.config, self.tensors, task, records))
            outcome = Update(learner, task, records, self.centres, number, under_way, pending).run()
        records, tensors = impose(outcome.records, outcome.tensors, sets)  # whatever a method did to them
        arrived = records.arrived(len(names), self.min_class_samples)
        placed = ~outcome.centres.isnan().any(dim=1).numpy()
        return replace(
            wider,
            pictures=_pictured(samples.images, len(self.records), tensors, self),
            tensors=tensors,
            centres=outcome.centres,
            known=wider.known | (placed & arrived),
            records=records,
            updates=number,
            temperature=outcome.temperature,
            far=outcome.far,
            missed=outcome.missed,
            voted=self.voted if samples.votes is None else (*self.voted, number),
            skipped=tuple(samples.skipped),
        )

    def _learner(self, config: Config, capacity: int, device: torch.device, *, pretrained: bool = False) -> Learner:
        channels, mean, std = self.shape[0], self.mean, self.std
        return Learner(
            config, channels=channels, classes=capacity, mean=mean, std=std, device=device, pretrained=pretrained
        )

    def predict(self, samples: Samples, *, device: str = "auto", reporter: Listener | None = None) -> Predictions:
        """-> classes, probabilities, distances. Candidates and labels that the samples may have are not looked at."""
        samples = self.seen(samples, device=device, reporter=reporter)
        where, train_settings = find_device(device), replace(self.config.train, compile="off", graphs="off")
        computing = arithmetic(deterministic=train_settings.deterministic, device=where)
        with cpu_threads(train_settings.threads), computing, enough_memory(self.config):
            learner = self._learner(replace(self.config, train=train_settings), self.capacity, where)
            learner.restore(self.tensors)
            parts = [
                predict_block(learner, block, self.centres, self.temperature) for block in blocks(samples, self.shape)
            ]
        probabilities, distance = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Predictions(
            names=self.names,
            classes=probabilities.argmax(1),
            probabilities=probabilities,
            distance=distance,
            unlike=distance > self.far,
        )

    def kept_pictures(self) -> npt.NDArray[np.uint8] | None:
        """-> the memory's images [memory, channels, size, size], in its order; None where it has none."""
        images = self.tensors[f"{MEMORY}samples"] if self.kind == "images" else self.pictures
        return None if images is None else np.asarray(images.numpy())

    def choices(self) -> list[tuple[str, Any, str]]:
        """-> (setting, value, why) of all settings that were chosen from the data, as they were in the last update."""
        return [(choice.setting, choice.value, choice.why) for choice in self.chosen]

    def twins(self) -> list[list[str]]:
        """-> groups of classes, by name, that are candidates of the very same samples: nothing but votes tells them
        apart."""
        told, groups = self._told_by_votes, self.records.twins(len(self.names))
        return [[self.names[c] for c in group] for group in groups if not told[group].any()]

    def companions(self) -> list[tuple[str, str]]:
        """-> (class, other), by name: the class is never a candidate without the other, against which nothing but votes
        could speak then."""
        told = self._told_by_votes
        pairs = self.records.companions(len(self.names))
        return [(self.names[c], self.names[other]) for c, other in pairs if not told[c]]

    @property
    def _told_by_votes(self) -> npt.NDArray[np.bool_]:
        """-> the classes that are candidates of samples with votes [names]."""
        voted = np.repeat(np.isin(self.records.update, self.voted), np.diff(self.records.offsets))
        return np.bincount(self.records.codes[voted], minlength=len(self.names)) > 0

    def stacking(self) -> Stacking | None:
        """-> how the classifier was chosen by held-out candidate sets; None where it was not."""
        losses, weights = (self.tensors.get(f"module.classifier.{name}") for name in ("likelihood", "weights_"))
        if losses is None or weights is None or not bool((losses >= 0).all()):
            return None
        of_forest = self.tensors.get("module.classifier.forest_weight", torch.zeros(1))
        names = ("the linear head", "prototypes", "a forest")
        used = [name for name, weight in zip(names, [*weights, *of_forest], strict=True) if weight > 0]
        return Stacking(" and ".join(used), *losses.tolist())

    def save(self, path: str | Path) -> None:
        """Writes the model folder. A model that is there is replaced, and stays as it is where this fails; who works on
        it is waited for."""
        with working_on(Path(path), new=True):
            write_model(Path(path), vars(self))

    @classmethod
    def load(cls, path: str | Path, *, plugins: Sequence[str | Path] = ()) -> Model:
        """-> the model in a folder; what is missing or changed is a DataError.

        `plugins` are the files that it was made with: the folder itself never brings code.
        """
        load_plugins(plugins)
        return cls(**read_model(Path(path)))


def _room(capacity: int, classes: int) -> int:
    """-> the columns of a head for so many classes: those that it has, doubled until they suffice."""
    capacity = capacity or SMALLEST
    while capacity < classes:
        capacity *= 2
    return capacity


def _pictured(photos: Images | None, first: int, tensors: Mapping[str, Tensor], before: Model) -> Tensor | None:
    """-> the small pictures of what the memory keeps now, of photos that are seen through a network."""
    if before.through is None:
        return None
    ids, earlier = (memory.get(f"{MEMORY}ids") for memory in (tensors, before.tensors))
    return small_pictures(photos, first, ids, earlier, before.pictures)


def _latest(before: tuple[Choice, ...], now: tuple[Choice, ...]) -> tuple[Choice, ...]:
    return tuple({choice.setting: choice for choice in (*before, *now)}.values())


def _too_small(config: Config, classes: int) -> str:
    """-> what is wrong with a memory that has no room for one sample of each class; '' where it has."""
    memory = config.part("memory")
    if memory.kind == "none" or memory.settings.size >= classes:
        return ""
    return f"the memory holds {memory.settings.size} samples, but there are {classes} classes."
