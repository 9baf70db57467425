"""A model of own data: fit, update, predict, and what is promised about them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import ipll
from ipll.errors import ConfigError, DataError, Interrupted
from ipll.learner import Position
from ipll.method import method_table
from ipll.own import Decisions, Model, Samples, evaluate, from_arrays, read_table, read_votes
from ipll.own.model_card import unlearnt
from ipll.progress import Silent

QUICK: dict[str, Any] = {"train.epochs": 3, "train.batch_size": 32, "train.threads": 1}
X, Y = load_digits(return_X_y=True)
IMAGES = (load_digits().images * 15).astype(np.uint8)


def sets(labels: Any, classes: int, q: float = 0.2, seed: int = 0) -> list[list[str]]:
    """Candidates among the first `classes` digits, the true one in each."""
    flipped = np.random.default_rng(seed).random((len(labels), classes)) < q
    flipped[np.arange(len(labels)), labels] = True
    return [[f"digit {c}" for c in np.flatnonzero(row)] for row in flipped]


def batch(t: int, n: int = 60) -> Samples:
    """Batch t brings the digits 4 t, ..., 4 t + 3 and a few of those before."""
    late = 700 + 100 * t + np.flatnonzero(Y[700 + 100 * t :] < 4 * t)[:10]
    rows = np.concatenate([np.flatnonzero((4 * t <= Y) & (4 * t + 4 > Y))[:n], late])
    samples = from_arrays(X[rows], sets(Y[rows], min(4 * t + 4, 10), seed=t), ids=[f"row {row}" for row in rows])
    return replace(samples, label_names=[f"digit {label}" for label in Y[rows]])


def held_out(classes: int) -> Samples:
    rows = 1000 + np.flatnonzero(Y[1000:] < classes)
    return replace(from_arrays(X[rows]), label_names=[f"digit {label}" for label in Y[rows]])


def fit(**settings: Any) -> Model:
    return Model.fit(batch(0), device="cpu", settings=QUICK | settings)


@pytest.fixture(scope="module")
def first() -> Model:
    return fit()


@pytest.fixture(scope="module")
def three(first: Model) -> Model:
    return first.update(batch(1), device="cpu").update(batch(2), device="cpu")


def assert_same(left: Model, right: Model) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]), name
    assert torch.equal(left.centres.nan_to_num(), right.centres.nan_to_num())
    for name, column in vars(left.records).items():
        assert np.array_equal(column, getattr(right.records, name)), name
    for name in ("names", "config", "mean", "std", "temperature", "far", "updates", "capacity", "chosen", "given"):
        assert getattr(left, name) == getattr(right, name), name
    assert np.array_equal(left.known, right.known)


def test_updates_from_disk_equal_those_of_one_process_to_the_bit(three: Model, tmp_path: Path) -> None:
    fit().save(tmp_path)
    for t in (1, 2):
        Model.load(tmp_path).update(batch(t), device="cpu").save(tmp_path)
    assert_same(Model.load(tmp_path), three)


def test_learns_three_batches_and_their_classes(three: Model) -> None:
    model = Model.fit(batch(0, 150), device="cpu", settings={"train.threads": 1, "train.epochs": 20})
    model = model.update(batch(1, 150), device="cpu").update(batch(2, 150), device="cpu")
    found = evaluate(model.predict(held_out(10), device="cpu"), held_out(10))
    assert found.accuracy > 0.8
    assert model.updates == three.updates == 3
    assert set(model.names) == {f"digit {c}" for c in range(10)}
    assert model.capacity == 16  # it was 8, and ten classes need more
    assert model.known.all()


def test_an_update_leaves_the_model_before_it_untouched(first: Model) -> None:
    before = {name: tensor.clone() for name, tensor in first.tensors.items()}
    labels, ids = first.records.label.copy(), list(first.records.ids)
    first.update(batch(1), device="cpu")
    assert all(torch.equal(tensor, first.tensors[name]) for name, tensor in before.items())
    assert np.array_equal(first.records.label, labels)
    assert first.records.ids == ids


def test_the_labels_that_come_with_samples_are_never_learnt_from(first: Model) -> None:
    scrambled = replace(batch(0), label_names=["digit 9"] * len(batch(0)), labels=np.zeros(len(batch(0)), np.int64))
    other = Model.fit(scrambled, device="cpu", settings=QUICK)
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in first.tensors.items())
    assert other.records.given[0] == "digit 9"


def test_records_say_what_every_sample_settled_on(three: Model) -> None:
    records, samples = three.records, [batch(t) for t in range(3)]
    assert records.ids == [name for one in samples for name in one.ids]
    assert np.bincount(records.update).tolist() == [0, *(len(one) for one in samples)]
    candidates = records.candidates(three.names)
    assert [set(c) for c in candidates[:5]] == [set(c) for c in sets(Y[[int(i[4:]) for i in records.ids[:5]]], 4)]
    assert all(label in allowed for label, allowed in zip(records.labels(three.names), candidates, strict=True))
    assert ((records.confidence > 0) & (records.confidence <= 1)).all()
    assert not records.judged_old[records.update == 1].any()  # nothing was old then
    assert records.judged_old[records.update == 3].any()
    assert (records.changed_update >= records.update).all()
    assert ((records.changed_epoch >= 1) & (records.changed_epoch <= 3)).all()
    assert records.given == [name for one in samples for name in one.label_names]


def test_samples_of_the_memory_go_on_changing() -> None:
    """With room for few samples, only those that were kept can change their label later."""
    model = fit(**{"memory.size": 20})
    assert model.records.in_memory.sum() == 20
    kept = np.flatnonzero(model.records.in_memory)
    updated = model.update(batch(1), device="cpu")
    moved = np.flatnonzero(model.records.confidence != updated.records.confidence[: len(model.records)])
    assert len(moved)
    assert set(moved.tolist()) <= set(kept.tolist())


def test_a_class_that_was_only_a_false_candidate_is_not_known() -> None:
    rows = np.flatnonzero(Y < 2)[:60]
    candidates = [[str(label), "ghost"] if i % 4 == 0 else [str(label)] for i, label in enumerate(Y[rows])]
    settings = QUICK | {"train.epochs": 20}
    model = Model.fit(from_arrays(X[rows], candidates), device="cpu", settings=settings)
    ghost = model.names.index("ghost")
    assert not model.known[ghost]
    assert np.delete(model.known, ghost).all()
    assert (model.predict(from_arrays(X[:100]), device="cpu").probabilities[:, ghost] == 0).all()
    twos = from_arrays(X[Y == 2][:40], ["ghost"] * 40, allow_one_class=True)
    later = model.update(twos, device="cpu")
    assert later.known.all()
    test = X[Y == 2][100:]
    assert np.mean([label == "ghost" for label in later.predict(from_arrays(test), device="cpu").labels]) > 0.9


def test_a_class_needs_enough_samples_to_be_known() -> None:
    settled = [np.flatnonzero(c == Y)[: (30 if c else 4)] for c in range(2)]
    rows = np.concatenate(settled)
    samples = from_arrays(X[rows], [str(label) for label in Y[rows]])
    few = Model.fit(samples, device="cpu", settings=QUICK)
    assert dict(zip(few.names, few.known.tolist(), strict=True)) == {"0": False, "1": True}
    assert Model.fit(samples, device="cpu", settings=QUICK, min_class_samples=4).known.all()


def test_shares_of_votes_are_where_targets_start() -> None:
    votes = np.array([[3, 1, 0], [1, 2, 1], [0, 1, 4]] * 10, np.float32)
    samples = from_arrays(X[:30], votes > 0, ["a", "b", "c"])
    samples = replace(samples, votes=votes)
    still = QUICK | {"disambiguation.beta_start": 1.0, "disambiguation.beta_end": 1.0}  # targets never move
    alone = {"model.members": 1, "model.folds": 0}  # and nobody judges them
    model = Model.fit(samples, device="cpu", settings=still | alone)
    assert model.records.labels(model.names) == ["a", "b", "c"] * 10
    assert model.records.confidence[:3].tolist() == pytest.approx([0.75, 0.5, 0.8])


def test_ids_that_were_learnt_before_are_refused_by_name(first: Model, refused: Callable[..., str]) -> None:
    message = refused(first.update, batch(0), device="cpu")
    assert "id 'row 0' was learnt before, in the model's fit" in message
    assert "sample 0" in message


def test_rows_without_ids_are_told_apart_by_their_table(
    write: Callable[..., Path], refused: Callable[..., str]
) -> None:
    table = "features.a,features.b,candidates\n" + "".join(f"{i},{i % 3},x|y\n{-i},{i % 3},y\n" for i in range(20))
    model = Model.fit(read_table(write("monday.csv", table)), device="cpu", settings=QUICK)
    model = model.update(read_table(write("tuesday.csv", table)), device="cpu")
    assert len(set(model.records.ids)) == 80
    assert "was learnt before" in refused(model.update, read_table(write("monday.csv", table)), device="cpu")


def test_the_same_table_is_known_by_another_path(
    write: Callable[..., Path], refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("monday.csv", "features.a,candidates\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(20)))
    monkeypatch.chdir(path.parent)
    model = Model.fit(read_table(Path("monday.csv")), device="cpu", settings=QUICK)
    assert model.records.ids[0] == "monday.csv:2"
    message = refused(model.update, read_table(path), device="cpu")
    assert "was learnt before" in message
    assert "add a column 'id', or rename the table" in message
    assert unlearnt(model, read_table(path)) == []


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_ids_that_look_like_row_numbers_are_ids(write: Callable[..., Path], ending: str) -> None:
    """A JSON Lines file counts from 1, and so do many ids."""
    rows = [{"id": str(i), "features.a": i, "candidates": "x" if i % 2 else "x|y"} for i in range(1, 21)]
    text = "\n".join(map(json.dumps, rows))
    if ending == "csv":
        text = "id,features.a,candidates\n" + "\n".join(",".join(map(str, row.values())) for row in rows)
    samples = read_table(write(f"t.{ending}", text))
    model = Model.fit(samples, device="cpu", settings=QUICK).decide(Decisions.of(["5"], ["y"]), device="cpu")
    assert model.records.ids == [row["id"] for row in rows]
    assert model.records.labels(model.names)[4] == "y"


def test_a_memory_smaller_than_the_classes_is_refused_or_warned_of() -> None:
    with pytest.raises(ConfigError, match=r"holds 3 samples, but there are 4 classes\. Set memory\.size to 4"):
        fit(**{"memory.size": 3})
    model = fit(**{"memory.size": 5})
    with pytest.warns(UserWarning, match="memory holds 5 samples, but there are 8 classes"):
        model = model.update(batch(1), device="cpu")
    assert model.records.in_memory.sum() == 5


class Stops(Silent):
    """A reporter that sends a signal after the first epoch."""

    def __init__(self, number: int) -> None:
        self.number, self.ended = number, False

    def epoch(self, position: Position, record: dict[str, Any]) -> None:
        assert 0 <= record["confidence"] <= 1
        os.kill(os.getpid(), self.number)

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_an_update_cleanly(first: Model, tmp_path: Path, number: int) -> None:
    first.save(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    reporter, handler = Stops(number), signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        Model.load(tmp_path).update(batch(1), device="cpu", reporter=reporter).save(tmp_path)
    assert caught.value.signal == number
    assert reporter.ended
    assert signal.getsignal(number) == handler
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_features_are_found_by_name(write: Callable[..., Path], refused: Callable[..., str]) -> None:
    rows = [f"{i % 7},{(i * 5) % 11},{'x' if i % 7 > 3 else 'y'}\n" for i in range(60)]
    table = write("ab.csv", "features.a,features.b,candidates\n" + "".join(rows))
    model = Model.fit(read_table(table), device="cpu", settings=QUICK)
    swapped = "".join(",".join((row.split(",")[1], row.split(",")[0], row.split(",")[2])) for row in rows)
    other = read_table(write("ba.csv", "features.b,features.a,candidates\n" + swapped))
    same = model.predict(other, device="cpu").probabilities
    assert np.array_equal(same, model.predict(read_table(table), device="cpu").probabilities)
    wrong = read_table(write("ac.csv", "features.a,features.c,candidates\n" + "".join(rows)))
    for use in (model.update, model.predict):
        assert "lacks 'b' and adds 'c'" in refused(use, wrong, device="cpu")
        assert "holds images, but the model learnt features" in refused(use, from_arrays(IMAGES[:5]))
    assert "3 features and the model 2" in refused(model.predict, from_arrays(np.zeros((2, 3))))


def test_images_are_kept_as_bytes_and_need_no_table() -> None:
    model = Model.fit(from_arrays(IMAGES[:100], sets(Y[:100], 10)), device="cpu", settings=QUICK)
    assert (model.kind, model.shape) == ("images", (1, 8, 8))
    kept = next(tensor for name, tensor in model.tensors.items() if name.endswith("samples"))
    assert kept.dtype == torch.uint8
    assert kept.shape[1:] == (1, 8, 8)
    assert model.mean[0] == pytest.approx(IMAGES[:100].mean() / 255)
    assert model.std[0] == pytest.approx((IMAGES[:100] / 255).std())
    larger = np.kron(IMAGES[:20], np.ones((2, 2))).astype(np.uint8)  # other sizes become the model's
    small = model.predict(from_arrays(IMAGES[:20]), device="cpu").probabilities
    assert np.abs(small - model.predict(from_arrays(larger), device="cpu").probabilities).mean() < 0.1


def test_arrays_without_ids_are_told_apart_by_their_update() -> None:
    model = Model.fit(from_arrays(IMAGES[:40], sets(Y[:40], 10)), device="cpu", settings=QUICK)
    model = model.update(from_arrays(IMAGES[40:80], sets(Y[40:80], 10)), device="cpu")
    assert (model.records.ids[0], model.records.ids[-1]) == ("1:0", "2:39")


def test_votes_on_image_files_update_a_model(write: Callable[..., Path], photos: Path) -> None:
    names = [f"photos/{i}.png,{who},{i % 2 if who == 'ann' else i % 3}\n" for i in range(10) for who in ("ann", "ben")]
    samples = read_votes(write("votes.csv", "sample,annotator,label\n" + "".join(names)))
    model = Model.fit(samples, device="cpu", settings=QUICK)
    assert model.records.source[0].endswith("votes.csv")
    assert model.records.ids[0] == "photos/0.png"


def test_broken_images_stop_a_fit_or_are_skipped(write: Callable[..., Path], photos: Path) -> None:
    (photos / "3.png").write_bytes((photos / "3.png").read_bytes()[:60])  # its head is whole
    table = write("t.csv", "image,candidates\n" + "".join(f"photos/{i}.png,{i % 2}\n" for i in range(10)))
    with pytest.raises(DataError, match=r"row 5: image .*3\.png"):
        Model.fit(read_table(table), device="cpu", settings=QUICK)
    model = Model.fit(read_table(table), device="cpu", settings=QUICK, skip_bad=True)
    assert len(model.records) == 9
    assert [row for row, _ in model.skipped] == [5]


def test_a_sample_without_candidates_is_refused(first: Model, refused: Callable[..., str]) -> None:
    assert "sample 0: no candidates" in refused(first.update, from_arrays(X[:2]), device="cpu")


def test_one_sample_is_enough_for_an_update(first: Model) -> None:
    later = first.update(from_arrays(X[[5]], ["a new one"], allow_one_class=True), device="cpu")
    assert later.names[-1] == "a new one"
    assert not later.known[-1]


def test_the_package_offers_the_model() -> None:
    assert ipll.Model is Model


@pytest.mark.parametrize("method", sorted(method_table()))
def test_every_method_is_an_engine(method: str) -> None:
    settings = {"train.epochs": 2, "train.batch_size": 32, "train.threads": 1, "train.steps_per_epoch": 2}
    if "pico" in method:
        settings |= {"auxiliary.contrastive.queue": 64}
    model = Model.fit(batch(0, 40), method=method, device="cpu", settings=settings)
    for t in (1, 2):  # the third batch makes the head grow
        model = model.update(batch(t, 40), device="cpu")
    predictions = model.predict(held_out(10), device="cpu")
    assert np.allclose(predictions.probabilities.sum(1), 1, atol=1e-5)
    assert np.array_equal(predictions.probabilities.argmax(1), predictions.classes)
    assert np.isfinite(predictions.distance).any()
    assert 0 < model.temperature < np.inf
    assert (model.records.label >= 0).all()


def test_no_class_of_images_vanishes_where_every_sample_has_several_candidates() -> None:
    """Four digits, thirty of each, and two false candidates of the three that there are."""
    rng = np.random.default_rng(1)
    rows = np.concatenate([np.flatnonzero(digit == Y)[:30] for digit in range(4)])
    given = [sorted({int(y), *rng.choice([c for c in range(4) if c != y], 2, replace=False).tolist()}) for y in Y[rows]]
    model = Model.fit(from_arrays(IMAGES[rows], given), device="cpu", settings={"train.epochs": 60, "train.threads": 1})
    settled = np.array([int(model.names[k]) for k in model.records.label])
    assert (np.bincount(settled, minlength=4) > 20).all()
    assert (settled == Y[rows]).mean() > 0.9


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("1", "1.0", "refused"),
        ("1.0", "1", "refused"),
        ("7", "007", "is the same number as '7'"),
        ("1.1", "1.10", "is the same number as '1.1'"),
        ("1", "1_0", ""),
        ("Fr\u00fchling", "Fru\u0308hling", "refused"),
        ("Robin", "robin", "differs only in case or spaces from 'Robin'"),
        ("Robin", "Wren", ""),
    ],
)
def test_a_class_that_is_written_otherwise_is_not_new(first: Model, before: str, now: str, told: str) -> None:
    """A table that pandas wrote has '1.0' where there was '1': no model has its classes doubled unasked."""
    model = replace(first, names=(before, *first.names[1:]))
    later = from_arrays(X[:20], [[now, first.names[1]]] * 20, ids=[f"later {i}" for i in range(20)])
    if told == "refused":
        with pytest.raises(DataError, match="would be new, but the model knows"):
            model.update(later, device="cpu")
    elif told:
        with pytest.warns(UserWarning, match=f"the class '{now}' is new, and {told}, which the model knows"):
            assert now in model.update(later, device="cpu").names
    else:
        assert now in model.update(later, device="cpu").names
