"""Growth: the state of a learner, for one with room for more classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ipll.component import Phase
from ipll.config import Config
from ipll.learner import Learner

Tensors = dict[str, Tensor]


def grow(tensors: Mapping[str, Tensor], config: Config, channels: int, old_capacity: int, new_capacity: int) -> Tensors:
    """-> what `Learner.tensors(within=False)` gave for `old_capacity` classes, for a learner of `new_capacity`.

    Two fresh learners tell which axes are those of classes: the ones in which they differ. New places hold what they
    hold in a fresh learner, and zero in a buffer that fills up, such as the memory's sets; old places hold what they
    held, so it predicts as before. What belongs to a task that is being learnt is left out.
    """
    small, large = (_fresh(config, channels, capacity) for capacity in (old_capacity, new_capacity))
    return {name: _grown(tensor, small[name], large[name]) for name, tensor in tensors.items() if name in small}


def _fresh(config: Config, channels: int, capacity: int) -> Tensors:
    """-> every tensor that a learner may hand over, as it is before the first task."""
    plain = replace(config, train=replace(config.train, precision="float32", compile="off", graphs="off"))
    learner = Learner(
        plain, channels=channels, classes=capacity, mean=(0.0,) * channels, std=(1.0,) * channels, pretrained=False
    )
    return learner.tensors(within=False) | dict(_momenta(learner))


def _momenta(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Momenta that are carried to the next task have the shapes of the main phase's weights, and start at zero."""
    phase = Phase("main", learner.network, learner.ctx.parts, torch.zeros(0))
    for i, weight in enumerate(phase.parameters()):
        yield f"carried.{i}", torch.zeros_like(weight)


def _grown(tensor: Tensor, small: Tensor, large: Tensor) -> Tensor:
    if small.shape == large.shape:
        return tensor
    sizes = zip(tensor.shape, small.shape, large.shape, strict=True)
    shape = [own if before == after else after for own, before, after in sizes]
    fresh = large.shape == torch.Size(shape)
    result = large.detach().to(tensor.device, copy=True) if fresh else tensor.new_zeros(shape)
    result[tuple(map(slice, tensor.shape))] = tensor
    return result
