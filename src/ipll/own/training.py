"""One update: drives the learner through a task, writes down what samples settle on, and sums up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.data.stream import Task
from ipll.driver import Clock, Record, drive
from ipll.engine.state import part_of
from ipll.learner import Learner, Position
from ipll.own.certainty import held_out_certainty
from ipll.own.inputs import Array
from ipll.own.pending import Pending
from ipll.own.prediction import class_scores, fit_temperature
from ipll.own.records import Records
from ipll.own.stages import AGAIN, STOPPED, Stages
from ipll.progress import Plan
from ipll.prototypes import Prototypes, class_means

FAR = 0.99  # this share of the training samples is nearer
BLOCK = 8192  # samples whose distances to all centres are held at a time


class Learnt(NamedTuple):
    """What an update leaves behind, all of it on the CPU."""

    tensors: dict[str, Tensor]
    centres: Tensor  # [seen, dim]
    records: Records
    temperature: float
    far: float
    missed: float


@dataclass
class Update:
    """The driver's job on one task: writes down what samples settle on, and sums up."""

    learner: Learner
    learnt_from: Task
    records: Records  # which hold the task's samples already
    centres: Tensor  # [before, dim], those of the model before it
    number: int  # of the model's fit and updates, from 1
    stages: Stages
    pending: Pending | None  # what it goes on with
    outcome: Learnt = field(init=False)  # once the task is learnt

    def run(self) -> Learnt:
        learner, task, train = self.learner, self.learnt_from, self.learner.config.train
        samples = len(task.ids) or int(self.records.in_memory.sum())  # decisions alone: those of the memory
        title = f"{learner.config.method}: {samples:,} samples, {task.seen:,} classes"
        plan = Plan(title, [samples], [train.epochs_of(task.index)], first=task.index)
        listener, stop, start = self.stages.listener, self.stages.stop, None
        if self.pending:
            self.records, start = self.pending.restore(learner, task, self.records)
        if start:
            stop.parting = STOPPED + AGAIN
            epochs = plan.epochs[-1]
            listener.note(f"Going on where it was stopped, in epoch {min(start.epoch + 1, epochs)} of {epochs}.")
        clock = Clock(train.checkpoint_seconds)
        self.stages.check()
        listener.begin(plan, start or Position(task.index))
        drive(learner, task, start, job=self, listener=listener, stop=stop, clock=clock)
        return self.outcome

    def epoch(self, position: Position) -> Record | None:
        """Samples settle in the last phase."""
        if position.phase < self.learner.phases - 1:
            return None
        before, self.records = self.records, settled_records(self.learner, self.records, self.number, position.epoch)
        changed = int((before.label != self.records.label).sum())
        own = self.learnt_from.ids
        rows = own if len(own) else _array(self.learner.ctx.pool.ids)  # decisions alone: those of the memory
        return {"changed": changed, "confidence": float(self.records.confidence[rows].mean())}

    def task(self) -> Record:
        learner, pool = self.learner, self.learner.ctx.pool
        self.stages.begin("how sure the labels are")
        # A retention's correction may have the last word.
        records = settled_records(learner, self.records, self.number, learner.ctx.epochs)
        records = records.finished(self.learnt_from.ids[_array(pool.judged_old)], _array(learner.memory.ids))
        found = _centres(learner, records, self.centres, self.learnt_from.seen)
        rows = _array(pool.ids)
        sure = held_out_certainty(learner, torch.from_numpy(records.label[rows]).to(pool.ids.device))
        if sure is not None:
            records = records.assured(rows, _array(sure.confidence), _array(sure.runner_up))
        self.outcome = Learnt(
            tensors={name: tensor.detach().cpu() for name, tensor in learner.tensors(within=False).items()},
            centres=found.cpu(),
            records=records,
            temperature=_temperature(learner) if sure is None else sure.temperature,
            far=float(torch.quantile(_nearest(learner, found), FAR)) if sure is None else sure.far,
            missed=0.0 if sure is None else sure.missed,
        )
        return {"task": learner.ctx.task, "seen_classes": self.learnt_from.seen}

    def keep(self, position: Position | None) -> None:
        """Not the end: what comes of it is whole, and the caller's to keep."""
        if self.pending and position:
            self.pending.keep(self.learner, self.records, position)
            self.stages.stop.parting = STOPPED + AGAIN


def settled_records(learner: Learner, records: Records, update: int, epoch: int) -> Records:
    """-> the records with what the samples of the pool settle on by now."""
    confidence, label = learner.ctx.pool.p.max(dim=1)
    return records.settled(_array(learner.ctx.pool.ids), _array(label), _array(confidence), update, epoch)


def predict_block(
    learner: Learner, samples: Array, centres: Tensor, temperature: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """-> probabilities [n, classes], and the distance to the centre of the most probable class [n]."""
    features, logits = learner.ctx.embed(torch.from_numpy(samples))
    probabilities, distance = judged(learner, features, logits, centres, temperature)
    return _array(probabilities), _array(distance)


def judged(
    learner: Learner, features: Tensor, logits: Tensor, centres: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The same of features [n, dim] and corrected logits [n, capacity]; exports are made of it, too."""
    scores = class_scores(learner, features, logits)[:, : len(centres)]
    probabilities = (scores / temperature).softmax(dim=1)
    offsets = features - centres.to(features.device)[probabilities.argmax(dim=1)]
    return probabilities, torch.linalg.vector_norm(offsets, dim=1).nan_to_num(nan=torch.inf)


def _centres(learner: Learner, records: Records, before: Tensor, seen: int) -> Tensor:
    """-> prototypes [seen, dim], or where the method has none the means of features of what settled on a class.

    A class of which the pool holds no sample keeps the centre that it had.
    """
    if prototypes := part_of(learner.ctx.parts, Prototypes):
        return prototypes.mu[:seen].where(prototypes.known[:seen, None], torch.nan)
    features, device = learner.ctx.pool_features(), learner.ctx.device
    labels = torch.from_numpy(records.label[_array(learner.ctx.pool.ids)]).to(device)
    means, filled = class_means(features, labels, seen)
    earlier = torch.full_like(means, torch.nan)
    if len(before):
        earlier[: len(before)] = before.to(device)
    return torch.where(filled[:, None], means, earlier)


def _nearest(learner: Learner, centres: Tensor) -> Tensor:
    """-> the distance of each sample of the pool [n] to the nearest centre."""
    there, distances = centres[~centres.isnan().any(dim=1)], []
    for block in torch.split(learner.ctx.pool_features(), BLOCK):
        learner.ctx.check_stop()
        distances.append(torch.cdist(block, there).amin(dim=1))
    return torch.cat(distances)


@torch.no_grad()
def _temperature(learner: Learner) -> float:
    """Fitted on the memory's samples and what they settled on; without a memory, on the task's own."""
    ctx, pool, kept = learner.ctx, learner.ctx.pool, learner.memory.ids
    rows = torch.isin(pool.ids, kept) if len(kept) else torch.ones_like(pool.held_out)
    features = ctx.pool_features()[rows]
    logits = ctx.correct(ctx.network.head(features))
    return fit_temperature(class_scores(learner, features, logits), pool.p[rows].argmax(dim=1))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()
