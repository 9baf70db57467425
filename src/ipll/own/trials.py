"""Short trials on a part of the samples: what the candidate sets of held-out ones say of a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.config import Config
from ipll.data.stream import Task
from ipll.engine.device import arithmetic, cpu_threads
from ipll.engine.state import part_of
from ipll.families.classifier.stacked import set_losses, set_temperature
from ipll.families.side_by_side import Members, evidence
from ipll.learner import Learner
from ipll.own.defaults import Choice, reconfigure
from ipll.own.inputs import Array
from ipll.own.stages import Stages
from ipll.rng import numpy_generator

ROWS = 1_500  # of a trial, at most
MEMBERS, WIDTH, EPOCHS = 4, 64, 20  # as many folds as members; they need not be good, only comparable
# What is tried, in turn: the first value that is not worse than the best by two standard errors is taken. Drop-out
# helps where features are many (0.3: faces), and hurts where they are few (0: 10 formants of a vowel).
TRIED = (("augment.drop", (0.3, 0.1, 0.0)), ("model.inputs", ("quantiles", "z-scores")))


def try_settings(
    config: Config, samples: Array, candidates: npt.NDArray[np.bool_], mean: tuple[float, ...],
    std: tuple[float, ...], device: torch.device, given: Mapping[str, Any], stages: Stages,
) -> tuple[Choice, ...]:  # fmt: skip
    """-> choices for a new model by the likelihood of held-out candidate sets, of a network with cross-fitting. What is
    given, or what the method does without, is not tried."""
    table = config.to_table()
    tried = [(setting, values) for setting, values in TRIED if setting not in given and _value(table, setting)]
    rows = numpy_generator(config.seed, "trials").permutation(len(samples))[:ROWS]
    sets = candidates[rows][:, candidates[rows].any(0)]
    if len(rows) < 2 * MEMBERS or sets.shape[1] < 2 or not sets.any(1).all():
        return ()
    stages.begin(f"which settings, by trials on {len(rows):,} samples")
    task = Task(0, np.arange(len(rows)), samples[rows], sets, old=0, seen=sets.shape[1])
    model = replace(config.model, members=MEMBERS, folds=MEMBERS, width=WIDTH)
    train = replace(config.train, epochs=min(EPOCHS, config.train.epochs), compile="off", graphs="off")
    config, found = replace(config, model=model, train=train), []
    known: dict[str, Tensor] = {}  # losses by the whole configuration: what was tried need not be tried again
    with cpu_threads(train.threads), arithmetic(deterministic=train.deterministic, device=device):
        for setting, values in tried:
            losses = []
            for value in values:
                trial = reconfigure(config, (Choice(setting, value, ""),))
                if (key := repr(trial)) not in known:
                    learner = Learner(
                        trial, channels=samples.shape[1], classes=task.seen, mean=mean, std=std, device=device
                    )
                    learner.ctx.check_stop = stages.stop.check
                    known[key] = _held_out(learner, task)
                losses.append(known[key])
            found.append(_better(setting, values, losses))
            config = reconfigure(config, (found[-1],))
    return tuple(found)


def _better(setting: str, values: Sequence[Any], losses: Sequence[Tensor]) -> Choice:
    """-> the first of the values that is not worse than the best by two standard errors, by the losses of the same
    samples [n] under each: they stand in the order in which they are preferred."""
    order = sorted(range(len(values)), key=lambda k: float(losses[k].mean()))
    chosen = next(k for k in range(len(values)) if not _behind(losses[k], losses[order[0]]))
    _, margin = _difference(losses[chosen], losses[next(k for k in order if k != chosen)])
    said = ", ".join(f"{float(loss.mean()):.3f} by {value}" for value, loss in zip(values, losses, strict=True))
    why = f"-log of the probability of held-out candidate sets: {said}, give or take {margin:.3f}"
    return Choice(setting, values[chosen], why)


def _behind(loss: Tensor, best: Tensor) -> bool:
    mean, error = _difference(loss, best)
    return mean > 2 * error


def _difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    """-> its mean, and the standard error of that."""
    difference = one - other
    return float(difference.mean()), float(difference.std()) / len(difference) ** 0.5


def _value(table: Mapping[str, Any], setting: str) -> Any:
    section, _, name = setting.partition(".")
    return table[section].get(name)


def _held_out(learner: Learner, task: Task) -> Tensor:
    """-> the loss of each sample's candidate set, by members that did not learn from it [n]."""
    for _ in learner.fit(task):
        learner.ctx.check_stop()
    members = part_of(learner.ctx.parts, Members)
    assert members is not None
    scores, sets = evidence(learner.ctx, members).linear.double(), learner.ctx.pool.candidates
    return set_losses(scores / set_temperature(scores, sets), sets)
