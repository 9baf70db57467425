"""The state of a learner: what it consists of, its names in a file, and modules whose buffers may change size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ipll.errors import RunError

T = TypeVar("T")
K = TypeVar("K")
Tensors = dict[str, Tensor]
PREFIXES = {"modules": "module", "carried": "carried", "sums": "sum", "momenta": "momentum", "pool": "pool"}
PART = re.compile(r"parts\.(\d+)\.")
MEMORY = "module.memory."  # what the memory's tensors are called in a file


@dataclass
class LearnerState:
    """All that a learner knows between two steps. Between two tasks, `sums`, `momenta` and `pool` are empty."""

    modules: Tensors = field(default_factory=dict)  # network, teacher and parts: their parameters and buffers
    carried: dict[int, Tensor] = field(default_factory=dict)  # momenta with which the next task's main phase starts
    sums: Tensors = field(default_factory=dict)  # terms of the loss, over the steps of the epoch so far
    momenta: dict[int, Tensor] = field(default_factory=dict)  # of the phase that is being trained
    pool: Tensors = field(default_factory=dict)  # what training changes of the pool

    def named(self) -> Tensors:
        """-> all tensors by their names in a file."""
        groups = {prefix: getattr(self, group) for group, prefix in PREFIXES.items()}
        return {f"{prefix}.{key}": tensor for prefix, group in groups.items() for key, tensor in group.items()}

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> LearnerState:
        """-> the state that `named` gave. What an older version wrote twice is taken once."""
        groups: dict[str, dict[Any, Tensor]] = {prefix: {} for prefix in PREFIXES.values()}
        for name, tensor in named.items():
            prefix, _, key = name.partition(".")
            if prefix in groups:
                groups[prefix][int(key) if prefix in ("carried", "momentum") else key] = tensor
        groups["module"] = _with_votes(_once(groups["module"]))
        return cls(**{group: groups[prefix] for group, prefix in PREFIXES.items()})

    def to(self, device: torch.device) -> LearnerState:
        """-> the same on a device."""
        groups = vars(self).items()
        return LearnerState(**{name: {key: t.to(device) for key, t in group.items()} for name, group in groups})

    def grown(self, small: LearnerState, large: LearnerState) -> LearnerState:
        """-> the state between two tasks of a learner like `small`, for one like `large`, both fresh.

        The axes in which they differ are those of classes. New places hold what they hold in a fresh learner, and zero
        in a buffer that fills up, such as the memory's sets; old places hold what they held.
        """
        return LearnerState(
            _each_grown(self.modules, small.modules, large.modules),
            _each_grown(self.carried, small.carried, large.carried),
        )


def _each_grown(own: dict[K, Tensor], small: dict[K, Tensor], large: dict[K, Tensor]) -> dict[K, Tensor]:
    """What a fresh learner does not have is left out."""
    return {key: _grown(tensor, small[key], large[key]) for key, tensor in own.items() if key in small}


def _grown(tensor: Tensor, small: Tensor, large: Tensor) -> Tensor:
    if small.shape == large.shape:
        return tensor
    sizes = zip(tensor.shape, small.shape, large.shape, strict=True)
    shape = [own if before == after else after for own, before, after in sizes]
    fresh = large.shape == torch.Size(shape)
    result = large.detach().to(tensor.device, copy=True) if fresh else tensor.new_zeros(shape)
    result[tuple(map(slice, tensor.shape))] = tensor
    return result


def _once(modules: Tensors) -> Tensors:
    """-> without what older versions wrote twice: memory, classifier and update were the last of `parts` too."""
    keys = [name.removeprefix("memory.") for name in modules if name.startswith("memory.")]
    numbers = {name: int(found[1]) for name in modules if (found := PART.match(name))}
    copies = [n for n in set(numbers.values()) if keys and all(f"parts.{n}.{key}" in modules for key in keys)]
    return {name: tensor for name, tensor in modules.items() if numbers.get(name, -1) < min(copies, default=math.inf)}


def _with_votes(modules: Tensors) -> Tensors:
    """-> with the votes of a memory's samples: in older versions they were forgotten."""
    sets = modules.get("memory.candidates")
    return modules if sets is None else {"memory.votes": sets[:0].float()} | modules


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Like load_state_dict, but a buffer may have another size than now: a memory fills up, a task has more samples.

    Parameters and buffers of the same size are filled in place, since others hold on to them.
    """
    expected = module.state_dict()
    if expected.keys() != tensors.keys():
        odd = sorted(expected.keys() ^ tensors.keys())
        raise RunError(f"the checkpoint does not fit the method: {', '.join(odd[:5])}. Was it made by another version?")
    with torch.no_grad():
        for name, tensor in tensors.items():
            owner, _, leaf = name.rpartition(".")
            current = expected[name]
            if current.shape == tensor.shape:
                current.copy_(tensor)
            else:
                setattr(module.get_submodule(owner), leaf, tensor.to(current.device, copy=True))


def between_tasks(module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensors:
    """-> the tensors, but for those that count within a task only (`Component.passing`): of these what the module has
    now. So a part may have them in one task, by its settings, and not in the next."""
    parts = module.named_modules()
    passing = {f"{name}.{leaf}" for name, part in parts for leaf in getattr(part, "passing", ())}
    own = {name: tensor for name, tensor in module.state_dict().items() if name in passing}
    return {name: tensor for name, tensor in tensors.items() if name not in passing} | own


def part_of(parts: Iterable[object], kind: type[T]) -> T | None:
    """-> the one part of a kind, or None."""
    return next((part for part in parts if isinstance(part, kind)), None)


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Gives `target` the parameters and buffers of `source`; in place where sizes agree."""
    load_tensors(target, source.state_dict())
