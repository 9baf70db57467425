"""The learner of a model, ready to be exported: on a CPU, in float32, nothing compiled."""

from __future__ import annotations

from dataclasses import replace

import torch

from ipll.learner import Learner
from ipll.own.model import Model


def ready(model: Model) -> Learner:
    train = replace(model.config.train, compile="off", graphs="off", precision="float32")
    learner = model._learner(replace(model.config, train=train), model.capacity, torch.device("cpu"))
    learner.restore(model.tensors)
    return learner.eval().requires_grad_(False)
