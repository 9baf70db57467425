"""One step of training: what every part of a method has to say on a batch, and the update."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial

import torch
from torch import Tensor

from ipll.batches import view_names, view_not_asked_for
from ipll.component import Batch, Component, Context, Draw, Phase, called
from ipll.engine.graphs import Plain
from ipll.engine.state import part_of
from ipll.errors import RunError
from ipll.families.disambiguation import Disambiguation
from ipll.families.update import Update
from ipll.networks.network import Output

PAIR = "a pair, the soft targets to use and those to store, each like p [n, capacity]"


class Stepper:
    """Takes steps. A step reads and writes tensors in place only, so that it can be captured."""

    def __init__(self, ctx: Context, update: Update, taken: Plain[Draw], *, joint_views: bool) -> None:
        self.ctx, self.update, self.taken, self.joint_views = ctx, update, taken, joint_views
        self.sums: dict[str, Tensor] = {}  # terms of the loss, summed over the steps of the current epoch
        self.added: dict[str, Component] = {}  # by whom each term was added, in whatever phase

    def begin(self, phase: Phase) -> None:
        """A phase begins: the next steps are its."""
        self.phase = phase
        self.taken.begin(partial(self.take, phase))

    def __call__(self, draw: Draw) -> None:
        """One step of the phase that has begun, as it comes or replayed."""
        self.taken(draw, self.stage)

    def begin_epoch(self) -> None:
        """While the stage stays the same within a phase, every step is the same sequence of operations."""
        self.stage: Hashable = tuple(part.stage() for part in self.phase.parts)

    def take(self, phase: Phase, draw: Draw) -> None:
        """One step on samples of the pool, as it comes."""
        self.step(phase, self.gather(phase, draw))

    def gather(self, phase: Phase, draw: Draw) -> Batch:
        """-> the samples drawn, with what the pool knows of them."""
        pool, rows = self.ctx.pool, draw.rows
        return Batch(rows, pool.candidates[rows], phase.p[rows], rows >= pool.incoming, draw.views, dict(draw.extra))

    def step(self, phase: Phase, batch: Batch) -> None:
        try:
            self._step(phase, batch)
        except KeyError as error:
            if told := view_not_asked_for(self.asked, error, batch.views):
                raise told from error
            raise

    def each(self, phase: Phase) -> Iterator[Component]:
        """The parts in turn; whose mistake it is that ends a step is known."""
        for self.asked in phase.parts:
            yield self.asked

    def _step(self, phase: Phase, batch: Batch) -> None:
        with torch.no_grad(), self.taken.side_stream():
            for part in self.each(phase):
                part.before(batch)
        first: dict[str, Output] = {}  # of the first forward pass, which decides the targets

        def loss() -> Tensor:
            out = self.forward(phase, batch)
            if not first:
                self.taken.join()
            for part in self.each(phase):
                out = part.combine(out, batch)
            if first:
                return self.total(phase, batch, out)[0]
            first.update(out)
            self.decide_targets(phase, batch, out)
            total, terms = self.total(phase, batch, out)
            self.add(terms)
            return total

        self.update.step(loss)
        self.after(phase, batch, first)

    @torch.no_grad()
    def add(self, terms: dict[str, Tensor]) -> None:
        """Adds to the sums until the total is not finite, and nothing from then on: the terms whose sums are not finite
        at the epoch's end were the first, and the others did not follow."""
        values = torch.stack(list(terms.values()))
        if self.sums:
            values = torch.where(self.sums["total"].isfinite(), values, 0)
        for name in [name for name in terms if name not in self.sums]:
            self.sums[name] = torch.zeros_like(terms[name])
        torch._foreach_add_([self.sums[name] for name in terms], list(values.unbind()))

    def forward(self, phase: Phase, batch: Batch) -> dict[str, Output]:
        names = view_names(phase)
        if not self.joint_views:
            return {name: phase.network(batch.views[name]) for name in names}
        joint = phase.network(torch.cat([batch.views[name] for name in names]))
        chunks = zip(*(tensor.chunk(len(names)) for tensor in joint), strict=True)
        return {name: Output(*chunk) for name, chunk in zip(names, chunks, strict=True)}

    @torch.no_grad()
    def decide_targets(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> None:
        for part in self.each(phase):
            batch.candidates = part.limit(batch.candidates, batch)
        for part in self.each(phase):
            if (decided := part.targets(batch.p, out, batch)) is not None:
                batch.targets, batch.store = _pair(part, decided, batch.p)
        if batch.targets is None:
            deciding = part_of(phase.parts, Disambiguation)
            who = called(deciding) if deciding else "the disambiguation"
            raise RunError(f"{who}: `targets` returned None, and no other part decides: it must return {PAIR}.")

    @torch.no_grad()
    def after(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> None:
        assert batch.store is not None
        phase.p[batch.rows] = batch.store
        for part in self.each(phase):
            part.after(out, batch)

    def total(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> tuple[Tensor, dict[str, Tensor]]:
        targets = batch.targets
        assert targets is not None
        for part in self.each(phase):
            out, targets = part.reshape(out, targets, batch)
        terms: dict[str, Tensor] = {}
        for part in self.each(phase):
            own = _terms(part, part.losses(out, targets, batch))
            terms |= own
            self.added |= dict.fromkeys(own, part)
        if not terms:
            raise RunError("no part adds a term to the loss: return one from `losses`, such as {'ce': loss}.")
        for part in self.each(phase):
            for name, weight in part.weights().items():
                if name in terms:
                    terms[name] = weight * terms[name]
        total = torch.stack(list(terms.values())).sum()
        return total, terms | {"total": total}


def _pair(part: Component, decided: object, p: Tensor) -> tuple[Tensor, Tensor]:
    """-> what a part's `targets` returned, where that is a pair as it should be."""
    match decided:
        case (Tensor(shape=p.shape) as used, Tensor(shape=p.shape) as stored):
            return used, stored
    raise RunError(f"{called(part)}: `targets` returned {_in_words(decided)}; it must return {PAIR}, or None.")


def _terms(part: Component, given: object) -> dict[str, Tensor]:
    """-> what a part's `losses` returned, where these are named numbers. One that is no mean yet would be summed."""
    if not isinstance(given, dict):
        raise RunError(
            f"{called(part)}: `losses` returned {_in_words(given)}; it must return a dict of named terms, such as "
            "{'mine': loss}, and {} where it adds none."
        )
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.ndim:
            raise RunError(
                f"{called(part)}: the term '{name}' of its `losses` is {_in_words(value)}; a term is a tensor of one "
                "number, the mean over the samples: loss.mean(). Leave it out where there is none."
            )
    if "total" in given:
        raise RunError(f"{called(part)}: 'total' is what the sum of all terms is called: choose another name.")
    return given


def _in_words(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_in_words, value))})"
    return repr(value)
