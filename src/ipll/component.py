"""Components: the parts that methods are made of, and what they may see.

A component overrides a few of the empty hooks below; the training loop (learner.py) calls them all and knows no
member by name. Stateful work happens once per step, in `before` and `after`; `targets`, `reshape` and `losses` are
pure, so that an update rule may ask for the loss several times on one batch. A component's parameters and buffers
are its whole state: they are what a checkpoint keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ipll.engine.placement import Resident, SampleStore
from ipll.errors import RunError
from ipll.networks.network import Network
from ipll.networks.network import Output as Output  # plugins find it here
from ipll.networks.norm import folded_meanwhile
from ipll.pool import Kept, Pool
from ipll.registry import Registry
from ipll.rng import torch_generator
from ipll.views.features import FeatureViews
from ipll.views.images import Views

EMBED_CHUNK = 256  # samples per forward pass outside training; larger ones gain little and cost a CPU its cache
HEAD_BLOCK = 2**16  # samples whose logits, of all members of a network, are held at a time


@dataclass
class Draw:
    """What is drawn for a step ahead of it: samples, their random views, and what `Component.inputs` adds."""

    rows: Tensor  # [b] rows of the pool
    views: dict[str, Tensor]
    extra: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        views = {f"view {name}": view for name, view in self.views.items()}
        return {"rows": self.rows} | views | {f"extra {name}": tensor for name, tensor in self.extra.items()}

    def clone(self) -> Draw:
        views, extra = ({name: t.clone() for name, t in tensors.items()} for tensors in (self.views, self.extra))
        return Draw(self.rows.clone(), views, extra)


@dataclass
class Batch:
    """One step's samples. `views` go through the network together; `extra` is for what `before` prepares."""

    rows: Tensor  # [b] rows of the pool
    candidates: Tensor  # [b, capacity]
    p: Tensor  # [b, capacity], the soft targets stored so far
    from_memory: Tensor  # [b] bool
    views: dict[str, Tensor]
    extra: dict[str, Tensor] = field(default_factory=dict)
    targets: Tensor | None = None  # what the losses use, decided in the first forward pass
    store: Tensor | None = None  # what the pool keeps


def never() -> None:
    """Nobody asks to stop."""


class ClassPrototypes(Protocol):
    """Prototypes, as other parts see them."""

    mu: Tensor  # [capacity, dim]
    known: Tensor  # [capacity] bool

    def distances(self, features: Tensor) -> Tensor:
        """||phi(x_i) - mu_j||_2 -> [n, capacity]; infinite where class j has no prototype."""


class Judgement(NamedTuple):
    """What a separation says of a task's samples."""

    old: Tensor  # [n] bool: D_old
    nearest: Tensor  # [n] int64: c*_i, the old candidate with the nearest prototype (0 where there is none)
    probability: Tensor  # [n] float: w_i, 0 where there is no old candidate


class Separating(Protocol):
    """A separation, as other parts see it."""

    def judge(self, features: Tensor, logits: Tensor, candidates: Tensor) -> Judgement:
        """Splits samples by features [n, dim], logits and original candidate sets [n, capacity]."""


class Context:
    """What components may see of the learner. There is no true label in it.

    `old`, `seen` and the masks change when a task begins; the masks are filled in place, so that compiled code
    that read them stays valid. `old` and `seen` are counts: the seen classes are the first ones, the old classes are
    any of them. With a `chunk`, every forward pass outside training is of that many samples.
    """

    network: Network
    teacher: Network
    prototypes: ClassPrototypes
    separation: Separating
    memory: Kept
    views: Views | FeatureViews
    pool: Pool
    phase: Phase  # the one being trained

    def __init__(self, seed: int, capacity: int, device: torch.device) -> None:
        self.seed, self.capacity, self.device = seed, capacity, device
        self.task = -1
        self.epoch = 0
        self.epochs = 1
        self.old = self.seen = 0
        self.arriving: list[int] = []  # for `begin_task`: classes seen for the first time; others keep what they have
        self.old_mask = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.new_mask = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.parts: tuple[Component, ...] = ()
        self.chunk: int | None = None
        self.check_stop: Callable[[], None] = never  # to be called in between by all that takes long outside of steps
        self._features: Tensor | None = None

    def generator(self, purpose: str, *where: int | str) -> torch.Generator:
        return torch_generator(self.seed, purpose, *where, device=self.device)

    def correct(self, logits: Tensor) -> Tensor:
        """The logits as they count at test time, after every part's correction."""
        for part in self.parts:
            logits = part.correct(logits)
        return logits

    @torch.no_grad()
    def embed(self, samples: Tensor | SampleStore, rows: Tensor | slice | None = None) -> tuple[Tensor, Tensor]:
        """-> features [n, dim] and corrected logits [n, capacity] of plain views, in evaluation mode.

        Of all samples or of these rows; never are more than a few chunks of them on the device for it.
        """
        wanted = self._embed(samples, rows, ("features", "logits"))
        return wanted["features"], self.correct(wanted["logits"])

    @torch.no_grad()
    def _embed(
        self, samples: Tensor | SampleStore, rows: Tensor | slice | None, names: tuple[str, ...]
    ) -> dict[str, Tensor]:
        """-> these fields of the network's output; room for all is made once, so that nothing is held twice."""
        self.network.eval()
        held = Resident(samples) if isinstance(samples, Tensor) else samples
        indices = held.split(rows, self.chunk or EMBED_CHUNK)
        total, start, whole = sum(map(len, indices)), 0, dict[str, Tensor]()
        with folded_meanwhile(self.network):
            for chunk in held.prefetch(indices):
                self.check_stop()
                out, n = self._pass(chunk.to(self.device))
                for name in names:
                    part: Tensor = getattr(out, name)[:n]
                    if name not in whole:
                        whole[name] = part.new_empty(total, *part.shape[1:], dtype=torch.float32)
                    whole[name][start : start + n] = part
                start += n
        return whole

    def _pass(self, samples: Tensor) -> tuple[Output, int]:
        """-> the network's output, of a full chunk where its size is fixed, and how many rows of it count."""
        n = len(samples)
        if self.chunk and n < self.chunk:
            samples = torch.cat([samples, samples.new_zeros(self.chunk - n, *samples.shape[1:])])
        outputs = [self.network(look) for look in self.views.looks(samples)]
        return Output(*(sum(parts) / len(parts) for parts in zip(*outputs, strict=True))), n

    def pool_features(self) -> Tensor:
        """phi of every sample of the pool [n, dim] by the trained network; one pass, shared by all who ask."""
        if self._features is None:
            self._features = self._embed(self.pool.samples, None, ("features",))["features"]
        return self._features

    def pool_predictions(self) -> Tensor:
        """argmax over S_i of f(x_i) for every sample of the pool [n]; by the head as it is now."""
        features, found = self.pool_features(), []
        with torch.no_grad():
            for start in range(0, len(features), HEAD_BLOCK):
                self.check_stop()
                rows = slice(start, start + HEAD_BLOCK)
                logits = self.correct(self.network.head(features[rows]))
                found.append(predict_within(logits, self.pool.candidates[rows]))
        return torch.cat(found)

    def forget_features(self) -> None:
        self._features = None


def predict_within(logits: Tensor, candidates: Tensor) -> Tensor:
    """argmax_{j in S_i} f_j(x_i) -> [n]."""
    return logits.masked_fill(~candidates, -torch.inf).argmax(dim=1)


def uniform_over(sets: Tensor) -> Tensor:
    """Eq. 5: p_ij = 1[j in S'_i] / |S'_i| -> [n, classes] float."""
    weights = sets.float()
    return weights / weights.sum(dim=1, keepdim=True)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Eq. 1: the mean over samples of - sum_j p_ij log f_j(x_i)."""
    return -(targets * torch.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()


@dataclass(frozen=True)
class NoSettings:
    """For components that have nothing to set."""


@dataclass
class Phase:
    """One pass of training within a task. Most methods have a single one, the main phase."""

    name: str
    network: Network
    parts: tuple[Component, ...]
    p: Tensor  # [n, capacity], the soft targets that this phase reads and writes

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.network.parameters()
        for part in self.parts:
            yield from part.trainable()


AUTOMATIC = frozenset({"prototypes", "projection", "strong view"})  # there as soon as a part needs them
ONE = "one network"  # there where `model.members` is 1


class Component(nn.Module):
    """Base of all parts: hooks that do nothing."""

    Settings: ClassVar[type[Any]] = NoSettings
    needs: ClassVar[frozenset[str]] = frozenset()  # 'separation', 'memory', 'linear head', ONE, words of AUTOMATIC
    provides: ClassVar[frozenset[str]] = frozenset()
    passing: ClassVar[tuple[str, ...]] = ()  # buffers that count within a task only
    views: ClassVar[tuple[str, ...]] = ()  # views besides the weak one that go through the network

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def build(self, ctx: Context) -> None:
        """Once, when the method is put together and the network stands. Modules and buffers are made here; first
        weights that layers draw by themselves are decided by the seed."""
        self.ctx = ctx

    def hold_out(self) -> Tensor | None:
        """Before training: rows of the pool not to be trained on [n] bool."""
        return None

    def phases(self) -> tuple[Phase, ...]:
        """Phases to run before the main one. Must build the same phases again when a run is resumed."""
        return ()

    def begin_task(self) -> None:
        """The pool is there, new classes are born, nothing is trained yet."""

    def trainable(self) -> Iterator[nn.Parameter]:
        """The parameters that a phase with this part trains, besides the network's."""
        return (w for w in self.parameters() if w.requires_grad)

    def begin_epoch(self) -> None:
        """Called again when a run is resumed within the epoch."""

    def end_epoch(self) -> None: ...

    def end_task(self) -> None:
        """After training; parts are called in the order of `FAMILIES`."""

    def stage(self) -> object:
        """What the hooks below branch on within a task besides tensors, for instance whether a warm-up is over.

        While it stays the same, a step can be captured once and replayed: numbers that change from epoch to epoch
        belong into buffers, which `begin_epoch` fills.
        """
        return None

    def inputs(self, draw: Draw, generator: torch.Generator) -> None:
        """Per step, ahead of it: adds views, or random numbers to `extra`."""

    def before(self, batch: Batch) -> None:
        """Per step, once, without gradient: teacher's logits, a key encoder."""

    def combine(self, out: dict[str, Output], batch: Batch) -> dict[str, Output]:
        """Per step, pure: what the network says of each view, before anything is decided from it or learnt."""
        return out

    def limit(self, candidates: Tensor, batch: Batch) -> Tensor:
        """Per step, pure: the candidate sets [n, capacity] that count in this step, for its targets and after it."""
        return candidates

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Per step, pure: (the soft targets to use, those to store), from the first forward pass."""
        return None

    def reshape(self, out: dict[str, Output], targets: Tensor, batch: Batch) -> tuple[dict[str, Output], Tensor]:
        """Per step, pure: changes what classification losses see (`Output.shaped`) and their targets."""
        return out, targets

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Per step, pure: named terms of the loss; a later part's term replaces an earlier one's of the same name.

        `targets` are those of classification losses, after every `reshape`; `batch.targets` are as decided.
        """
        return {}

    def weights(self) -> dict[str, float]:
        """Per task: factors on named terms, this part's or another's; factors on one term multiply."""
        return {}

    def after(self, out: Mapping[str, Output], batch: Batch) -> None:
        """Per step, once, after the update, without gradient: queues, moving averages."""

    def correct(self, logits: Tensor) -> Tensor:
        """At test time, in the teacher and in exports: corrected logits."""
        return logits


FAMILIES: dict[str, Registry[type[Component]]] = {
    name: Registry(name, Component)
    for name in ("disambiguation", "separation", "auxiliary", "retention", "memory", "classifier", "update")
}
"""Families in the order in which their members' hooks are called; prototypes stand between retention and memory. Those
with a base of their own say so at their door."""


def called(part: Component) -> str:
    """-> what a part is called in messages, "retention 'wa'"; one that is no member of a family by its class."""
    members = ((family, kind, cls) for family, registry in FAMILIES.items() for kind, cls in registry.members.items())
    return next((f"{family} '{kind}'" for family, kind, cls in members if cls is type(part)), type(part).__name__)


def lacking(part: Component, hook: str) -> RunError:
    """-> the error where a member lacks what its family's base leaves to it."""
    return RunError(f"{called(part)} has no {hook}, which every member of its family must have: define it.")
