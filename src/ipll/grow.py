"""Growth: the state of a learner, for one with room for more classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ipll.component import Phase
from ipll.config import Config
from ipll.engine.state import LearnerState, Tensors
from ipll.learner import Learner


def grow(tensors: Mapping[str, Tensor], config: Config, channels: int, old_capacity: int, new_capacity: int) -> Tensors:
    """-> what `Learner.tensors(within=False)` gave for `old_capacity` classes, for a learner of `new_capacity`.

    Two fresh learners tell which axes are those of classes. It predicts as before. What belongs to a task that is being
    learnt is left out.
    """
    small, large = (_fresh(config, channels, capacity) for capacity in (old_capacity, new_capacity))
    return LearnerState.of(tensors).grown(small, large).named()


def _fresh(config: Config, channels: int, capacity: int) -> LearnerState:
    """-> a learner's state before the first task. Carried momenta, which a learner may have later, have the shapes of
    the main phase's weights, and start at zero."""
    plain = replace(config, train=replace(config.train, precision="float32", compile="off", graphs="off"))
    learner = Learner(
        plain, channels=channels, classes=capacity, mean=(0.0,) * channels, std=(1.0,) * channels, pretrained=False
    )
    weights = Phase("main", learner.network, learner.ctx.parts, torch.zeros(0)).parameters()
    return replace(learner.state(within=False), carried={i: torch.zeros_like(w) for i, w in enumerate(weights)})
