"""Runs: from a configuration to a result, with checkpoints on the way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ipll.benchmark.checks import check_against, check_networks, check_stream, idle_notices, slow_notices
from ipll.benchmark.given import as_given, sets_without_truth
from ipll.benchmark.observer import Observer
from ipll.config import Config, DataConfig, resolve
from ipll.data.fingerprint import check_data, check_shared, fingerprint
from ipll.data.source import Source
from ipll.data.sources import load_source
from ipll.data.stream import Stream, Task
from ipll.data.through import seen_through
from ipll.driver import Clock, Record, Stop, drive, enough_memory, stop_requests
from ipll.engine import processes
from ipll.engine.checkpoint import Checkpoint
from ipll.engine.device import arithmetic, cpu_threads, describe, find_device, peak_memory, use_bf16, use_graphs
from ipll.errors import ConfigError, DataError, Interrupted
from ipll.learner import Learner, Position
from ipll.plugins import load_plugins, plugin_options
from ipll.progress import Listener, Plan, Silent
from ipll.report.build import write_report
from ipll.results.folder import RunFolder, check_free
from ipll.results.result import Result
from ipll.results.tensorboard import Events, check_tensorboard, prepare


def run(
    preset: str,
    method: str = "pgdr",
    *,
    seed: int = 0,
    out: str | Path | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    config: str | Path | None = None,
    stream: Stream | str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    overwrite: bool = False,
    tensorboard: bool = False,
    reporter: Listener | None = None,
    **settings: Any,
) -> Result:
    """Learns a whole stream and returns the result.

    `settings` are the command line's --set, either as {"train.epochs": 5} or as train__epochs=5. With `out`, the run
    is kept in that folder and can be stopped and resumed; without, nothing is written. `tensorboard` adds event files
    to the folder. `plugins` are Python files that register parts and methods of their own. A `stream` of your own, or
    its file, is learnt from as it is, in place of one that the settings draw.
    """
    load_plugins(plugins)
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    check_stream(stream, overrides)
    file = Path(config) if config else None
    resolved = resolve(preset, method, seed=seed, file=file, overrides=overrides)
    for words in idle_notices(resolved, overrides, file):
        (reporter or Silent()).note(words)
    return run_config(
        resolved,
        out=out,
        device=device,
        data_root=data_root,
        overwrite=overwrite,
        tensorboard=tensorboard,
        reporter=reporter,
        stream=stream,
    )


def run_config(
    config: Config,
    *,
    stream: Stream | str | Path | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    reporter: Listener | None = None,
) -> Result:
    """Like `run`, from a configuration. Everything is checked before anything is written."""
    chosen = processes.own_device(find_device(device))
    with processes.joined(chosen):
        first = processes.is_first()
        return _run(
            config,
            stream=stream,
            out=out if first else None,
            device=chosen,
            data_root=data_root,
            overwrite=overwrite,
            tensorboard=tensorboard and first,
            listener=reporter if reporter and first else Silent(),
        )


def _run(
    config: Config,
    *,
    stream: Stream | str | Path | None,
    out: str | Path | None,
    device: torch.device,
    data_root: str | Path | None,
    overwrite: bool,
    tensorboard: bool,
    listener: Listener,
) -> Result:
    use_bf16(config.train.precision, device)
    use_graphs(config.train.graphs, device)
    if tensorboard:
        check_tensorboard()
        if out is None:
            raise ConfigError("TensorBoard's events go into the run's folder: name one with out=...")
    if out is not None:
        check_free(Path(out), overwrite=overwrite)
    check_networks(config)
    source = load_data(config.data, data_root)
    if stream is None:
        stream = Stream.build(source, config.stream, config.seed)
    else:
        config, stream = as_given(stream, config, source)
        if words := sets_without_truth(stream, source):
            listener.note(words)
    check_against(config, source)
    folder = RunFolder.create(Path(out), overwrite=overwrite) if out is not None else None
    try:
        if folder:
            prepare(folder.path, wanted=tensorboard)
            facts = {"data_root": str(Path(data_root).absolute()) if data_root else None, "data": fingerprint(source)}
            folder.begin(config, describe(device), stream, facts)
        return execute(config, source, stream, device, folder, listener)
    finally:
        if folder:
            folder.close()


def resume(
    path: str | Path,
    *,
    device: str = "auto",
    data_root: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    reporter: Listener | None = None,
) -> Result:
    """Goes on with a run that was stopped, from its last checkpoint; of one that is finished, returns the result.

    `plugins` are the files that it was begun with: a folder brings no code by itself. Its data are looked for where
    they were, unless `data_root` names another place; other data than it was begun with are refused.
    """
    load_plugins(plugins)
    chosen = processes.own_device(find_device(device))
    with processes.joined(chosen):
        if processes.is_first():
            return _resume(Path(path), chosen, data_root, reporter or Silent())
        begun: tuple[Config, Stream, Path | None] | Result | None = processes.from_first(None)
        assert begun is not None
        if isinstance(begun, Result):
            return begun
        config, stream, root = begun
        return execute(config, load_data(config.data, data_root or root), stream, chosen, None, Silent())


def _resume(path: Path, device: torch.device, data_root: str | Path | None, listener: Listener) -> Result:
    if (Path(path) / "result.json").exists():
        result = Result.load(path)
        listener.note(f"{path}: this run is finished, nothing is left to do. See its report with: ipll report {path}")
        processes.from_first(result)
        return result
    folder = RunFolder.reopen(Path(path))
    try:
        config = Config.load(folder.path / "config.toml")
        stream = Stream.load(folder.path / "stream.npz")
        if (stream.seed, stream.config) != (config.seed, config.stream):
            raise DataError(
                f"{folder.path}: stream.npz is not the stream of config.toml. Start again with --overwrite."
            )
        facts = folder.facts()
        root = data_root or facts.get("data_root")
        source = load_data(config.data, root)
        if "data" in facts:
            check_data(facts["data"], source, folder.path, root)
        processes.from_first((config, stream, root))
        return execute(config, source, stream, device, folder, listener)
    finally:
        folder.close()


def load_data(config: DataConfig, data_root: str | Path | None) -> Source:
    """-> the data set that the settings name, or as much of it as they want.

    Validation samples are taken out first, and then both kinds are limited: a quick run is scored on some of those that
    a whole one is scored on, and learns from none of them.
    """
    source = load_source(config.source, Path(data_root) if data_root else None, config.size)
    return source.validating(config.validation).limited(config.per_class)


def execute(
    config: Config, source: Source, stream: Stream, device: torch.device, folder: RunFolder | None, reporter: Listener
) -> Result:
    """Trains from the folder's last checkpoint, or from the start, to the end of the stream."""
    check_shared(source)
    source = seen_through(source, config.data.through, device)
    computing = arithmetic(deterministic=config.train.deterministic, device=device)
    with cpu_threads(config.train.threads), computing, enough_memory(config):
        execution = Execution(config, source, stream, device, folder, reporter)
        try:
            return execution.go()
        finally:
            execution.learner.stepper.taken.forget()


def learner_for(config: Config, source: Source, device: torch.device, *, pretrained: bool) -> Learner:
    """-> a fresh learner of these samples; `pretrained` where it is not restored next."""
    return Learner(
        config, channels=source.train_samples.shape[1], classes=source.classes, mean=source.mean, std=source.std,
        device=device, pretrained=pretrained,
    )  # fmt: skip


class Execution:
    """One process's work on a run: the driver's job, with what the observer measures and the folder keeps."""

    def __init__(
        self,
        config: Config,
        source: Source,
        stream: Stream,
        device: torch.device,
        folder: RunFolder | None,
        listener: Listener,
    ) -> None:
        self.started = time.monotonic()
        self.config, self.source, self.stream, self.device = config, source, stream, device
        self.folder, self.listener = folder, listener
        found = processes.from_first(folder.load_checkpoint() if folder else None)
        self.learner = learner_for(config, source, device, pretrained=found is None)
        self.observer = Observer(source, stream, device, config.data.residence)
        self.spent: dict[str, float] = {"wall_seconds": 0.0, "train_seconds": 0.0, "epochs": 0, "samples": 0}
        self.environments = [describe(device)]  # of all who worked on the run, this process's last
        self.typical: list[float | None] = []  # median seconds of an epoch, of each task that is done
        self.position = Position(0)
        self.within = False  # does the position lie inside a task?
        if found:
            self._restore(found)
        self.clock = Clock(config.train.checkpoint_seconds, self.spent["train_seconds"])
        self.events = Events.of(folder.path, config.train, config.data.scored_on) if folder else None
        self.earlier = self.spent["wall_seconds"]

    def go(self) -> Result:
        """Learns what is left of the stream. Without a folder there is nothing to go on from: signals act as usual."""
        again = f"ipll resume {self.folder.path}{plugin_options(self.config.plugins)}" if self.folder else ""
        parting = f"Stopped. Resume with: {again}" if again else ""
        with stop_requests(parting, self.listener.note, listen=self.folder is not None) as stop:
            damage = self.folder.notes if self.folder else []
            for message in [
                *self.config.model.notices(),
                *slow_notices(self.config, self.learner.network, self.device),
                *damage,
            ]:
                self.listener.note(message)
            done = [record["accuracy"] for record in self.observer.state["tasks"]]
            self.listener.begin(Plan.of_run(self.config, self.stream, done), self.position)
            try:
                self._learn(stop)
            finally:
                self.listener.end()
                if self.events:
                    self.events.close()
        return self._finish()

    def _learn(self, stop: Stop) -> None:
        try:
            for t in range(self.position.task, len(self.stream)):
                if stop.asked:
                    stop.obey()
                start = self.position if self.within else None
                drive(self.learner, self._task(t), start, job=self, listener=self.listener, stop=stop, clock=self.clock)
        except Interrupted:
            if self.folder:
                self.folder.settle()
            raise

    def epoch(self, position: Position) -> Record:
        self.spent["epochs"] += 1
        self.spent["samples"] += self.learner.steps * self.learner.batch_size
        return self._recorded(self.observer.after_epoch(self.learner, position))

    def task(self) -> Record:
        took = self.clock.epochs
        self.typical.append(statistics.median(took) if took else None)
        processes.check_alike([*self.learner.state_dict().values(), self.learner.ctx.pool.p])
        return self._recorded(self.observer.after_task(self.learner))

    def keep(self, position: Position | None) -> None:
        self.within = position is not None
        self.position = position or Position(self.position.task + 1)
        if self.folder:
            self.spent |= {"wall_seconds": self._wall_seconds(), "train_seconds": self.clock.seconds}
            meta = {
                "position": self.position,
                "within": self.within,
                "observer": self.observer.state,
                "spent": self.spent,
                "typical": self.typical,
                "environments": self.environments,
            }
            self.folder.save_checkpoint(self.learner.tensors(within=self.within), meta)

    def _task(self, t: int) -> Task:
        return self.stream.make_task(t, self.source.train_samples)

    def _recorded(self, record: Record) -> Record:
        if self.folder:
            self.folder.append_metrics(record)
        if self.events:
            self.events.add(record)
        return record

    def _restore(self, found: Checkpoint) -> None:
        self.position, self.within = Position(*found.meta["position"]), found.meta["within"]
        self.observer.state, self.spent = found.meta["observer"], found.meta["spent"]
        self.typical = found.meta["typical"]
        earlier = found.meta.get("environments", [])  # an older version did not keep them
        self.environments = [one for one in earlier if one != self.environments[-1]] + self.environments
        if self.position.task < len(self.stream):
            self.learner.restore(found.tensors, self._task(self.position.task), within=self.within)

    def _wall_seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    def _finish(self) -> Result:
        train_seconds = max(self.clock.seconds, 1e-9)
        result = self.observer.result() | {
            "preset": self.config.preset,
            "method": self.config.method,
            "seed": self.config.seed,
            "scored_on": self.config.data.scored_on,
            "epochs": self.config.train.epochs,
            "later_epochs": self.config.train.later_epochs,
            "config": self.config.to_table(),
            "environment": self.environments[-1],
            "earlier_environments": self.environments[:-1],
            "residence": self.observer.state["tasks"][-1].get("residence"),
            "seconds_per_epoch": train_seconds / max(self.spent["epochs"], 1),
            "median_seconds_per_epoch_per_task": self.typical,
            "samples_per_second": self.spent["samples"] / train_seconds,
            "peak_memory_bytes": peak_memory(self.device),
            "wall_seconds": self._wall_seconds(),
        }
        if self.folder:
            gallery = self.observer.state["gallery"]
            pictures = self.source.train_samples if self.source.pictures is None else self.source.pictures
            images = pictures[[sample["id"] for sample in gallery]]
            self.folder.save_gallery(gallery, images)
            write_report([self.folder.path], self.folder.path / "report.html", [result])
            self.folder.finish(result)
        return Result(result, self.folder.path if self.folder else None)
