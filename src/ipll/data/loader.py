"""Batches of an epoch: views are made for many steps at once, and the same ones again when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ipll.component import Context, Draw, Phase

CHUNK = 8192  # samples whose views are made at once


def draws(ctx: Context, phase: Phase, order: Tensor, first: int) -> Iterator[Draw]:
    """What is drawn for the steps of an epoch from `first` on; `order` [steps, b] holds rows of the pool.

    Each chunk of steps has a generator of its own, keyed by its place in the run.
    """
    pool = ctx.pool
    names = view_names(phase)
    steps = max(1, CHUNK // order.shape[1])
    for chunk in range(first // steps, -(-len(order) // steps)):
        rows = order[chunk * steps : (chunk + 1) * steps]
        generator = ctx.generator("views", ctx.task, phase.name, ctx.epoch, chunk)
        samples = pool.samples[rows.flatten()]
        views = {"weak": ctx.views.weak(samples, generator)}
        if "strong" in names or any("strong view" in part.needs for part in phase.parts):
            views["strong"] = ctx.views.strong(samples, generator)
        split = {name: view.view(*rows.shape, *view.shape[1:]).unbind() for name, view in views.items()}
        for step in range(len(rows)):
            draw = Draw(rows[step], {name: view[step] for name, view in split.items()})
            for part in phase.parts:
                part.inputs(draw, generator)
            if chunk * steps + step >= first:
                yield draw


def view_names(phase: Phase) -> tuple[str, ...]:
    """The views that go through the network in a phase, weak first."""
    return tuple(dict.fromkeys(("weak", *(name for part in phase.parts for name in part.views))))


def training_rows(ctx: Context) -> Tensor:
    """Rows of the pool that are trained on."""
    return torch.arange(len(ctx.pool), device=ctx.device)[~ctx.pool.held_out]
