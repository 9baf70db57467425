"""Short trials on a part of the samples: what the candidate sets of held-out ones say of a setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ipll.config import Config
from ipll.data.stream import Task
from ipll.engine.device import arithmetic, cpu_threads
from ipll.engine.state import part_of
from ipll.families.classifier.stacked import set_losses, set_temperature
from ipll.families.side_by_side import FEWEST, Members, evidence
from ipll.learner import Learner
from ipll.own.defaults import Choice, reconfigure
from ipll.own.inputs import Array
from ipll.own.naming import naming_losses, told_by_looks
from ipll.own.stages import Stages
from ipll.rng import numpy_generator

MEMBERS, WIDTH = 5, 128  # as many folds as members; they need not be good, only comparable
CELLS = 1_000_000  # rows times classes of a trial, at most
PRICE = 1.25  # times as surprising as without, labels within held-out sets may be with a prior
TOLD = 0.4  # of what labels leave open about sets, the share that looks must tell for these to be left out together


class HeldOut(NamedTuple):
    """What members say of samples that they did not learn from."""

    scores: Tensor  # [n, classes], by the temperature under which sets are most likely
    sets: Tensor  # [n, classes] bool
    fold: Tensor  # [n]
    looks: Tensor  # [n, features], as the networks see them

    def losses(self) -> Tensor:
        """-> -log of the probability that the label is within the set [n]."""
        return set_losses(self.scores, self.sets.double())

    def whole_losses(self) -> Tensor:
        """-> -log of the probability of the very set [n]."""
        return naming_losses(self.scores, self.sets, self.fold)

    def labels(self) -> Tensor:
        return self.scores.masked_fill(~self.sets, -torch.inf).argmax(dim=1)


class Tried(NamedTuple):
    """What is tried, and what decides by what comes of it."""

    setting: str
    values: tuple[Any, ...]
    decide: Callable[[Tried, Sequence[HeldOut]], Choice]
    rows: int = 1_500  # at most; and no more steps than the fit itself will have
    epochs: int = 20
    errors: int = 2  # the first value that is not worse than the best by so many standard errors is taken
    bare: bool = False  # only where sets are all there is, no votes, no misses, and members suffice for both folds


def likelier(tried: Tried, found: Sequence[HeldOut]) -> Choice:
    return _better(tried, [one.losses() for one in found], "held-out")


def likelier_as_a_whole(tried: Tried, found: Sequence[HeldOut]) -> Choice:
    """But not at any price: where who is named goes by what a sample looks like, no rates of naming tell it, and labels
    that are wrong may explain whole sets best. Then networks know much less of what lies within sets."""
    losses = [one.losses() for one in found]
    plain = losses[0]
    if not any(loss.mean() > PRICE * plain.mean() and _behind(loss, plain, tried.errors) for loss in losses[1:]):
        return _better(tried, [one.whole_losses() for one in found], "whole held-out")
    shown = ", ".join(
        f"{float(loss.mean()):.3f} with {value}" for value, loss in zip(tried.values, losses, strict=True)
    )
    why = f"other values make labels within held-out sets much more surprising (less is better): {shown}"
    return Choice(tried.setting, tried.values[0], why)


def told(tried: Tried, found: Sequence[HeldOut]) -> Choice:
    """Where looks tell the set, a network that has learnt from others of it has settled them all as one: it must not
    have seen any to say something of them."""
    share = told_by_looks(found[0].looks.double(), found[0].labels(), found[0].sets)
    value = "sets" if share > TOLD else "samples"
    why = f"the most similar sample with the same label tells {max(100 * share, 0):.0f} % of who else is named"
    return Choice(tried.setting, value, why)


# In turn. A prior keeps classes from vanishing that are never candidates without a commoner one, and fills up classes
# that are rare; what it does depends on how many rows there are. Drop-out helps where features are many (0.3: faces),
# and hurts where they are few (0: 10 formants of a vowel).
PRIOR = Tried("disambiguation.prior", (0.0, 4.0), likelier_as_a_whole, rows=6_000, epochs=60, errors=3)
TRIED = (
    PRIOR,
    Tried("model.leave_out", ("samples",), told, rows=6_000, epochs=60, bare=True),
    Tried("augment.drop", (0.3, 0.1, 0.0), likelier),
    Tried("model.inputs", ("quantiles", "z-scores"), likelier),
)


def for_a_fit(config: Config, given: Mapping[str, Any], *, votes: bool) -> tuple[Tried, ...]:
    """-> what is tried for a new model: not what is given, or what the method does without."""
    table = config.to_table()
    bare = not votes and not _value(table, "disambiguation.miss_rate") and config.model.members >= FEWEST
    return tuple(
        one for one in TRIED if one.setting not in given and _value(table, one.setting) and (bare or not one.bare)
    )


def for_all_anew(chosen: Sequence[Choice]) -> tuple[Tried, ...]:
    """-> what is tried again, of what was chosen, where all that a model keeps is learnt anew."""
    return (PRIOR,) if PRIOR.setting in {choice.setting for choice in chosen} else ()


def try_settings(
    tried: Sequence[Tried], config: Config, samples: Array, candidates: npt.NDArray[np.bool_],
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, stages: Stages,
) -> tuple[Choice, ...]:  # fmt: skip
    """-> choices by the likelihood of held-out candidate sets, of a network with cross-fitting."""
    order = numpy_generator(config.seed, "trials").permutation(len(samples))
    if not tried or len(order) < 2 * MEMBERS or not candidates.any(1).all():
        return ()
    classes = candidates.shape[1]
    if (room := CELLS // classes) < 2 * classes:
        return tuple(
            Choice(one.setting, one.values[0], f"{classes:,} classes are too many for trials") for one in tried
        )
    model = replace(config.model, members=MEMBERS, folds=MEMBERS, width=WIDTH, leave_out="samples")
    train = config.train
    config, found = replace(config, model=model, train=replace(train, compile="off", graphs="off")), []
    if _value(config.to_table(), "classifier.trees"):  # trials go by what networks say
        config = reconfigure(config, (Choice("classifier.trees", 0, ""),))
    known: dict[tuple[str, int], HeldOut] = {}  # by the whole configuration: what was tried need not be tried again
    with cpu_threads(train.threads), arithmetic(deterministic=train.deterministic, device=device):
        for number, one in enumerate(tried, 1):
            rows = order[: min(one.rows, room)]
            stages.begin(f"trying settings on {len(rows):,} samples: {number} of {len(tried)}")
            sets = candidates[rows][:, candidates[rows].any(0)]
            if sets.shape[1] < 2:
                continue
            task = Task(0, np.arange(len(rows)), samples[rows], sets, old=0, seen=sets.shape[1])
            epochs = min(one.epochs, math.ceil(train.epochs * len(order) / len(rows)))
            config = replace(config, train=replace(config.train, epochs=epochs))
            held_out = []
            for value in one.values:
                trial = reconfigure(config, (Choice(one.setting, value, ""),))
                if (key := (repr(trial), len(rows))) not in known:
                    learner = Learner(
                        trial, channels=samples.shape[1], classes=task.seen, mean=mean, std=std, device=device
                    )
                    learner.ctx.check_stop = stages.stop.check
                    known[key] = _held_out(learner, task)
                held_out.append(known[key])
            found.append(one.decide(one, held_out))
            if len(one.values) > 1:  # else it is not of the trials: they have too few members for folds of two kinds
                config = reconfigure(config, (found[-1],))
    return tuple(found)


def _better(tried: Tried, losses: Sequence[Tensor], of: str) -> Choice:
    """-> the first of the values that is not clearly worse than the best, by the losses of the same samples [n] under
    each: they stand in the order in which they are preferred."""
    values = tried.values
    order = sorted(range(len(values)), key=lambda k: float(losses[k].mean()))
    chosen = next(k for k in range(len(values)) if not _behind(losses[k], losses[order[0]], tried.errors))
    _, margin = _difference(losses[chosen], losses[next(k for k in order if k != chosen)])
    said = ", ".join(f"{float(loss.mean()):.3f} with {value}" for value, loss in zip(values, losses, strict=True))
    why = f"how surprising {of} candidate sets are (less is better): {said}, give or take {margin:.3f}"
    why += "" if chosen == order[0] else "; the best is not clearly better"
    return Choice(tried.setting, values[chosen], why)


def _behind(loss: Tensor, best: Tensor, errors: int) -> bool:
    mean, error = _difference(loss, best)
    return mean > errors * error


def _difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    """-> its mean, and the standard error of that."""
    difference = one - other
    return float(difference.mean()), float(difference.std()) / len(difference) ** 0.5


def _value(table: Mapping[str, Any], setting: str) -> Any:
    section, _, name = setting.partition(".")
    return table[section].get(name)


def _held_out(learner: Learner, task: Task) -> HeldOut:
    for _ in learner.fit(task):
        learner.ctx.check_stop()
    members = part_of(learner.ctx.parts, Members)
    assert members is not None
    scores, sets = evidence(learner.ctx, members).linear.double(), learner.ctx.pool.candidates
    looks = learner.ctx.pool_features()[:, : task.samples.shape[1]]  # the linear path
    return HeldOut(scores / set_temperature(scores, sets), sets, members.dealt[:, 0], looks)
