"""The learner: a network, the parts of a method, and the one training loop.

The loop knows no method by name. `fit` is a generator that yields after every step the position from which training
would go on, so that whoever drives it can show progress, keep a checkpoint or stop, at any moment.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ipll.batches import begun, draws, training_rows
from ipll.component import EMBED_CHUNK, Component, Context, Draw, Phase, called
from ipll.config import Config
from ipll.data.stream import Task
from ipll.engine import processes
from ipll.engine.device import channels_last, read_async, use_bf16, use_compile, use_graphs
from ipll.engine.graphs import Plain, Replay
from ipll.engine.placement import SampleStore
from ipll.engine.state import LearnerState, Tensors, between_tasks, copy_state, load_tensors, part_of
from ipll.errors import ConfigError, RunError
from ipll.families.classifier import Classifier
from ipll.families.memory import Memory
from ipll.families.separation import Separation
from ipll.families.side_by_side import beside
from ipll.families.update import Update
from ipll.method import assemble
from ipll.networks.network import Network, compile_networks
from ipll.networks.norm import keep_folded
from ipll.pool import Pool
from ipll.prototypes import Prototypes
from ipll.rng import seeded
from ipll.step import Stepper
from ipll.views.features import make_views

T = TypeVar("T")


class Position(NamedTuple):
    """Where training stands: this step of this epoch is the next one to do."""

    task: int
    phase: int = 0
    epoch: int = 0
    step: int = 0


class Prediction(NamedTuple):
    classes: Tensor  # [n], by the method's classifier, in arrival order
    linear: Tensor  # [n], by the linear head


class Learner(nn.Module):
    """Learns tasks one after another. It is given samples and candidate sets, never a true label."""

    def __init__(
        self,
        config: Config,
        *,
        channels: int,
        classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device | str = "cpu",
        pretrained: bool = True,
    ) -> None:
        """`pretrained` loads the weights that the settings name; one that is restored next has no need of them."""
        super().__init__()
        self.config, train = config, config.train
        self.ctx = ctx = Context(config.seed, classes, torch.device(device))
        ctx.parts = assemble(config.parts, config.prototypes, config.augment.cutmix, beside(config.model), config.seed)
        project = any("projection" in part.needs for part in ctx.parts)
        bf16, compiled = use_bf16(train.precision, ctx.device), use_compile(train.compile, ctx.device)
        graphs = use_graphs(train.graphs, ctx.device)
        network = Network(
            config.model, channels, classes, config.seed, project=project, bf16=bf16, pretrained=pretrained
        )
        self.network = ctx.network = channels_last(network.to(ctx.device))
        self.teacher = ctx.teacher = copy.deepcopy(self.network).eval()
        ctx.views = make_views(network.takes, config.augment, mean, std, ctx.device, compiled=compiled, graphs=graphs)
        if prototypes := part_of(ctx.parts, Prototypes):
            ctx.prototypes = prototypes
        if separation := part_of(ctx.parts, Separation):
            ctx.separation = separation
        self.memory = ctx.memory = self._one(Memory)
        self.classifier = self._one(Classifier)
        self.update = self._one(Update)
        owned = (self.memory, self.classifier, self.update)
        self.parts = nn.ModuleList(part for part in ctx.parts if part not in owned)  # each is in the state once
        for part in ctx.parts:
            with seeded(config.seed, "build", called(part), device=ctx.device):
                _build(part, ctx)
        if compiled:
            every = train.compile == "on"
            ctx.chunk = train.batch_size  # the shape that the teacher sees too
            if self.network.fuses() and not every:  # nothing is compiled: small batches need not mean small chunks
                ctx.chunk = max(train.batch_size, EMBED_CHUNK)
            compile_networks(self, every=every)
        elif processes.count() > 1 and ctx.device.type == "cuda":
            ctx.chunk = EMBED_CHUNK  # a last chunk too small to share would be rounded by each as it likes
        taken = Replay[Draw](ctx.device) if graphs else Plain[Draw]()
        self.stepper = Stepper(ctx, self.update, taken, joint_views=train.joint_views)
        self.losses: dict[str, float] = {}  # the terms, as means over the steps of the last whole epoch
        self.steps = self.batch_size = 0  # of the current epoch
        self.phases = 1  # of the current task
        self._restored: dict[int, Tensor] = {}  # momenta with which a resumed phase goes on
        self._carried: dict[int, Tensor] = {}  # and with which the next task's main phase starts

    def _one(self, kind: type[T]) -> T:
        found = part_of(self.ctx.parts, kind)
        assert found is not None
        return found

    def fit(self, task: Task, start: Position | None = None) -> Iterator[Position]:
        """Learns one task; after `restore`, goes on from `start`. Yields the position after each step and epoch."""
        if start is None:
            self._begin_task(task)
            start = Position(task.index)
        phases = self._phases()
        self.phases = len(phases)
        for number in range(start.phase, len(phases)):
            yield from self._train(phases[number], start)
            start = Position(task.index, number + 1)
        self._end_task()

    def _train(self, phase: Phase, start: Position) -> Iterator[Position]:
        ctx, train, stepper = self.ctx, self.config.train, self.stepper
        self.update.begin_phase(phase.parameters(), momentum=train.momentum, weight_decay=train.weight_decay)
        main = phase.network is self.network
        self.update.descent.set_momenta(self._restored or (self._carried if main else {}))
        self._restored = {}
        ctx.phase, ctx.epochs = phase, train.epochs_of(ctx.task)
        rows = training_rows(ctx)
        if start.epoch == start.step == 0:
            stepper.sums = {}
        stepper.begin(phase)
        upcoming = self._draws(phase, rows, start.epoch, start.step)
        for epoch in range(start.epoch, ctx.epochs):
            first = start.step if epoch == start.epoch else 0
            ctx.epoch = epoch
            self.update.descent.set_lr(train.lr_at(ctx.task, epoch))
            for part in phase.parts:
                part.begin_epoch()
            if first == 0:
                for total in stepper.sums.values():
                    total.zero_()
            phase.network.train()
            stepper.begin_epoch()
            for step, draw in enumerate(upcoming, first):
                stepper(draw)
                yield Position(ctx.task, start.phase, epoch, step + 1)
            read = read_async(torch.stack(list(stepper.sums.values())))
            if epoch + 1 < ctx.epochs:  # the device makes its views while the losses of this one are read
                upcoming = begun(self._draws(phase, rows, epoch + 1, 0))
            for part in phase.parts:
                part.end_epoch()
            ctx.forget_features()
            self.losses = {name: total / self.steps for name, total in zip(stepper.sums, read(), strict=True)}
            self._check_losses(epoch)
            yield Position(ctx.task, start.phase, epoch + 1)
        if main and train.momentum_buffers == "carried":
            self._carried = self.update.descent.momenta()

    def _draws(self, phase: Phase, rows: Tensor, epoch: int, first: int) -> Iterator[Draw]:
        ctx, train = self.ctx, self.config.train
        order = self.memory.order(rows, train.batch_size, ctx.generator("order", ctx.task, phase.name, epoch))
        order = order[: train.steps_per_epoch or None]
        self.steps, self.batch_size = order.shape
        return draws(ctx, phase, order, epoch, first)

    def _check_losses(self, epoch: int) -> None:
        if math.isfinite(self.losses["total"]):
            return
        terms = {name: math.isfinite(value) for name, value in self.losses.items() if name != "total"}
        first = [self._term(name) for name, finite in terms.items() if not finite]
        smaller = f"a smaller learning rate (--set train.lr={self.config.train.lr / 10:g})"
        hint = f"Try {smaller}."
        if 0 < len(first) < len(terms):
            hint = f"At first it was only {', '.join(first)}: look there for a division by 0, or try {smaller}."
        raise RunError(
            f"training diverged: the loss of task {self.ctx.task + 1}, epoch {epoch + 1} is not finite. {hint}"
        )

    def _term(self, name: str) -> str:
        """-> a term in words, with the part that adds it, where a step was taken since the run was resumed."""
        part = self.stepper.added.get(name)
        return f"'{name}' of {called(part)}" if part else f"'{name}'"

    def _begin_task(self, task: Task) -> None:
        self._set_task(task)
        rows = self.config.model.new_rows
        self.ctx.arriving = self.network.head.birth(0, task.seen, self.config.seed, rows=rows)
        for part in self.ctx.parts:
            if (held_out := part.hold_out()) is not None:
                self.ctx.pool.held_out |= held_out
        for part in self.ctx.parts:
            self.ctx.check_stop()
            part.begin_task()
        self._check_started()

    def _check_started(self) -> None:
        """A disambiguation that starts no targets would learn nothing from its own term, and look as if it did."""
        if not self.ctx.pool.p.any(dim=1).all():
            raise RunError(
                f"disambiguation '{self.config.part('disambiguation').kind}' has not started the soft targets of task "
                f"{self.ctx.task + 1}: there are samples of the pool without any. Its `begin_task` must call "
                "super().begin_task(), or fill ctx.pool.p with distributions over the candidate sets."
            )

    def _set_task(self, task: Task) -> None:
        ctx, device = self.ctx, self.ctx.device
        ctx.task, ctx.old, ctx.seen = task.index, task.old, task.seen
        known = torch.from_numpy(task.known_classes()).to(device)
        ctx.old_mask.zero_()[: task.seen] = known
        ctx.new_mask.zero_()[: task.seen] = ~known
        keep_folded(self.teacher)
        vars(ctx).pop("pool", None)  # the last task's samples make room
        ctx.pool = Pool.of(task, self.memory, ctx.capacity, device, self.config.data.residence)
        ctx.forget_features()

    def _phases(self) -> list[Phase]:
        ctx = self.ctx
        extra = [phase for part in ctx.parts for phase in part.phases()]
        return [*extra, Phase("main", self.network, ctx.parts, ctx.pool.p)]

    def _end_task(self) -> None:
        """Parts in their order (retention's correction, prototypes, memory, classifier), then the new teacher."""
        with torch.no_grad():
            for part in self.ctx.parts:
                self.ctx.check_stop()
                part.end_task()
            copy_state(self.network, self.teacher)

    @torch.no_grad()
    def predict(self, samples: Tensor | SampleStore, rows: Tensor | slice | None = None) -> Prediction:
        """-> classes in arrival order of samples, or of these rows of them."""
        features, logits = self.ctx.embed(samples, rows)
        return Prediction(self.classifier.scores(features, logits).argmax(dim=1), logits.argmax(dim=1))

    def state(self, *, within: bool = True) -> LearnerState:
        """The whole state between two steps; not `within` a task, all that the next one needs."""
        if not within or self.ctx.task < 0:
            return LearnerState(self.state_dict(), self._carried)
        sums, momenta = self.stepper.sums, self.update.descent.momenta()
        return LearnerState(self.state_dict(), self._carried, sums, momenta, self.ctx.pool.state())

    def tensors(self, *, within: bool = True) -> Tensors:
        """The state by the names that it has in files, for `restore`."""
        return self.state(within=within).named()

    def restore(self, tensors: Tensors, task: Task | None = None, *, within: bool = False) -> None:
        """Takes the state that `tensors` gave; `task` is the one inside which training stopped, where `within`."""
        state = LearnerState.of(tensors).to(self.ctx.device)
        load_tensors(self, state.modules if within else between_tasks(self, state.modules))
        self._carried = state.carried
        if within:
            assert task is not None
            self._restored, self.stepper.sums = state.momenta, state.sums
            self._set_task(task)
            for name, tensor in self.ctx.pool.state().items():
                tensor.copy_(state.pool[name])


def _build(part: Component, ctx: Context) -> None:
    """Refuses a part that knows no context in the end: it would fail somewhere else, later."""
    reason: AttributeError | None = None
    try:
        part.build(ctx)
    except AttributeError as error:
        if "ctx" in vars(part):
            raise
        reason = error
    if "ctx" not in vars(part):
        raise ConfigError(f"{called(part)}: its `build` does not begin with super().build(ctx).") from reason
