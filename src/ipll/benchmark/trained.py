"""The learner of a run, to be looked at: its features, its predictions, whatever a user measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ipll.benchmark.run import learner_for, load_data
from ipll.config import Config
from ipll.data.fingerprint import check_data
from ipll.data.source import Source
from ipll.data.stream import Stream
from ipll.data.through import seen_through
from ipll.engine import checkpoint
from ipll.engine.device import find_device
from ipll.errors import RunError
from ipll.learner import Learner
from ipll.plugins import load_plugins
from ipll.results.folder import check_whole, read_facts


class Trained(NamedTuple):
    """A learner as it was at the end of a task, and what it learnt from. Its classes are in order of arrival."""

    learner: Learner
    source: Source
    stream: Stream
    tasks: int  # learnt by then


def load_learner(
    path: str | Path,
    *,
    device: str = "auto",
    data_root: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
) -> Trained:
    """-> the learner of a run's last checkpoint, which must be at a task's end; nothing in the folder changes.

    `plugins` are the files that it was begun with: a folder brings no code by itself. Its data are looked for where
    they were, unless `data_root` names another place.
    """
    path, chosen = Path(path), find_device(device)
    if not (path / "config.toml").exists():
        raise RunError(f"{path}: there is no run here (no config.toml). Name the folder of a run.")
    load_plugins(plugins)
    check_whole(path)
    config, stream, facts = Config.load(path / "config.toml"), Stream.load(path / "stream.npz"), read_facts(path)
    found, _ = checkpoint.look(path / "checkpoint")
    if found is None or found.meta["within"]:
        where = f"its last checkpoint is within task {found.meta['position'][0] + 1}" if found else "it has none"
        raise RunError(f"{path}: no checkpoint at a task's end: {where}. Go on with: ipll resume {path}")
    source = load_data(config.data, root := data_root or facts.get("data_root"))
    if "data" in facts:
        check_data(facts["data"], source, path, root)
    source = seen_through(source, config.data.through, chosen)
    learner = learner_for(config, source, chosen, pretrained=False)
    learner.restore(found.tensors)
    return Trained(learner, source, stream, tasks=found.meta["position"][0])
