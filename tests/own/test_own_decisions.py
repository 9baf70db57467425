"""What people decide: read with care, and for good in records, memory and training."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from irises import QUICK, rows_of
from sklearn.datasets import load_digits, load_iris
from test_own_pending import StopAfter, assert_same

from ipll import IncrementalClassifier
from ipll.engine.sealed import read_sealed, write_sealed
from ipll.errors import DataError, Interrupted
from ipll.own import Decisions, Model, Samples, from_arrays, read_decisions
from ipll.own.audit import audit_table
from ipll.own.audit.order import asking_order, spread
from ipll.own.decisions import NONE, audit_id, told
from ipll.own.training import Learnt, Update

X, Y = load_iris(return_X_y=True)
EPOCHS = {"train.epochs": 4, "train.batch_size": 16}


def batch(t: int, classes: int = 3) -> Samples:
    rows = [i for i in range(t, len(X), 2) if Y[i] < classes]
    sets = [sorted({str(Y[i]), str(i // 2 % classes)}) for i in rows]
    return from_arrays(X[rows].astype(np.float32), sets, ids=[f"flower {i}" for i in rows])


def fit(**more: Any) -> Model:
    return Model.fit(batch(0), device="cpu", settings=EPOCHS, **more)


@pytest.fixture(scope="module")
def model() -> Model:
    return fit()


def state_of(model: Model, name: str) -> dict[str, Any]:
    """-> what records and memory hold of a sample."""
    row = model.records.ids.index(name)
    kept = model.tensors["module.memory.ids"].tolist()
    place = kept.index(row) if row in kept else None
    in_memory = None if place is None else [
        model.names[c] for c in model.tensors["module.memory.candidates"][place].nonzero()[:, 0].tolist()
    ]  # fmt: skip
    return {
        "set": sorted(model.records.candidates(model.names)[row]), "label": model.names[model.records.label[row]],
        "confidence": float(model.records.confidence[row]), "memory": None if in_memory is None else sorted(in_memory),
    }  # fmt: skip


def said(ids: list[str], classes: list[str | None], who: str = "ann") -> Decisions:
    return Decisions.of(ids, classes, who)


def test_nothing_is_left_to_learn_from() -> None:
    samples = batch(0)
    with pytest.raises(DataError, match="all its samples were decided to be of none of their classes"):
        fit(decisions=said(list(samples.ids), [NONE] * len(samples)))


@pytest.mark.parametrize("method", ["auto", "pgdr/robust", "proden+er-ace"])
def test_a_decided_sample_is_of_that_class_for_good(method: str) -> None:
    settings = EPOCHS | ({"disambiguation.miss_rate": 0.2} if method == "pgdr/robust" else {})
    model = Model.fit(batch(0), device="cpu", settings=settings, method=method)
    decided = model.decide(said(["flower 0", "flower 2"], ["2", "0"]), device="cpu")
    expected = {"set": ["2"], "label": "2", "confidence": 1.0, "memory": ["2"]}
    assert state_of(decided, "flower 0") == expected  # although the data say otherwise
    later = decided.update(batch(1), device="cpu")
    assert state_of(later, "flower 0") == expected
    assert state_of(later, "flower 2")["set"] == ["0"]
    assert (model.updates, decided.updates, later.updates) == (1, 2, 3)
    assert state_of(model, "flower 0")["set"] != ["2"]  # the model that was is as it was


def test_decisions_on_images_that_are_learnt_from_pixels(tmp_path: Path, main: Any) -> None:
    """No image comes with them: the model goes on with those of its memory."""
    pictures, labels = load_digits(n_class=3, return_X_y=True)
    images = (pictures[:90].reshape(-1, 1, 8, 8) * 15).astype(np.uint8)
    sets = [sorted({str(y), str(i % 3)}) for i, y in enumerate(labels[:90].tolist())]
    given = from_arrays(images, sets, ids=[f"page {i}" for i in range(90)])
    model = Model.fit(given, device="cpu", settings={"train.epochs": 1, "memory.size": 60})
    name = model.records.ids[int(np.flatnonzero(model.records.in_memory)[0])]
    decided = model.decide(said([name], ["2"]), device="cpu")
    assert state_of(decided, name) == {"set": ["2"], "label": "2", "confidence": 1.0, "memory": ["2"]}
    assert decided.updates == 2
    model.save(tmp_path / "pages.model")
    (tmp_path / "said.csv").write_text(f"id,class\n{name},(none of these)\n")
    done = main("update", tmp_path / "pages.model", "--decisions", tmp_path / "said.csv", "--device", "cpu")
    assert done.status == 0, done.err
    assert state_of(Model.load(tmp_path / "pages.model"), name)["memory"] is None


@pytest.mark.parametrize("method", ["auto", "pgdr/robust"])
def test_training_that_looks_for_misses_does_not_doubt_people(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All along, from the memory too: what training itself leaves of decided sets, which the data speak against."""
    left: list[Learnt] = []
    run = Update.run

    def watched(self: Update) -> Learnt:
        left.append(run(self))
        return left[-1]

    monkeypatch.setattr(Update, "run", watched)
    settings = {"train.epochs": 20, "train.batch_size": 16, "disambiguation.miss_rate": 0.3}
    ids = [f"flower {i}" for i in range(0, 12, 2)]  # all of them of class 0
    ann, ben = said(ids, ["2"] * 6), said(ids[:3], ["1"] * 3, "ben")
    options: dict[str, Any] = {"device": "cpu", "settings": settings, "method": method}
    decided = Model.fit(batch(0), decisions=ann, **options).decide(ben, device="cpu").update(batch(1), device="cpu")
    for learnt, disputed in zip(left, (["2"], ["1", "2"], ["1", "2"]), strict=True):
        sets, p, kept = (learnt.tensors[f"module.memory.{name}"] for name in ("candidates", "p", "ids"))
        for row in range(6):
            here = int((kept == row).nonzero())
            expected = disputed if row < 3 else ["2"]
            assert sorted(decided.names[c] for c in sets[here].nonzero()[:, 0].tolist()) == expected, row
            assert not p[here][~sets[here]].any()


def test_none_of_these_is_not_learnt_from_and_counts_as_a_miss(model: Model) -> None:
    decided = model.decide(said(["flower 4"], [None]), device="cpu")
    assert state_of(decided, "flower 4")["memory"] is None
    assert len(decided.tensors["module.memory.ids"]) == len(model.records) - 1
    assert (told(decided.decisions).none, told(decided.decisions).missed) == (1, 1)
    again = fit(decisions=said(["flower 4"], [None]))
    assert state_of(again, "flower 4")["memory"] is None
    assert len(again.records) == len(model.records)


def test_people_who_disagree_leave_a_set_of_both(model: Model) -> None:
    ann, ben = said(["flower 0", "flower 2"], ["1", "1"]), said(["flower 0", "flower 2"], ["2", "1"], "ben")
    decided = model.decide(ann, device="cpu").decide(ben, device="cpu")
    assert state_of(decided, "flower 0")["set"] == state_of(decided, "flower 0")["memory"] == ["1", "2"]
    assert state_of(decided, "flower 2")["set"] == ["1"]
    assert told(decided.decisions).disputed == 1
    assert told(decided.decisions).by == {"ann": 2, "ben": 2}
    changed = decided.decide(said(["flower 0"], ["2"]), device="cpu")  # ann looks again
    assert state_of(changed, "flower 0")["set"] == ["2"]
    one_file = Decisions(*(a + b if isinstance(a, list) else a for a, b in zip(ann, ben, strict=True)))
    assert state_of(model.decide(one_file, device="cpu"), "flower 0")["set"] == ["1", "2"]


def test_what_stood_there_before_is_remembered(model: Model) -> None:
    before = state_of(model, "flower 0")
    decided = model.decide(said(["flower 0"], ["2"]), device="cpu").decide(said(["flower 0"], ["1"]), device="cpu")
    (one,) = decided.decisions
    assert (one.was, sorted(one.candidates), one.name) == (before["label"], before["set"], "1")


def test_a_table_that_the_memory_keeps_is_learnt_anew(model: Model) -> None:
    """So that nothing that was settled holds back what the decisions say: as a fit with them."""
    chosen = {"model.inputs": "z-scores", "augment.drop": 0.0, "disambiguation.prior": 0.0}
    settings, decisions = EPOCHS | chosen, said(["flower 0", "flower 2"], ["2", "0"])
    whole = Model.fit(batch(0), device="cpu", settings=settings, decisions=decisions)
    decided = Model.fit(batch(0), device="cpu", settings=settings).decide(decisions, device="cpu")
    for name, tensor in whole.tensors.items():
        if name.startswith("module.network."):
            assert torch.equal(tensor, decided.tensors[name]), name
    assert np.array_equal(whole.records.label, decided.records.label)


def test_what_is_not_in_the_memory_changes_its_record_alone() -> None:
    model = fit(method="pgdr/no-memory")
    decided = model.decide(said(["flower 0"], ["2"]), device="cpu")
    assert decided.updates == 1
    assert state_of(decided, "flower 0") == {"set": ["2"], "label": "2", "confidence": 1.0, "memory": None}
    assert decided.tensors.keys() == model.tensors.keys()


def test_an_update_takes_decisions_on_old_and_new_samples_and_new_classes(model: Model) -> None:
    first = Model.fit(batch(0, classes=2), device="cpu", settings=EPOCHS)
    assert first.names == ("0", "1")
    decided = first.update(batch(1), decisions=said(["flower 0", "flower 1"], ["2", "2"]), device="cpu")
    assert decided.updates == 2
    assert state_of(decided, "flower 0")["set"] == state_of(decided, "flower 1")["memory"] == ["2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,class\n,1\nflower 0,\n", "row 2: no id"),
        ("id,class\nflower 0,\n", f"row 2: no class. Write a class or '{NONE}'"),
        ("id\nflower 0\n", "no column 'class'"),
        ("id,class,sure\nflower 0,1,yes\n", "unknown column 'sure'"),
        ("id,class\nflower 0,1\nflower 999,1\n", "row 3: there is no sample 'flower 999'"),
        ("id,class\nflower 0,tulip\n", "row 2: there is no class 'tulip'"),
        (
            "id,class\nflower 0,01\n",
            "or '(none of these)'. Did you mean",
        ),
        ("id,class,who\nflower 0,1,ann\nflower 0,2,ann\n", "row 3: 'flower 0' is decided twice by 'ann'"),
        ("id,class,audit\nflower 0,1,75-000000000000\n", "row 2: the decision was made on the audit of another model"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_row(
    model: Model, write: Callable[..., Path], text: str, message: str
) -> None:
    path = write("decisions.csv", text)
    with pytest.raises(DataError) as caught:
        model.decide(read_decisions(path), device="cpu")
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_decisions_on_an_earlier_audit_of_the_same_samples_count(model: Model, write: Callable[..., Path]) -> None:
    audit = audit_id(model.records.ids)
    path = write("decisions.csv", f"id,class,who,when,audit\nflower 0,{NONE},ann,2026-01-01T00:00:00Z,{audit}\n")
    later = model.update(batch(1), device="cpu")
    for other in (later, fit(method="proden")):
        (one,) = other.decide(read_decisions(path), device="cpu").decisions
        assert (one.name, one.who, one.when) == (None, "ann", "2026-01-01T00:00:00Z")
    mixed = replace(model.records, ids=model.records.ids[::-1])
    with pytest.raises(DataError, match="another model"):
        replace(model, records=mixed).decide(read_decisions(path), device="cpu")


def test_a_folder_keeps_who_said_what_and_older_ones_open(model: Model, tmp_path: Path) -> None:
    decided = model.decide(said(["flower 0", "flower 4"], ["2", None]), device="cpu")
    decided.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.decisions == decided.decisions
    assert_same(loaded, decided)
    facts = read_sealed(tmp_path / "m" / "model.json")
    for key in ("decisions", "voted"):
        facts.pop(key)
    write_sealed(tmp_path / "m" / "model.json", facts)
    assert Model.load(tmp_path / "m").decisions == ()
    facts["decisions"] = [[999, "2", "", "", "", []]]
    write_sealed(tmp_path / "m" / "model.json", facts)
    with pytest.raises(DataError, match="names a sample or a class that the model does not have"):
        Model.load(tmp_path / "m")


@pytest.mark.parametrize("samples", [None, batch(1)])
def test_a_stopped_update_goes_on_to_the_same_bits_with_the_same_decisions(
    model: Model, tmp_path: Path, samples: Samples | None
) -> None:
    decisions = said(["flower 0", "flower 4"], ["2", None])
    whole = model.update(samples, decisions=decisions, device="cpu")
    options: dict[str, Any] = {"device": "cpu", "pending": tmp_path / "p"}
    with pytest.raises(Interrupted):
        model.update(samples, decisions=decisions, reporter=StopAfter(2), **options)
    rest = StopAfter(0)
    assert_same(model.update(samples, decisions=decisions, reporter=rest, **options), whole)
    assert rest.seen == [3, 4]
    other = StopAfter(0)
    model.update(samples, decisions=said(["flower 0"], ["1"]), reporter=other, **options)
    assert other.seen == [1, 2, 3, 4]


def test_what_is_certain_is_the_same_after_a_stop(tmp_path: Path) -> None:
    settings = EPOCHS | {"disambiguation.miss_rate": 0.3, "model.inputs": "z-scores", "augment.drop": 0.0}
    given: dict[str, Any] = {"device": "cpu", "settings": settings}
    single = batch(0).ids[int(np.flatnonzero(batch(0).candidates.sum(1) == 1)[0])]
    decisions = said([single], [state_of(Model.fit(batch(0), **given), single)["set"][0]])  # as it came, and now sure
    whole = Model.fit(batch(0), decisions=decisions, **given)
    with pytest.raises(Interrupted):
        Model.fit(batch(0), decisions=decisions, reporter=StopAfter(2), pending=tmp_path, **given)
    rest, other = StopAfter(0), StopAfter(0)
    assert_same(Model.fit(batch(0), decisions=decisions, reporter=rest, pending=tmp_path, **given), whole)
    assert rest.seen == [3, 4]
    Model.fit(batch(0), reporter=other, pending=tmp_path, **given)  # the same sets, but doubted
    assert other.seen == [1, 2, 3, 4]


def test_commands_take_decisions_and_tell_of_them(here: Path, model_folder: Path, main: Any) -> None:
    before = (model_folder / "model.json").read_bytes()
    (here / "bad.csv").write_text("id,class\nflower0,tulip\n")
    refused = main("update", "model", "--decisions", "bad.csv")
    assert refused.status == 2
    assert "bad.csv, row 2: there is no class 'tulip'" in refused.err
    assert (model_folder / "model.json").read_bytes() == before
    (here / "decisions.csv").write_text(f"id,class,who\nflower0,versicolor,ann\nflower1,{NONE},ben\n")
    status, out, err = main("update", "model", "--decisions", "decisions.csv", "--device", "cpu")
    assert status == 0, err
    assert "Decided by people: 2 samples, by ann (1), ben (1)" in out
    _, out, _ = main("info", "model")
    assert "1 as another class, 1 none of these, and out of training" in out
    assert "one fit and 1 update" in out
    assert main("audit", "model", "--out", "audit.csv").status == 0
    rows = {row["id"]: row for row in rows_of(here / "audit.csv")}
    assert (rows["flower0"]["label"], rows["flower0"]["decided"]) == ("versicolor", "versicolor")
    assert rows["flower1"]["decided"] == NONE
    assert rows["flower1"]["decided_by"].startswith("ben")
    assert [*rows][-2:] == ["flower1", "flower0"]  # nobody needs to look at them again
    assert main("fit", "first.csv", "--decisions", "decisions.csv", "--out", "new", *QUICK).status == 0
    assert read_sealed(here / "new" / "model.json")["decisions"][0][1] == "versicolor"
    assert main("update", "model", "second.csv", "--decisions", "decisions.csv", "--device", "cpu").status == 0


@pytest.fixture
def model_folder(here: Path, fitted: Path) -> Path:
    shutil.copytree(fitted, here / "model")
    return here / "model"


def test_the_estimator_decides(tmp_path: Path) -> None:
    sets = [sorted({int(y), int(i) % 3}) for i, y in enumerate(Y)]
    learner = IncrementalClassifier(epochs=4, random_state=0, device="cpu").fit(X, sets)
    assert learner.decide(["1:0", "1:5"], [2, None], who="ann") is learner
    assert learner.pseudo_labels_[0] == 2
    assert len(learner.pseudo_labels_) == len(X)
    with pytest.raises(DataError, match="there is no class '7'"):
        learner.decide(["1:0"], [7])
    with pytest.raises(DataError, match="2 ids and 1 classes"):
        learner.decide(["1:0", "1:1"], [1])
    assert learner.predict(X[:3]).dtype == learner.classes_.dtype


def test_classes_are_decided_by_the_labels_they_were_learnt_by() -> None:
    """1.0 is the class that was read as 1."""
    learner = IncrementalClassifier(epochs=2, random_state=0, device="cpu").fit(X, Y.astype(float))
    learner.decide(["1:0", "1:5"], [learner.classes_[2], learner.classes_[1]])
    assert learner.pseudo_labels_[[0, 5]].tolist() == [2.0, 1.0]


def test_the_order_of_asking_is_doubt_spread_over_classes() -> None:
    """Against a loop that anyone can read."""
    rng = np.random.default_rng(0)
    doubt, label, open_ = rng.random(200), rng.integers(0, 5, 200), rng.random(200) < 0.9
    expected = np.zeros(200)
    for c in range(5):
        rows = [i for i in np.argsort(-doubt) if label[i] == c and open_[i]]
        total, before = sum(doubt[i] for i in rows), 0.0
        for i in rows:
            expected[i] = doubt[i] * (1 - before / total / 2)
            before += doubt[i]
    assert np.allclose(spread(doubt, label, open_), expected)


def test_near_duplicates_are_asked_once_and_decided_samples_never() -> None:
    twice = np.concatenate([X, X[:20]]).astype(np.float32)
    sets = [sorted({str(Y[i % 150]), str((Y[i % 150] + 1) % 3)}) for i in range(170)]
    samples = from_arrays(twice, sets, ids=[f"f{i}" for i in range(170)])
    model = Model.fit(samples, device="cpu", settings=EPOCHS)
    order = asking_order(model).tolist()
    assert sorted(order) == list(range(170))
    late = set(order[140:])
    assert all(i in late or i + 150 in late for i in range(20))
    decided = model.decide(said(["f3"], [None]), device="cpu")
    assert 3 not in asking_order(decided).tolist()
    assert audit_table(decided)["id"].to_pylist()[-1] == "f3"


def test_names_that_look_like_formulas_come_back(write: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "class"], ["'=a", "'+b"], ["7", "-1"]])
    found = read_decisions(path)
    assert (found.ids, found.names) == (["=a", "7"], ["+b", "-1"])
