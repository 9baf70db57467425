"""Short trials on a part of the samples: what the candidate sets of held-out ones say of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.classifier.stacked import set_losses, set_temperature
from ipll.config import Config
from ipll.data.stream import Task
from ipll.engine.device import arithmetic, cpu_threads
from ipll.engine.state import part_of
from ipll.learner import Learner
from ipll.members import Members, evidence
from ipll.own.defaults import Choice
from ipll.own.inputs import Array
from ipll.rng import numpy_generator

ROWS = 2_000  # of a trial, at most
MEMBERS, WIDTH, EPOCHS = 4, 64, 30  # as many folds as members; they need not be good, only comparable
INPUTS = ("quantiles", "z-scores")  # the first one where neither is clearly better


def try_networks(
    config: Config, samples: Array, candidates: npt.NDArray[np.bool_], mean: tuple[float, ...],
    std: tuple[float, ...], device: torch.device, given: Mapping[str, Any],
) -> tuple[Choice, ...]:  # fmt: skip
    """-> the choice of a network's inputs, where it has one: by the likelihood of held-out candidate sets."""
    if not config.model.folds or "model.inputs" in given:
        return ()
    rows = numpy_generator(config.seed, "trials").permutation(len(samples))[:ROWS]
    sets = candidates[rows][:, candidates[rows].any(0)]
    if len(rows) < MEMBERS or sets.shape[1] < 2:
        return (Choice("model.inputs", INPUTS[0], "too few samples to try"),)
    task = Task(
        index=0, ids=np.arange(len(rows)), samples=samples[rows], candidates=sets, old=0, seen=sets.shape[1],
        known=np.zeros(sets.shape[1], np.bool_),
    )  # fmt: skip
    losses = {}
    for inputs in INPUTS:
        model = replace(config.model, inputs=inputs, members=MEMBERS, folds=MEMBERS, width=WIDTH)
        train = replace(config.train, epochs=min(EPOCHS, config.train.epochs), compile="off", graphs="off")
        trial = replace(config, model=model, train=train)
        with cpu_threads(train.threads), arithmetic(deterministic=train.deterministic, device=device):
            learner = Learner(trial, channels=samples.shape[1], classes=task.seen, mean=mean, std=std, device=device)
            losses[inputs] = _held_out(learner, task)
    first, second = (losses[name] for name in INPUTS)
    gain = first - second
    margin = float(gain.std()) / len(gain) ** 0.5
    best = INPUTS[1] if float(gain.mean()) > 2 * margin else INPUTS[0]
    said = " against ".join(f"{float(losses[name].mean()):.3f} by {name}" for name in INPUTS)
    why = f"-log of the probability of held-out candidate sets: {said}, give or take {margin:.3f}"
    return (Choice("model.inputs", best, why),)


def _held_out(learner: Learner, task: Task) -> Tensor:
    """-> the loss of each sample's candidate set, by members that did not learn from it [n]."""
    for _ in learner.fit(task):
        pass
    members = part_of(learner.ctx.parts, Members)
    assert members is not None
    scores, sets = evidence(learner.ctx, members).linear.double(), learner.ctx.pool.candidates
    return set_losses(scores / set_temperature(scores, sets), sets)
