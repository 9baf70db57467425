"""One step of training: what every part of a method has to say on a batch, and the update."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ipll.component import Batch, Context, Draw, Phase
from ipll.data.loader import view_names
from ipll.engine.replay import Plain
from ipll.models.network import Output
from ipll.update.sgd import Update


class Stepper(nn.Module):
    """The learner's inner half. A step reads and writes tensors in place only, so that it can be captured."""

    ctx: Context
    update: Update
    joint_views: bool
    stepping: Plain
    sums: dict[str, Tensor]  # terms of the loss, summed over the steps of the current epoch

    def stages(self, phase: Phase) -> Hashable:
        """While this stays the same within a phase, every step is the same sequence of operations."""
        return tuple(part.stage() for part in phase.parts)

    def take_step(self, phase: Phase, draw: Draw) -> None:
        """One step on samples of the pool."""
        self._step(phase, self.gather(phase, draw))

    def gather(self, phase: Phase, draw: Draw) -> Batch:
        """-> the samples drawn, with what the pool knows of them."""
        pool, rows = self.ctx.pool, draw.rows
        return Batch(rows, pool.candidates[rows], phase.p[rows], rows >= pool.incoming, draw.views, dict(draw.extra))

    def _step(self, phase: Phase, batch: Batch) -> None:
        with torch.no_grad(), self.stepping.beside():
            for part in phase.parts:
                part.before(batch)
        first: dict[str, Output] = {}  # of the first forward pass, which decides the targets

        def loss() -> Tensor:
            out = self._forward(phase, batch)
            if not first:
                self.stepping.join()
            for part in phase.parts:
                out = part.combine(out, batch)
            if first:
                return self._total(phase, batch, out)[0]
            first.update(out)
            self._decide_targets(phase, batch, out)
            total, terms = self._total(phase, batch, out)
            for name, value in terms.items():
                if name not in self.sums:
                    self.sums[name] = torch.zeros_like(value.detach())
                self.sums[name].add_(value.detach())
            return total

        self.update.step(loss)
        self._after(phase, batch, first)

    def _forward(self, phase: Phase, batch: Batch) -> dict[str, Output]:
        names = view_names(phase)
        if not self.joint_views:
            return {name: phase.network(batch.views[name]) for name in names}
        joint = phase.network(torch.cat([batch.views[name] for name in names]))
        chunks = zip(*(tensor.chunk(len(names)) for tensor in joint), strict=True)
        return {name: Output(*chunk) for name, chunk in zip(names, chunks, strict=True)}

    @torch.no_grad()
    def _decide_targets(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> None:
        limited = batch
        for part in phase.parts:
            limited = replace(limited, candidates=part.limit(limited.candidates, batch))
        for part in phase.parts:
            if decided := part.targets(batch.p, out, limited):
                batch.targets, batch.store = decided

    @torch.no_grad()
    def _after(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> None:
        assert batch.store is not None
        phase.p[batch.rows] = batch.store
        for part in phase.parts:
            part.after(out, batch)

    def _total(self, phase: Phase, batch: Batch, out: dict[str, Output]) -> tuple[Tensor, dict[str, Tensor]]:
        targets = batch.targets
        assert targets is not None
        for part in phase.parts:
            out, targets = part.reshape(out, targets, batch)
        terms = {name: value for part in phase.parts for name, value in part.losses(out, targets, batch).items()}
        for part in phase.parts:
            for name, weight in part.weights().items():
                if name in terms:
                    terms[name] = weight * terms[name]
        total = torch.stack(list(terms.values())).sum()
        return total, terms | {"total": total}
