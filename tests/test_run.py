"""Runs from Python: what they return and write, that the numbers agree, repeat, and never see a true label."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipll
from ipll.benchmark.run import Execution
from ipll.config import Config, resolve
from ipll.data.sources import load_source
from ipll.progress import Silent
from timings import TIMINGS

CPU = torch.device("cpu")
FIELDS = TIMINGS | {
    "config", "method", "preset", "seed", "epochs", "later_epochs", "scored_on", "environment",
    "average_incremental_accuracy", "last_accuracy",
    "accuracy_per_task", "old_accuracy_per_task", "new_accuracy_per_task", "linear_accuracy_per_task",
    "accuracy_matrix", "forgetting", "confusion",
    "pseudo_label_accuracy_per_task",
    "separation_old_recall_per_task", "separation_new_recall_per_task", "separation_accuracy_per_task",
    "memory_purity_per_task", "class_prior",
}  # fmt: skip


def execution(config: Config, source: ipll.Source, stream: ipll.Stream) -> Execution:
    return Execution(config, source, stream, CPU, None, Silent())


def numbers(result: ipll.Result) -> dict[str, Any]:
    """All but timings, and but the commit, which may change while tests run."""
    kept = {key: value for key, value in result.items() if key not in TIMINGS}
    return kept | {"environment": {k: v for k, v in kept["environment"].items() if k != "commit"}}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def digits() -> ipll.Source:
    return load_source("digits")


@pytest.fixture(scope="module")
def done(digits: ipll.Source, quick: dict[str, Any]) -> tuple[Execution, ipll.Result]:
    """A run of PGDR that is over, with its learner, and its result."""
    config = resolve("digits", overrides=quick)
    run = execution(config, digits, ipll.Stream.build(digits, config.stream, 0))
    return run, run.go()


# What a run gives


def test_three_lines_of_python(quick: dict[str, Any]) -> None:
    result = ipll.run("digits", method="pgdr", **quick)
    assert isinstance(result, ipll.Result)
    assert set(result) >= FIELDS
    assert (result["preset"], result["method"], result["seed"], result["epochs"]) == ("digits", "pgdr", 0, 2)
    assert result.folder is None
    assert result.average_incremental_accuracy == result["average_incremental_accuracy"]
    assert result.accuracy_per_task == result["accuracy_per_task"]
    assert result.last_accuracy == result["last_accuracy"] == result.accuracy_per_task[-1]
    assert "pgdr on digits, seed 0" in repr(result)


def test_settings_with_underscores_are_the_same(quick: dict[str, Any], done: tuple[Execution, ipll.Result]) -> None:
    result = ipll.run("digits", **{key.replace(".", "__"): value for key, value in quick.items()})
    assert numbers(result) == numbers(done[1])


def test_shapes_of_a_result(done: tuple[Execution, ipll.Result]) -> None:
    run, result = done
    tasks, classes = 3, 10
    for name in (name for name in FIELDS if name.endswith("_per_task")):
        assert len(result[name]) == tasks, name
        assert all(value is None or 0 <= value <= 100 for value in result[name]), name
    assert np.shape(result["confusion"]) == (classes, classes)
    assert np.shape(result["accuracy_matrix"]) == (tasks, tasks)
    assert sorted(result["class_names"]) == list("0123456789")
    assert result["config"] == run.config.to_table()
    assert result["epochs"] == result["config"]["train"]["epochs"]
    for name in TIMINGS:
        assert np.all(np.array(result[name]) > 0), name
    assert {"ipll", "python", "platform", "packages", "device", "hardware", "commit"} <= set(result["environment"])
    assert json.loads(json.dumps(result._values, allow_nan=False)) == result._values


def test_the_files_of_a_run(finished_run: Path, quick: dict[str, Any]) -> None:
    names = {path.name for path in finished_run.iterdir()} - {".lock"}
    wanted = {
        "manifest.json",
        "config.toml",
        "environment.json",
        "stream.npz",
        "metrics.jsonl",
        "result.json",
        "checkpoint",
        "report.html",
    }
    assert wanted <= names
    assert not [name for name in names if name.endswith(".tmp")]
    config = Config.load(finished_run / "config.toml")
    assert config == resolve("digits", overrides=quick)
    stream = ipll.Stream.load(finished_run / "stream.npz")
    assert stream.sha256() == ipll.Stream.build(load_source("digits"), config.stream, 0).sha256()
    result = ipll.Result.load(finished_run)
    assert set(result) >= FIELDS
    assert result.folder == finished_run
    assert json.loads((finished_run / "environment.json").read_text()).keys() == result["environment"].keys()
    assert "<html" in (finished_run / "report.html").read_text()


def test_metrics_have_a_line_for_each_epoch_and_task(finished_run: Path) -> None:
    lines = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    order = [(line["kind"], line["task"], line.get("epoch")) for line in lines]
    assert order == [
        step for t in range(3) for step in (("epoch", t, 0), ("epoch", t, 1), ("task", t, None))
    ]  # fmt: skip
    result = ipll.Result.load(finished_run)
    assert [line["accuracy"] for line in lines if line["kind"] == "task"] == result.accuracy_per_task
    for line in lines:
        if line["kind"] == "epoch":
            assert line["loss"] == pytest.approx(sum(line["terms"].values()), rel=1e-5)
            assert set(line["terms"]) == ({"ce", "cr", "kd"} if line["task"] else {"ce", "cr"})


def test_the_same_run_with_and_without_a_folder(finished_run: Path, done: tuple[Execution, ipll.Result]) -> None:
    assert numbers(ipll.Result.load(finished_run)) == numbers(done[1])


def test_without_out_nothing_is_written(
    quick: dict[str, Any], snapshot: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "IPLL_DATA", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ipll.run("digits", **quick | {"stream.tasks": 1, "train.epochs": 1})
    assert snapshot(tmp_path) == {}


def test_overwrite_replaces_a_run(finished: Path, quick: dict[str, Any]) -> None:
    (finished / "mine.txt").write_text("keep")
    result = ipll.run("digits", "proden", out=finished, overwrite=True, **quick | {"stream.tasks": 2})
    assert numbers(ipll.Result.load(finished)) == numbers(result)
    assert result["method"] == "proden"
    assert len((finished / "metrics.jsonl").read_text().splitlines()) == 2 * 3
    assert (finished / "mine.txt").read_text() == "keep"


def test_a_run_of_one_task(quick: dict[str, Any]) -> None:
    """Joint training: there is no old class, so nothing to forget or to separate."""
    result = ipll.run("digits", **quick | {"stream.tasks": 1})
    assert result["old_accuracy_per_task"] == [None]
    assert result["separation_accuracy_per_task"] == [None]
    assert result["forgetting"] == 0.0
    assert result["class_prior"] == {}


@pytest.mark.parametrize("method", ["pgdr", "proden", "pgdr/no-memory", "pgdr/random-memory", "pgdr/linear-classifier"])
def test_what_a_method_lacks_is_none(method: str, quick: dict[str, Any]) -> None:
    result = ipll.run("digits", method, **quick | {"stream.tasks": 2, "train.epochs": 1})
    has_memory, separates = method not in ("proden", "pgdr/no-memory"), method != "proden"
    assert all((value is not None) == has_memory for value in result["memory_purity_per_task"])
    assert result["separation_accuracy_per_task"][0] is None
    assert (result["separation_accuracy_per_task"][1] is not None) == separates
    if method in ("proden", "pgdr/linear-classifier"):
        assert result["accuracy_per_task"] == result["linear_accuracy_per_task"]


# The numbers agree


def test_accuracies_agree_with_the_confusion_matrix(done: tuple[Execution, ipll.Result], digits: ipll.Source) -> None:
    run, result = done
    stream, confusion = run.stream, np.array(result["confusion"])
    totals, hits = confusion.sum(1), confusion.diagonal()
    counts = np.bincount(digits.test_labels)[stream.class_order]
    assert totals.tolist() == counts.tolist()
    assert result.last_accuracy == pytest.approx(100 * hits.sum() / totals.sum())
    old = stream.seen(1)
    assert result["old_accuracy_per_task"][-1] == pytest.approx(100 * hits[:old].sum() / totals[:old].sum())
    assert result["new_accuracy_per_task"][-1] == pytest.approx(100 * hits[old:].sum() / totals[old:].sum())
    assert result.average_incremental_accuracy == pytest.approx(sum(result.accuracy_per_task) / 3)
    bounds = [0, *(stream.seen(t) for t in range(3))]
    sizes = [counts[a:b].sum() for a, b in pairwise(bounds)]
    for t, row in enumerate(result["accuracy_matrix"]):
        assert [value is not None for value in row] == [j <= t for j in range(3)]
        mean = sum(row[j] * sizes[j] for j in range(t + 1)) / sum(sizes[: t + 1])
        assert result.accuracy_per_task[t] == pytest.approx(mean)
        assert result["new_accuracy_per_task"][t] == pytest.approx(row[t])
        if t:
            mean = sum(row[j] * sizes[j] for j in range(t)) / sum(sizes[:t])
            assert result["old_accuracy_per_task"][t] == pytest.approx(mean)
    for j in range(3):
        group = slice(bounds[j], bounds[j + 1])
        assert result["accuracy_matrix"][2][j] == pytest.approx(100 * hits[group].sum() / totals[group].sum())
    assert result["old_accuracy_per_task"][0] is None


def test_accuracies_agree_with_the_learners_predictions(
    done: tuple[Execution, ipll.Result], digits: ipll.Source
) -> None:
    """The last task's numbers, counted sample by sample from the learner as the run left it."""
    run, result = done
    place = {int(c): i for i, c in enumerate(run.stream.class_order)}
    prediction = run.learner.predict(torch.from_numpy(digits.test_samples))

    def share(pairs: list[tuple[int, int]]) -> float:
        return 100 * sum(a == b for a, b in pairs) / len(pairs)

    truth = [place[int(label)] for label in digits.test_labels]
    assert result.last_accuracy == pytest.approx(share(list(zip(prediction.classes.tolist(), truth, strict=True))))
    linear = share(list(zip(prediction.linear.tolist(), truth, strict=True)))
    assert result["linear_accuracy_per_task"][-1] == pytest.approx(linear)

    pool, memory = run.learner.ctx.pool, run.learner.memory
    own = [(int(pool.p[i].argmax()), place[int(digits.train_labels[int(pool.ids[i])])]) for i in range(pool.incoming)]
    assert result["pseudo_label_accuracy_per_task"][-1] == pytest.approx(share(own))
    kept = [
        (int(p.argmax()), place[int(digits.train_labels[int(i)])]) for i, p in zip(memory.ids, memory.p, strict=True)
    ]
    assert result["memory_purity_per_task"][-1] == pytest.approx(share(kept))
    old = run.stream.seen(1)
    judged = [bool(pool.judged_old[i]) for i in range(pool.incoming)]
    truly_old = [true < old for _, true in own]
    recall = sum(j for j, o in zip(judged, truly_old, strict=True) if o) / sum(truly_old)
    assert result["separation_old_recall_per_task"][-1] == pytest.approx(100 * recall)


def test_forgetting_agrees_with_the_accuracy_matrix() -> None:
    """With one class a task, the matrix holds the accuracy of each class after each task."""
    settings = {"stream.tasks": 10, "train.epochs": 1, "train.steps_per_epoch": 2, "train.batch_size": 32}
    result = ipll.run("digits", **settings)
    matrix = result["accuracy_matrix"]
    drops = [max(matrix[t][c] for t in range(c, 9)) - matrix[9][c] for c in range(9)]
    assert result["forgetting"] == pytest.approx(sum(drops) / 9)


def test_class_prior_counts_the_second_task(done: tuple[Execution, ipll.Result], digits: ipll.Source) -> None:
    run, result = done
    prior = result["class_prior"]
    assert set(prior) == {"1", "2"}  # after epochs 1, 2 and 5, of two
    labels = digits.train_labels[run.stream.task == 1]
    true = [int((labels == c).sum()) for c in run.stream.class_order[: run.stream.seen(1)]]
    for counts in prior.values():
        assert counts["true"] == true
        assert sum(counts["predicted"]) == len(labels)
        assert len(counts["predicted"]) == len(true)


# Repetition


def test_same_seed_same_bits(done: tuple[Execution, ipll.Result], digits: ipll.Source, quick: dict[str, Any]) -> None:
    torch.manual_seed(1234)  # nothing global may play a part
    np.random.seed(1234)
    config = resolve("digits", overrides=quick)
    again = execution(config, digits, ipll.Stream.build(digits, config.stream, 0))
    assert numbers(again.go()) == numbers(done[1])
    assert equal(again.learner.tensors(), done[0].learner.tensors())


def test_another_seed_is_another_run(done: tuple[Execution, ipll.Result], quick: dict[str, Any]) -> None:
    other = ipll.run("digits", seed=1, **quick)
    assert other["seed"] == 1
    assert other["class_names"] != done[1]["class_names"]
    assert other.accuracy_per_task != done[1].accuracy_per_task


def test_the_stream_does_not_change_with_the_method(tmp_path: Path, quick: dict[str, Any], finished_run: Path) -> None:
    reference = ipll.Stream.load(finished_run / "stream.npz")
    settings = quick | {"train.epochs": 1, "train.lr": 0.01}
    for method in ("proden", "pgdr/random-memory"):
        folder = tmp_path / method
        ipll.run("digits", method, out=folder, **settings)
        assert ipll.Stream.load(folder / "stream.npz").sha256() == reference.sha256()


def test_a_run_leaves_no_trace_in_the_process(tmp_path: Path, quick: dict[str, Any]) -> None:
    def state() -> list[Any]:
        name, keys, *rest = np.random.get_state()
        return [
            torch.get_rng_state().tolist(), random.getstate(), name, keys.tolist(), rest, torch.get_num_threads(),
            torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(),
            Path.cwd(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM),
        ]  # fmt: skip

    before = state()
    ipll.run("digits", out=tmp_path / "run", **quick | {"stream.tasks": 2, "train.epochs": 1})
    assert state() == before


# The truth stays outside


@pytest.mark.parametrize("method", ["pgdr", "proden", "pgdr/random-memory"])
def test_scrambled_labels_leave_training_bit_identical(method: str, digits: ipll.Source, quick: dict[str, Any]) -> None:
    config = resolve("digits", method, overrides=quick)
    stream = ipll.Stream.build(digits, config.stream, 0)
    rng = np.random.default_rng(0)
    scrambled = replace(
        digits, train_labels=rng.permutation(digits.train_labels), test_labels=rng.permutation(digits.test_labels)
    )
    honest, blind = execution(config, digits, stream), execution(config, scrambled, stream)
    with_truth, without = honest.go(), blind.go()
    assert with_truth["accuracy_per_task"] != without["accuracy_per_task"]  # the labels did change
    assert equal(honest.learner.tensors(), blind.learner.tensors())
    assert torch.equal(honest.learner.ctx.pool.p, blind.learner.ctx.pool.p)


def test_a_task_has_no_label() -> None:
    names = "index ids samples candidates old seen known votes"  # votes are given, not true
    names += " certain"  # ids of sets that people decided
    assert {field.name for field in fields(ipll.Task)} == set(names.split())


def test_a_tasks_candidates_do_not_give_the_truth_away(digits: ipll.Source) -> None:
    """Ids are sorted and hold no class; a candidate set with several members is all that is said of a sample."""
    stream = ipll.Stream.build(digits, ipll.StreamConfig(tasks=5, q=0.5), 0)
    task = stream.make_task(2, digits.train_samples)
    assert (np.diff(task.ids) > 0).all()
    assert task.candidates.dtype == bool
    assert task.candidates.shape == (len(task.ids), task.seen)
    assert (task.candidates.sum(1) > 1).any()


# Errors


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: ipll.run("digit"), ipll.ConfigError),
        (lambda: ipll.run("digits", "pgrd"), ipll.ConfigError),
        (lambda: ipll.run("digits", train__epoch=3), ipll.ConfigError),
        (lambda: ipll.run("digits", train__epochs=0), ipll.ConfigError),
        (lambda: ipll.run("digits", separation__kind="none"), ipll.ConfigError),
        (lambda: ipll.run("digits", seed=-1), ipll.ConfigError),
        (lambda: ipll.run("digits", device="abacus"), ipll.ConfigError),
        (lambda: ipll.run("digits", config="nowhere.toml"), ipll.ConfigError),
        (lambda: ipll.load_source("digit"), ipll.ConfigError),
        (lambda: ipll.StreamConfig(q=1.0), ipll.ConfigError),
        (lambda: ipll.Stream.load(Path("nowhere.npz")), ipll.DataError),
        (lambda: ipll.resume("nowhere"), ipll.RunError),
        (lambda: ipll.Result.load("nowhere"), ipll.RunError),
    ],
)
def test_errors_of_the_library(call: Callable[[], object], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, ipll.IpllError)
    assert len(str(caught.value).splitlines()) == 1


def test_mistakes_in_values_are_value_errors() -> None:
    assert issubclass(ipll.ConfigError, ValueError)
    assert issubclass(ipll.DataError, ValueError)
    assert all(
        issubclass(e, ipll.IpllError) for e in (ipll.ConfigError, ipll.DataError, ipll.RunError, ipll.Interrupted)
    )


def test_diverging_training_is_named(quick: dict[str, Any]) -> None:
    with pytest.raises(ipll.RunError, match=r"diverged.*task 1, epoch .*train\.lr="):
        ipll.run("digits", **quick | {"train.lr": 1e30})


def test_a_quick_run_on_a_few_samples_of_each_class(quick: dict[str, Any]) -> None:
    source = load_source("digits")
    few = source.limited(5)
    for labels, all_labels, samples, all_samples in (
        (few.train_labels, source.train_labels, few.train_samples, source.train_samples),
        (few.test_labels, source.test_labels, few.test_samples, source.test_samples),
    ):
        assert np.bincount(labels).tolist() == [5] * 10
        first = np.flatnonzero(all_labels == 3)[:5]
        assert np.array_equal(samples[labels == 3], all_samples[first])
    assert source.limited(0) is source
    assert len(source.limited(10**6).train_labels) == len(source.train_labels)
    result = ipll.run("digits", **(quick | {"data.per_class": 5, "memory.size": 20}))
    assert np.sum(result["confusion"]) == 50
