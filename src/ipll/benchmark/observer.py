"""The observer: joins the truth by sample id, outside the learner, and turns a run into its result."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipll.benchmark import metrics
from ipll.component import predict_within
from ipll.data.source import Source
from ipll.data.stream import Stream
from ipll.driver import Record
from ipll.engine.placement import place, select
from ipll.learner import Learner, Position
from ipll.results import schema
from ipll.rng import numpy_generator

PRIOR_TASK = 1  # the second task, where the paper looks at the predicted class prior
PRIOR_EPOCHS = (1, 2, 5)
GALLERY = 96  # samples in the report's gallery, in all


class Observer:
    """Everything it knows is in `state`, plain JSON, so that a checkpoint can keep it."""

    def __init__(self, source: Source, stream: Stream, device: torch.device, residence: str = "auto") -> None:
        self.stream = stream
        self.truth = stream.arrival[source.train_labels]  # [n], classes in order of arrival
        order = np.argsort(stream.arrival[source.test_labels], kind="stable")
        self.test_truth = stream.arrival[source.test_labels][order]
        self.test_samples = place(select(source.test_samples, order), device, residence)
        self.class_names = [source.class_names[c] for c in stream.class_order]
        self.state: Record = {"tasks": [], "class_accuracies": [], "class_prior": {}, "gallery": [], "confusion": []}

    def after_epoch(self, learner: Learner, position: Position) -> Record:
        """-> the epoch's line of metrics.jsonl."""
        if position.task == PRIOR_TASK and position.epoch in PRIOR_EPOCHS:
            self._class_prior(learner, position.epoch)
        if position.epoch == 1 and position.phase == learner.phases - 1:
            self.state["first_right"] = _pack(self._right(learner))
        losses = dict(learner.losses)
        return {
            "kind": "epoch",
            "task": position.task,
            "phase": position.phase,
            "epoch": position.epoch - 1,
            "loss": losses.pop("total"),
            "terms": losses,
        }

    def _class_prior(self, learner: Learner, epoch: int) -> None:
        """Counts per seen class of argmax over S_i of f, over the task's own samples, beside the true counts. Samples
        that come before their class, in a stream of the user's own, are truly of none that is counted."""
        pool, seen = learner.ctx.pool, learner.ctx.seen
        _, logits = learner.ctx.embed(pool.samples, slice(pool.incoming))
        predicted = predict_within(logits, pool.candidates[: pool.incoming])
        truth = self.truth[_array(pool.ids[: pool.incoming])]
        self.state["class_prior"][str(epoch)] = {
            "predicted": np.bincount(_array(predicted), minlength=seen).tolist(),
            "true": np.bincount(truth[truth < seen], minlength=seen).tolist(),
        }

    def after_task(self, learner: Learner) -> Record:
        """Measures the learner at the end of a task -> the task's line of metrics.jsonl."""
        ctx = learner.ctx
        record: Record = {"kind": "task", "task": ctx.task, "old_classes": ctx.old, "seen_classes": ctx.seen}
        record["residence"] = ctx.pool.samples.residence
        record |= self._test(learner) | self._disambiguation(learner)
        self.state["tasks"].append(record)
        return record

    def _test(self, learner: Learner) -> Record:
        ctx = learner.ctx
        n = int(np.searchsorted(self.test_truth, ctx.seen))
        truth, prediction = self.test_truth[:n], learner.predict(self.test_samples, slice(n))
        predicted, old = _array(prediction.classes), truth < ctx.old
        confusion = metrics.confusion_matrix(truth, predicted, ctx.seen)
        bounds = [self.stream.seen(t) for t in range(ctx.task + 1)]
        self.state["class_accuracies"].append(metrics.class_accuracies(confusion))
        self.state["confusion"] = confusion.tolist()
        return {
            "accuracy": metrics.percent(predicted == truth),
            "old_accuracy": metrics.percent((predicted == truth)[old]),
            "new_accuracy": metrics.percent((predicted == truth)[~old]),
            "linear_accuracy": metrics.percent(_array(prediction.linear) == truth),
            "old_as_new": metrics.percent((predicted >= ctx.old)[old]),
            "new_as_old": metrics.percent((predicted < ctx.old)[~old]) if ctx.old else None,
            "accuracy_by_task": metrics.group_accuracies(confusion, bounds),
        }

    def _disambiguation(self, learner: Learner) -> Record:
        ctx, pool, memory = learner.ctx, learner.ctx.pool, learner.memory
        ids = _array(pool.ids[: pool.incoming])
        own = pool.p[: pool.incoming]
        settled, truth = _array(own.argmax(dim=1)), self.truth[ids]
        judged = _array(pool.judged_old)
        separates = ctx.old > 0 and any("separation" in part.needs for part in ctx.parts)
        recalls = metrics.separation_recalls(judged, truth < ctx.old)
        self._fill_gallery(ctx.task, ids, settled, _array(own.amax(dim=1)), judged if separates else None)
        kept = _array(memory.p.argmax(dim=1)) if len(memory.ids) else np.zeros(0, dtype=np.int64)
        return {
            "pseudo_label_accuracy": metrics.percent(settled == truth),
            **(recalls if separates else dict.fromkeys(recalls)),
            "memory_purity": metrics.percent(kept == self.truth[_array(memory.ids)]),
            "memory_samples": len(kept),
            **self._moves(learner),
        }

    def _right(self, learner: Learner) -> Any:
        """-> [incoming] bool: is the pseudo-label of the task's own sample, argmax of p, the true one?"""
        pool = learner.ctx.pool
        return _array(pool.p[: pool.incoming].argmax(dim=1)) == self.truth[_array(pool.ids[: pool.incoming])]

    def _moves(self, learner: Learner) -> Record:
        """How pseudo-labels moved from the task's first epoch to its end, in percent of its own samples.

        Before the first epoch p is uniform over a set, so its argmax says nothing; what a pick by chance from the
        candidates would get right stands for it.
        """
        pool, last = learner.ctx.pool, self._right(learner)
        record = dict.fromkeys(("pseudo_label_first_accuracy", "pseudo_label_to_right", "pseudo_label_to_wrong"))
        chance = 100.0 / pool.candidates[: pool.incoming].sum(dim=1)
        if (packed := self.state.pop("first_right", None)) is not None:
            first = _unpack(packed, len(last))
            moves = (metrics.percent(part) for part in (first, ~first & last, first & ~last))
            record = dict(zip(record, moves, strict=True))
        return {"pseudo_label_chance": float(chance.mean()) if len(last) else None, **record}

    def _fill_gallery(self, task: int, ids: Any, settled: Any, confidence: Any, judged: Any) -> None:
        """A few samples of the task for people to look at: up to half of them wrongly settled, the rest right."""
        rng = numpy_generator(self.stream.seed, "gallery", task)
        count = max(4, GALLERY // len(self.stream))
        wrong = rng.permutation(np.flatnonzero(settled != self.truth[ids]))[: count // 2]
        right = rng.permutation(np.flatnonzero(settled == self.truth[ids]))[: count - len(wrong)]
        columns = self.stream.sets()[:, self.stream.class_order]
        for i in (*wrong, *right):
            self.state["gallery"].append(
                {
                    "id": int(ids[i]),
                    "task": task,
                    "candidates": np.flatnonzero(columns[ids[i]]).tolist(),
                    "settled": int(settled[i]),
                    "confidence": float(confidence[i]),
                    "truth": int(self.truth[ids[i]]),
                    "judged_old": None if judged is None else bool(judged[i]),
                }
            )

    def result(self) -> Record:
        """-> the fields of result.json that tell how well it went."""
        tasks = self.state["tasks"]
        accuracies = [record["accuracy"] for record in tasks]
        by_task = [record["accuracy_by_task"] for record in tasks]
        return {
            "average_incremental_accuracy": float(np.mean(accuracies)),
            "last_accuracy": accuracies[-1],
            **schema.columns(tasks),
            "accuracy_matrix": [row + [None] * (len(by_task) - len(row)) for row in by_task],
            "forgetting": metrics.forgetting(self.state["class_accuracies"]),
            "confusion": self.state["confusion"],
            "class_names": self.class_names,
            "class_prior": self.state["class_prior"],
        }


def _array(tensor: Tensor) -> Any:
    return tensor.cpu().numpy()


def _pack(right: Any) -> str:
    """[n] bool -> text that a checkpoint can keep, two letters for eight samples."""
    return np.packbits(right).tobytes().hex()


def _unpack(packed: str, n: int) -> Any:
    return np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8), count=n).astype(bool)
