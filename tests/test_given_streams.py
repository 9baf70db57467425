"""Runs that learn from a stream of the user's own: it is learnt as it is, and told from those that are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipll
from ipll.data.stream import Stream
from ipll.errors import ConfigError, DataError

DOCS = Path(__file__).parents[1] / "docs" / "streams.md"


@pytest.fixture(scope="module")
def drawn() -> Stream:
    return Stream.build(ipll.load_source("digits"), ipll.StreamConfig(tasks=3, blurry=10, q=0.3), seed=0)


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return {"train.epochs": 1, "train.steps_per_epoch": 2, "memory.size": 40}


def changed(drawn: Stream) -> Stream:
    """Each sample with all classes that are seen when it arrives."""
    seen = np.cumsum(drawn.classes_per_task)[drawn.task]
    return replace(drawn, candidates=drawn.arrival < seen[:, None])


def test_it_is_learnt_as_it_is(drawn: Stream, quick: dict[str, Any], tmp_path: Path, main: Any) -> None:
    mine = changed(drawn)
    mine.save(tmp_path / "mine.npz")
    options = [word for key, value in quick.items() for word in ("--set", f"{key}={value}")]
    status, out, err = main(
        "run", "digits", "--stream", tmp_path / "mine.npz", "--seed", 3, "--out", tmp_path / "a", *options
    )
    assert status == 0, out + err
    kept = Stream.load(tmp_path / "a" / "stream.npz")
    assert np.array_equal(kept.candidates, mine.candidates)
    assert kept.seed == 3
    result = ipll.run("digits", stream=mine, seed=3, **quick)
    found = ipll.Result.load(tmp_path / "a")
    assert result["accuracy_per_task"] == found["accuracy_per_task"]
    assert found["config"]["stream"]["given"] == mine.sha256()
    assert len(found["accuracy_per_task"]) == 3  # its own tasks, not the preset's five


def test_it_is_gone_on_with(drawn: Stream, quick: dict[str, Any], tmp_path: Path) -> None:
    mine = changed(drawn)
    whole = ipll.run("digits", stream=mine, **quick)

    class Stop(ipll.progress.Silent):
        def epoch(self, position: Any, record: Any) -> None:
            if position.task == 1:
                raise KeyboardInterrupt

    settings = quick | {"train.checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        ipll.run("digits", stream=mine, out=tmp_path / "run", reporter=Stop(), **settings)
    assert ipll.resume(tmp_path / "run", device="cpu")["accuracy_per_task"] == whole["accuracy_per_task"]


def test_what_its_settings_draw_is_no_other_stream(drawn: Stream, quick: dict[str, Any]) -> None:
    settings = {"stream.tasks": 3, "stream.q": 0.3}
    plain, given = ipll.run("digits", **quick | settings), ipll.run("digits", stream=drawn, **quick)
    assert given["config"] == plain["config"]
    assert given["accuracy_per_task"] == plain["accuracy_per_task"]
    other = ipll.run("digits", stream=drawn, seed=1, **quick)  # as that seed would not draw it
    assert other["config"]["stream"]["given"] == drawn.sha256()


def early(stream: Stream) -> Stream:
    """Ten samples of the class that is born last arrive in task 1, with all classes as candidates."""
    task, candidates = stream.task.copy(), stream.candidates.copy()
    rows = np.flatnonzero(ipll.load_source("digits").train_labels == stream.class_order[-1])[:10]
    task[rows], candidates[rows] = 1, True
    return replace(stream, task=task, candidates=candidates)


def test_samples_may_come_before_their_class(drawn: Stream, quick: dict[str, Any], tmp_path: Path, main: Any) -> None:
    """Such a run learnt all tasks, and then could neither be written nor resumed."""
    mine, source = early(drawn), ipll.load_source("digits")
    result = ipll.run("digits", stream=mine, out=tmp_path / "run", **quick)
    own = mine.task == 1
    prior, seen = result["class_prior"]["1"], mine.seen(1)
    assert len(prior["predicted"]) == len(prior["true"]) == seen
    assert (sum(prior["predicted"]), sum(prior["true"])) == (own.sum(), own.sum() - 10)
    mine.save(tmp_path / "early.npz")
    status, out, _ = main("stream", "digits", "--stream", tmp_path / "early.npz")
    assert (status, f"In 10 of {len(mine.task):,} candidate sets the true label is missing." in out) == (0, True)
    sizes = mine.make_task(1, source.train_samples).candidates.sum(axis=1)
    assert mine.summary(source.train_labels)[1].mean_candidates == sizes.mean()  # as a learner is given them
    assert re.search(rf"│ 2 +│ 4 \+ 3 +│ {own.sum()} +│ .*│ {sizes.mean():.2f} ", out)
    assert main("stream", "digits", "--stream", tmp_path / "early.npz", "--set", "stream.q=0.5").status == 2


def none_seen(stream: Stream) -> Stream:
    candidates = stream.candidates.copy()
    row = int(np.flatnonzero(stream.task == 0)[0])
    candidates[row] = np.arange(10) == stream.class_order[-1]
    return replace(stream, candidates=candidates)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: replace(s, source_name="cifar100"), "it is of 'cifar100', and the run learns 'digits'"),
        (lambda s: replace(s, task=s.task[:9], candidates=s.candidates[:9]), "it has 9 samples of 10 classes"),
        (lambda s: replace(s, candidates=s.candidates.astype(int)), "not of the right types"),
        (lambda s: replace(s, task=np.where(s.task == 1, 2, s.task)), "no sample arrives in task 1"),
        (none_seen, r"1 samples have no candidate among the classes seen when they arrive, such as sample \d+ in task"),
    ],
)
def test_one_that_cannot_be_learnt(change: Callable[[Stream], Stream], says: str, drawn: Stream) -> None:
    with pytest.raises(DataError, match=says):
        ipll.run("digits", stream=change(drawn))


def test_settings_of_a_stream_beside_one_that_is_given(drawn: Stream) -> None:
    with pytest.raises(ConfigError, match=r"stream\.q is set, but the stream is given"):
        ipll.run("digits", stream=drawn, stream__q=0.2)
    with pytest.raises(ConfigError, match="give it, as --stream FILE"):
        ipll.run("digits", stream__given="0" * 64)


def test_missing_truth_is_told(drawn: Stream, quick: dict[str, Any]) -> None:
    class Heard(ipll.progress.Silent):
        said: str = ""

        def note(self, message: str) -> None:
            self.said += message

    labels = ipll.load_source("digits").train_labels
    mine = changed(drawn)
    row = int(np.flatnonzero(mine.task == 2)[0])
    mine.candidates[row, labels[row]] = False
    heard = Heard()
    ipll.run("digits", stream=mine, reporter=heard, **quick)
    assert re.search(r"In 1 of 1,4\d\d candidate sets the true label is missing", heard.said)


@pytest.mark.usefixtures("forget")
def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Stream) -> None:
    monkeypatch.chdir(tmp_path)
    drawn.save(Path("stream.npz"))
    use, own, ring = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    exec(use, {})
    exec(own.replace('"pgdr", stream', '"pgdr", train__epochs=1, stream'), {})
    assert Stream.load(Path("mine.npz")).candidates.sum() > 1437
    Path("ring.py").write_text(ring)
    result = ipll.run("digits", plugins=["ring.py"], stream__candidates="ring", train__epochs=1)
    assert result["config"]["stream"]["candidates"] == "ring"
