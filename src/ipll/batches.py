"""Batches of an epoch: views are made for many steps at once, and the same ones again when a run is resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor

from ipll.component import Component, Context, Draw, Phase, called
from ipll.errors import RunError

T = TypeVar("T")

CHUNK = 8192  # samples whose views are made at once, at most
CHUNK_VALUES = 2**27  # and values of a view: 512 MiB, 891 images of 224 x 224


def draws(ctx: Context, phase: Phase, order: Tensor, epoch: int, first: int) -> Iterator[Draw]:
    """What is drawn for the steps of an epoch from `first` on; `order` [steps, b] holds rows of the pool.

    Each chunk of steps has a generator of its own, keyed by its place in the run: how many steps a chunk has is part of
    the random stream. It depends on the shapes of samples and batches only, not on where the samples lie.
    """
    names = view_names(phase)
    steps = chunk_steps(ctx.pool.samples.shape, order.shape[1])
    chunks = torch.split(order, steps)[first // steps :]
    ahead = ctx.pool.samples.prefetch([rows.flatten() for rows in chunks])
    for chunk, (rows, samples) in enumerate(zip(chunks, ahead, strict=True), first // steps):
        generator = ctx.generator("views", ctx.task, phase.name, epoch, chunk)
        views = {"weak": ctx.views.weak(samples, generator)}
        if "strong" in names or any("strong view" in part.needs for part in phase.parts):
            views["strong"] = ctx.views.strong(samples, generator)
        split = {name: view.view(*rows.shape, *view.shape[1:]).unbind() for name, view in views.items()}
        for step in range(len(rows)):
            draw = Draw(rows[step], {name: view[step] for name, view in split.items()})
            for part in phase.parts:
                _ask(part, draw, generator)
            if missing := [name for name in names if name not in draw.views]:
                raise _view_not_made(phase, missing[0])
            if chunk * steps + step >= first:
                yield draw


def _ask(part: Component, draw: Draw, generator: torch.Generator) -> None:
    try:
        part.inputs(draw, generator)
    except KeyError as error:
        if told := view_not_asked_for(part, error, draw.views):
            raise told from error
        raise


def view_not_asked_for(part: Component, error: KeyError, views: Mapping[str, Tensor]) -> RunError | None:
    """-> what to tell whoever wrote a part that looks for a view it has not asked for; None where it is another key."""
    name = error.args[0] if error.args else None
    through = f"views = ('{name}',) lets it go through the network, for out['{name}']"
    if name in views:
        return RunError(f"{called(part)}: the view '{name}' does not go through the network. In its class, {through}.")
    if name == "strong":
        return RunError(
            f"{called(part)} looks for the strong view and has not asked for it. In its class, {through}; "
            "needs = frozenset({'strong view'}) has it made only, for batch.views['strong']."
        )
    return None


def _view_not_made(phase: Phase, name: str) -> RunError:
    part = next(part for part in phase.parts if name in part.views)
    return RunError(
        f"{called(part)}: its views = {part.views!r} name '{name}', which no part makes. Views are a tuple of names; "
        f"'weak' and 'strong' are there, any other one is made in `inputs`: draw.views['{name}'] = ..."
    )


def begun(items: Iterator[T]) -> Iterator[T]:
    """The same, with the first one made now."""
    return chain(list(islice(items, 1)), items)


def chunk_steps(shape: Sequence[int], batch: int) -> int:
    """-> how many steps have their views made at once, of samples of `shape` [n, ...]."""
    return max(1, min(CHUNK, CHUNK_VALUES // math.prod(shape[1:])) // batch)


def view_names(phase: Phase) -> tuple[str, ...]:
    """The views that go through the network in a phase, weak first."""
    return tuple(dict.fromkeys(("weak", *(name for part in phase.parts for name in part.views))))


def training_rows(ctx: Context) -> Tensor:
    """Rows of the pool that are trained on."""
    return torch.arange(len(ctx.pool), device=ctx.device)[~ctx.pool.held_out]
