"""What every number must tell: the samples that were scored, which never mix, and the epochs of a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pages import make_run, report

import ipll
from ipll.paper.summary import compare
from ipll.report.build import write_report
from ipll.results.conditions import epochs_in_words, scored_alike, scored_on, short_epochs


def changed(folder: Path, **changes: Any) -> Path:
    """The run folder, with other fields in its result."""
    file = folder / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def validated(folder: Path, share: float = 0.2, **options: Any) -> Path:
    """A finished run that was scored on validation samples."""
    data = {"source": "digits", "validation": share}
    return changed(make_run(folder, settings={"data": data}, **options), scored_on="validation")


# What was scored


def test_a_result_that_does_not_say_was_scored_on_the_test_set() -> None:
    assert scored_on({}) == scored_on({"scored_on": "test"}) == "test"
    assert scored_on({"scored_on": "validation"}) == "validation"
    assert scored_alike({"old": {}, "new": {"scored_on": "test"}}) == "test"
    assert scored_alike({}) == "test"
    assert scored_alike({name: {"scored_on": "validation"} for name in "ab"}) == "validation"


def test_mixed_runs_are_named_up_to_three_of_a_kind() -> None:
    runs: dict[str, dict[str, Any]] = {f"t{i}": {} for i in range(5)} | {"v": {"scored_on": "validation"}}
    with pytest.raises(ipll.RunError, match=r"on test samples: t0, t1, t2 and 2 more; on validation samples: v\)"):
        scored_alike(runs)


def test_a_report_says_that_it_is_on_validation_samples(tmp_path: Path) -> None:
    _, page = report(tmp_path, validated(tmp_path / "run"))
    for words in (
        "pgdr on digits, on validation samples",
        "Average incremental accuracy on validation samples",
        "The validation samples are 20 % of every class’s training samples, taken out before the stream was built.",
        "All accuracies of this page are on validation samples, not on the test set.",
        "the accuracy on validation samples of all classes seen so far",
        "Validation samples after the last task",
    ):
        assert words in page.text, words
    assert "test samples" not in page.text.lower()
    (tmp_path / "other").mkdir()
    _, plain = report(tmp_path / "other", make_run(tmp_path / "plain"))
    assert "validation" not in plain.text.lower()
    assert "Test samples after the last task" in plain.text


def test_validation_runs_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = [validated(tmp_path / "a"), validated(tmp_path / "b", method="proden")]
    _, page = report(tmp_path, *runs)
    assert "2 runs compared, on validation samples" in page.text
    assert "Compare with care" not in page.text
    _, page = report(tmp_path, runs[0], validated(tmp_path / "c", 0.1, method="proden"))
    assert "These runs did not learn from the same stream" in page.text


def test_a_report_refuses_validation_and_test_side_by_side(tmp_path: Path, main: Any) -> None:
    test, validation = make_run(tmp_path / "test"), validated(tmp_path / "held out")
    status, _, err = main("report", test, validation, "--out", tmp_path / "report.html")
    assert status == 2
    assert f"on test samples: {test}; on validation samples: {validation}" in err
    assert "Show each kind by itself" in err
    assert not (tmp_path / "report.html").exists()


def test_results_of_older_versions_are_compared_without_a_caution(tmp_path: Path) -> None:
    """Their settings do not have data.validation."""
    new = make_run(tmp_path / "new", settings={"data": {"source": "digits", "validation": 0.0}})
    _, page = report(tmp_path, make_run(tmp_path / "old", method="proden"), changed(new, scored_on="test"))
    assert "Compare with care" not in page.text


@pytest.mark.parametrize(("key", "value"), [("scored_on", "trainig"), ("later_epochs", -1), ("later_epochs", "3")])
def test_damaged_fields_are_named(tmp_path: Path, key: str, value: Any) -> None:
    run = changed(make_run(tmp_path / "run"), **{key: value})
    with pytest.raises(ipll.RunError, match=f"'{key}' is damaged"):
        write_report([run], tmp_path / "report.html")


def test_the_final_summary(finished_run: Path) -> None:
    plain = ipll.Result.load(finished_run)
    held_out = ipll.Result({**plain, "scored_on": "validation"})
    assert compare([plain]).title == "digits: accuracy on all classes seen so far, in %"
    assert compare([held_out]).title == "digits: validation accuracy on all classes seen so far, in %"
    with pytest.raises(ipll.RunError, match=rf"on test samples: {finished_run}; on validation samples: pgdr \(2\)"):
        compare([plain, held_out])
    assert "accuracy on validation samples" in repr(held_out)
    assert "validation" not in repr(plain)


# Epochs


@pytest.mark.parametrize(
    ("first", "later", "short", "words"),
    [
        (200, 0, "200", "200 epochs each"),
        (200, 200, "200", "200 epochs each"),
        (200, 30, "200/30", "200 epochs in the first task, 30 in each later one"),
    ],
)
def test_epochs_of_the_first_and_of_later_tasks(first: int, later: int, short: str, words: str) -> None:
    assert short_epochs(first, later) == short
    assert epochs_in_words(first, later) == words


@pytest.mark.parametrize(("tasks", "words", "short"), [
    (5, "in 5 tasks, 30 epochs in the first task, 7 in each later one.", "30/7 epochs"),
    (1, "in 1 task, 30 epochs each.", "30 epochs"),
])  # fmt: skip
def test_a_report_tells_the_epochs_of_later_tasks(tmp_path: Path, tasks: int, words: str, short: str) -> None:
    _, page = report(tmp_path, changed(make_run(tmp_path / "run", tasks=tasks), later_epochs=7))
    assert words in page.text
    assert f"blurry 10 % · {short} " in page.text
