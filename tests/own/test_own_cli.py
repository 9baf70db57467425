"""The commands for people's own data: what they print, write and refuse."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from irises import NAMES, QUICK, iris_rows, rows_of, write_csv
from PIL import Image
from sklearn.datasets import load_digits

from ipll.cli.own_settled import settled_lines
from ipll.data.pictures import read_picture
from ipll.engine.sealed import read_sealed, write_sealed
from ipll.own.model import Model

# A plugin that takes its time, in naps: a signal that comes just before one sleeps is heard only after it.
WAITS = """
import time
from pathlib import Path
Path("waits").touch()
for _ in range(600):
    time.sleep(0.1)
"""

# Fit


def test_fit_says_what_it_did(main: Any, here: Path) -> None:
    status, out, err = main("fit", "first.csv", "--out", "model", *QUICK)
    assert status == 0, err
    assert "Read first.csv: 80 samples of 4 features to learn from, 2 classes" in out
    assert "Not learnt from: 20 of the split 'test'" in out
    assert "Not learnt from: 3 of the split 'later'" in out
    assert "Settings chosen from the data" in out
    assert "wide-deep" in out
    assert "Set by you: train.epochs=6" in out
    assert "Settled on a label for 80 samples: " in out
    assert "on 20 rows of the split 'test'" in out
    for command in ("ipll predict model ", "ipll audit model ", "ipll update model "):
        assert command in out
    assert "6 epochs" in err
    model = Model.load("model")
    assert model.names == NAMES[:2]
    assert len(model.records) == 80


def test_labels_and_other_splits_change_nothing(main: Any, here: Path) -> None:
    """The learner sees neither: a table without them gives the same model, bit for bit."""
    rows = [row | {"label": ""} for row in rows_of(Path("first.csv")) if row["split"] == "train"]
    write_csv(here / "bare.csv", [{k: v for k, v in row.items() if k != "split"} for row in rows])
    for table in ("first", "bare"):
        assert main("fit", f"{table}.csv", "--out", table, *QUICK).status == 0
    one, other = (Model.load(name).tensors for name in ("first", "bare"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key].numpy(), other[key].numpy(), equal_nan=True) for key in one)


def test_labels_that_contradict_their_sets(main: Any, here: Path) -> None:
    """They are counted, and no more: of what is wrong with sets, networks that learn from them know nothing."""
    rows = iris_rows(range(80), NAMES[:2])
    for k, row in enumerate(rows):
        if k % 4 == 0:
            row["candidates"] = "versicolor" if row["label"] == "setosa" else "setosa"
    rows[3]["label"] = "virginica"
    write_csv(here / "wrong.csv", rows)
    out = main("fit", "wrong.csv", "--out", "m", *QUICK).out
    assert "Labels outside their candidates in 26.2 % of rows: the sets miss the truth." in out
    assert "Say so with ipll fit --miss-rate 0.26." in out
    assert "Labels outside" not in main("fit", "wrong.csv", "--out", "n", "--miss-rate", "0.2", *QUICK).out
    assert "Labels outside" not in main("fit", "first.csv", "--out", "o", *QUICK).out


def test_what_has_one_candidate_is_judged_too(main: Any, here: Path) -> None:
    rows = [row | {"candidates": row["label"]} for row in iris_rows(range(80), NAMES[:2])]
    write_csv(here / "single.csv", rows)
    out = main("fit", "single.csv", "--out", "m", *QUICK).out
    assert "Settled on a label for 80 samples: 80 sure (up to 5 % wrong), 0 likely" in out
    assert "Expected to be wrong: 0" in out
    assert "seem to be wrong" not in out


@pytest.mark.parametrize(("confidence", "said"), [(0.5, "0 or 1 of them (50.0 %)"), (0.99, "0 of them (1.0 %)")])
def test_what_one_sample_is_expected_to_be(model: Path, confidence: float, said: str) -> None:
    learnt = Model.load(model)
    last = np.array([len(learnt.records) - 1])
    update = learnt.records.update.copy()
    update[last] = 2
    records = replace(learnt.records.assured(last, np.array([confidence], np.float32), last * 0), update=update)
    one = replace(learnt, records=records, updates=2)
    sizes = np.diff(records.offsets)
    if sizes[last[0]] == 1:
        one = replace(one, voted=(2,))
    assert f"Expected to be wrong: {said}" in "\n".join(settled_lines(one, None))


def test_fit_does_not_replace_anything(main: Any, model: Path, here: Path, snapshot: Any) -> None:
    before = snapshot(model)
    status, _, err = main("fit", "first.csv", "--out", model)
    assert status == 2
    assert "model already holds a model" in err
    assert "--overwrite" in err
    assert "ipll update model" in err
    assert snapshot(model) == before
    assert main("fit", "first.csv", "--out", model, "--overwrite", "--seed", "1", *QUICK).status == 0
    assert Model.load(model).config.seed == 1
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter.txt").write_text("1")
    status, _, err = main("fit", "first.csv", "--out", "thesis", "--overwrite")
    assert (status, "thesis holds other files" in err) == (2, True)
    status, _, err = main("fit", "first.csv", "--out", "first.csv")
    assert (status, "first.csv is a file" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to learn from. Give a TABLE, or raw votes with --votes FILE"),
        (["missing.csv"], "cannot read missing.csv"),
        (["first.csv", "--min-votes", "2"], "--min-votes counts raw votes"),
        (["missing.csv", "--method", "pgdx"], "unknown method 'pgdx'. Did you mean 'pgdr'?"),
        (["missing.csv", "--set", "train.epoch=3"], "train.epochs"),  # before anything is read
        (["first.csv", "--set", "stream.tasks=3"], "stream.tasks"),
        (["missing.csv", "--miss-rate", "10"], "ipll: --miss-rate must be in [0, 0.5), got 10.0"),
        (["first.csv", "--memory", "1"], "Set --memory to 2 or more"),
        (["first.csv", "--set", "memory.size=1"], "Set memory.size to 2 or more"),
        (["first.csv", "--miss-rate", "0.1", "--method", "proden"], "the method 'proden' cannot use it"),
    ],
)
def test_fit_refuses(main: Any, here: Path, arguments: list[str], says: str) -> None:
    status, _, err = main("fit", *arguments, "--out", "model")
    assert status == 2
    assert says in err
    assert "Traceback" not in err
    assert not Path("model").exists()


def test_rows_that_are_learnt_from_need_candidates_and_others_do_not(main: Any, here: Path) -> None:
    rows = rows_of(Path("first.csv"))
    for row in rows:
        row["candidates"] = "" if row["split"] != "train" else row["candidates"]
    write_csv(here / "tested.csv", rows)
    assert main("fit", "tested.csv", "--out", "model", *QUICK).status == 0
    rows[2]["candidates"] = " "
    write_csv(here / "tested.csv", rows)
    status, _, err = main("fit", "tested.csv", "--out", "other")
    assert status == 2
    assert "tested.csv, row 4: no candidates" in err
    write_csv(here / "tested.csv", [row | {"split": "test"} for row in rows])
    assert "nothing to learn from" in main("fit", "tested.csv", "--out", "other").err
    write_csv(
        here / "tested.csv", [r | {"candidates": "setosa" if r["split"] == "train" else "setosa|x"} for r in rows]
    )
    assert "one class only, 'setosa'" in main("fit", "tested.csv", "--out", "other").err


def test_misses(main: Any, here: Path) -> None:
    assert main("fit", "first.csv", "--out", "model", "--miss-rate", "0.1", *QUICK).status == 0
    assert Model.load("model").config.to_table()["disambiguation"]["miss_rate"] == 0.1


def test_votes_say_how_often_people_miss(main: Any, here: Path) -> None:
    rows = [row for row in rows_of(Path("first.csv")) if row["split"] == "train"]
    write_csv(Path("samples.csv"), [{k: v for k, v in row.items() if k not in ("candidates", "split")} for row in rows])
    votes = [{"sample": r["id"], "annotator": n, "label": n} for r in rows for n in r["candidates"].split("|")]
    write_csv(Path("votes.csv"), votes)
    untried = [f"--set={one}" for one in ("augment.drop=0.0", "model.inputs=z-scores", "disambiguation.prior=0.0")]
    command, unused = ("fit", "samples.csv", "--votes", "votes.csv", *untried, *QUICK), "for samples without votes"
    assert unused not in main(*command, "--out", "plain").err
    assert unused in main(*command, "--out", "other", "--miss-rate", "0.1").err
    one, other = (Model.load(name).records for name in ("plain", "other"))
    assert np.array_equal(one.confidence, other.confidence)
    counts = ("--miss-rate", "0.1", "--method", "pgdr/robust")  # also with votes
    assert unused not in main(*command, "--out", "robust", *counts).err


@pytest.mark.parametrize("method", ["proden", "pico+icarl"])
def test_other_methods_go_all_the_way(main: Any, here: Path, method: str) -> None:
    """With a memory or without one, with prototypes or without."""
    out = main("fit", "first.csv", "--out", "model", "--method", method, *QUICK).out
    assert ("It keeps none of the 80 samples" in out) == (method == "proden")
    for command in (["update", "model", "second.csv"], ["predict", "model", "second.csv"], ["info", "model"]):
        status, out, err = main(*command)
        assert status == 0, err
        assert "Judged" not in out  # neither method does
    assert main("evaluate", "model", "second.csv").status == 0
    assert main("audit", "model", "--out", "audit.html").status == 0


# Images and votes


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], list[str]]:
    """-> a function that saves digits as files and gives their paths; the folder is the working folder."""
    monkeypatch.chdir(tmp_path)
    digits = load_digits()

    def save(chosen: list[int]) -> list[str]:
        paths = [f"images/{digits.target[i]}/{i}.png" for i in chosen]
        for i, path in zip(chosen, paths, strict=True):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[i] * 15).astype(np.uint8)).save(path)
        return paths

    return save


def votes_on(paths: list[str], path: str = "votes.csv") -> Path:
    """Two annotators are right; a third one says 0 every time."""
    votes = []
    for image in paths:
        truth = Path(image).parent.name
        votes += [{"sample": image, "annotator": a, "label": v} for a, v in (("a", truth), ("b", truth), ("c", "0"))]
    return write_csv(Path(path), votes)


def test_votes_about_images(main: Any, pictures: Any) -> None:
    paths = pictures([i for i in range(150) if load_digits().target[i] < 3])
    votes_on(paths)
    status, out, err = main("fit", "--votes", "votes.csv", "--out", "model", *QUICK)
    assert status == 0, err
    assert f"{len(paths)} images to learn from, 3 classes" in out
    model = Model.load("model")
    assert model.shape == (1, 8, 8)
    assert {len(one) for one in model.records.candidates(model.names)} == {1, 2}
    assert main("fit", "--votes", "votes.csv", "--min-votes", "2", "--out", "sure", *QUICK).status == 0
    sure = Model.load("sure")
    assert list(sure.records.candidates(sure.names)) == [[Path(path).parent.name] for path in paths]
    status, out, err = main("predict", "model", "images", "--out", "images.csv")
    assert status == 0, err
    assert {row["id"] for row in rows_of(Path("images.csv"))} == {path.removeprefix("images/") for path in paths}
    whole = {row["id"]: row for row in rows_of(Path("images.csv"))}
    status, out, err = main("predict", "model", paths[0], "--out", "image.csv")
    assert (status, "image.csv: 1 prediction" in out) == (0, True), err
    (one,) = rows_of(Path("image.csv"))
    assert (one["id"], one["class"]) == (Path(paths[0]).name, whole[paths[0].removeprefix("images/")]["class"])
    Path("broken.png").write_bytes(b"no image")
    status, _, err = main("predict", "model", "broken.png")
    assert (status, "broken.png" in err) == (2, True)


def test_votes_about_a_table(main: Any, here: Path) -> None:
    rows = [row for row in rows_of(Path("first.csv")) if row["split"] == "train"]
    write_csv(Path("samples.csv"), [{k: v for k, v in row.items() if k not in ("candidates", "split")} for row in rows])
    votes = [(row["id"], name) for row in rows for name in row["candidates"].split("|")]
    write_csv(Path("votes.csv"), [{"sample": i, "annotator": f"a{n}", "label": n} for i, n in votes])
    status, out, err = main("fit", "samples.csv", "--votes", "votes.csv", "--out", "model", *QUICK)
    assert status == 0, err
    assert "ipll update model NEXT_TABLE --votes NEXT_VOTES" in out
    model = Model.load("model")
    learnt = [sorted(names) for names in model.records.candidates(model.names)]
    assert learnt == [sorted(row["candidates"].split("|")) for row in rows]
    for name in ("samples.csv", "votes.csv"):
        head, *lines = Path(name).read_text().splitlines()
        Path(f"more-{name}").write_text("\n".join([head, *(f"more-{line}" for line in lines)]) + "\n")
    status, out, err = main("update", "model", "more-samples.csv", "--votes", "more-votes.csv")
    assert status == 0, err
    assert "ipll update model NEXT_TABLE --votes NEXT_VOTES" in out


def test_broken_images(main: Any, pictures: Any) -> None:
    """A missing one is found by its name, a cut one when it is decoded; both are listed with --skip-bad."""
    paths = pictures([i for i in range(60) if load_digits().target[i] < 2])
    table = [{"image": path, "candidates": Path(path).parent.name} for path in paths]
    write_csv(Path("table.csv"), [*table, {"image": "images/none.png", "candidates": "0"}])
    whole = Path(paths[1]).read_bytes()
    Path(paths[1]).write_bytes(whole[: len(whole) - 30])
    status, _, err = main("fit", "table.csv", "--out", "model", *QUICK)
    assert status == 2
    assert f"row {len(paths) + 2}: image './images/none.png' is missing" in err or "none.png' is missing" in err
    assert "--skip-bad" in err
    status, out, err = main("fit", "table.csv", "--out", "model", "--skip-bad", *QUICK)
    assert status == 0, err
    assert f"row {len(paths) + 2}: image" in out
    assert "row 3: image" in out
    assert len(Model.load("model").records) == len(paths) - 1
    status, _, err = main("predict", "model", "images")
    assert (status, "--skip-bad" in err) == (2, True)
    status, out, _ = main("predict", "model", "images", "--skip-bad", "--out", "p.jsonl")
    assert status == 0
    assert "Skipped 1" in out
    assert len(Path("p.jsonl").read_text().splitlines()) == len(paths) - 1


def test_images_of_the_split_test_are_decoded_once(main: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the model is saved; what is broken among them is listed and costs nothing."""
    paths = pictures([i for i in range(60) if load_digits().target[i] < 2])
    table = [
        {"image": path, "candidates": Path(path).parent.name, "label": Path(path).parent.name} | {"split": split}
        for path, split in zip(paths, ["train", "train", "test"] * len(paths), strict=False)
    ]
    write_csv(Path("table.csv"), table)
    whole = Path(paths[2]).read_bytes()
    Path(paths[2]).write_bytes(whole[: len(whole) - 30])
    decoded: list[str] = []

    def noted(what: Any, *rest: Any, **more: Any) -> Any:
        decoded.append(str(what))
        return read_picture(what, *rest, **more)

    monkeypatch.setattr("ipll.data.pictures.read_picture", noted)
    status, out, err = main("fit", "table.csv", "--out", "model", *QUICK)
    assert status == 0, err
    tests = len(paths) // 3
    assert f"on {tests - 1} rows of the split 'test'" in out
    assert "Skipped 1 that cannot be read:" in out
    assert sorted(decoded) == sorted(set(decoded))
    assert len(decoded) == len(paths)
    for path in paths[2::3]:
        Path(path).write_bytes(whole[: len(whole) - 30])
    status, out, err = main("fit", "table.csv", "--out", "other", *QUICK)
    assert (status, "not evaluated" in err, "The model is in other" in out) == (0, True, True)


def test_image_size(main: Any, pictures: Any) -> None:
    paths = pictures([i for i in range(40) if load_digits().target[i] < 2])
    write_csv(Path("table.csv"), [{"image": path, "candidates": Path(path).parent.name} for path in paths])
    assert main("fit", "table.csv", "--out", "model", "--image-size", "12", *QUICK).status == 0
    assert Model.load("model").shape == (1, 12, 12)


# Update


def test_update_brings_a_class(main: Any, model: Path) -> None:
    status, out, err = main("update", model, "second.csv", "--device", "cpu")
    assert status == 0, err
    assert "Judged before learning: " in out
    updated = Model.load(model)
    assert (updated.names, updated.updates, len(updated.records)) == (NAMES, 2, 117)
    assert not list(model.glob(".*"))  # no lock is left


def test_an_update_in_other_units_is_told(main: Any, model: Path, here: Path) -> None:
    """Of classes that the model knows; what is new may lie anywhere."""
    rows = iris_rows(range(20, 80, 3), NAMES[:2])
    other = [{k: v / 16 if "features" in k else f"{v}" for k, v in row.items()} for row in rows]
    for row in [*rows, *other]:
        row["id"] = f"new {row['id']}"
    write_csv(here / "usual.csv", rows)
    write_csv(here / "units.csv", other)
    shutil.copytree(model, here / "copy")
    done = main("update", model, "units.csv")
    assert done.status == 0
    found = re.search(r"units.csv: of 20 samples whose candidates are all known, (\d+) are unlike anything", done.err)
    assert found is not None
    assert int(found[1]) >= 10
    assert "where 5 % are usual. Look at their units and columns" in done.err
    for table in ("usual.csv", "second.csv"):
        done = main("update", "copy", table)
        assert done.status == 0
        assert "unlike anything learnt" not in done.err


def test_a_star_in_an_update_stands_for_what_the_model_knows_too(main: Any, model: Path, here: Path) -> None:
    rows = iris_rows(range(103, 110), NAMES[2:])
    rows[0]["candidates"] = "*"
    write_csv(here / "star.csv", rows)
    assert main("update", model, "star.csv").status == 0
    learnt = Model.load(model)
    row = learnt.records.ids.index("flower103")
    assert set(learnt.records.candidates(learnt.names)[row]) == set(NAMES)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("first.csv", "row 2: id 'flower0' was learnt before"),
        ("missing.csv", "cannot read missing.csv"),
        ("other.csv", "other.csv has 1 features and the model 4"),
    ],
)
def test_an_update_that_fails_changes_nothing(main: Any, model: Path, snapshot: Any, table: str, says: str) -> None:
    write_csv(Path("other.csv"), [{"candidates": "setosa", "features.a": 1.0}])
    before = snapshot(model)
    status, _, err = main("update", model, table)
    assert status == 2
    assert says in err
    assert snapshot(model) == before


def test_update_of_what_is_no_model(main: Any, here: Path) -> None:
    for name in ("nowhere", "."):
        status, _, err = main("update", name, "first.csv")
        assert (status, "is no model" in err) == (2, True)
    assert not Path("nowhere").exists()


def test_update_of_a_model_that_lacks_a_file(main: Any, model: Path) -> None:
    (model / "state-000001.safetensors").unlink()
    status, _, err = main("update", model, "second.csv")
    assert (status, "damaged: model/state-000001.safetensors is missing. Take it from a copy" in err) == (2, True)


def test_samples_that_were_learnt_are_corrected_by_decisions(main: Any, model: Path, here: Path) -> None:
    """So says the message, and so it is."""
    err = main("update", model, "first.csv").err
    assert "ipll update MODEL --decisions FILE, with the columns id and class" in err
    assert "To add votes on samples that were learnt: ipll fit, with all votes." in err
    (here / "corrected.csv").write_text("id,class\nflower0,versicolor\n")
    assert main("update", model, "--decisions", "corrected.csv").status == 0
    learnt = Model.load(model)
    assert learnt.records.labels(learnt.names)[learnt.records.ids.index("flower0")] == "versicolor"


def test_an_update_by_one_sample(main: Any, model: Path) -> None:
    write_csv(Path("one.csv"), [rows_of(Path("second.csv"))[0] | {"candidates": "virginica"}])
    status, out, err = main("update", model, "one.csv", "--device", "cpu")
    assert status == 0, err
    assert "Read one.csv: 1 sample of 4 features to learn from, 1 class, 1.00 candidates per sample" in out
    assert "Settled on a label for 1 sample: " in out


def test_decisions_that_were_made_before(main: Any, model: Path, snapshot: Any) -> None:
    Path("said.csv").write_text("id,class\nflower0,versicolor\n")
    command = ("update", model, "--decisions", "said.csv", "--device", "cpu")
    assert "Decided by people: 1 sample" in main(*command).out
    before = snapshot(model)
    assert main(*command).out == "All of these were decided already; nothing changed.\n"
    assert snapshot(model) == before


def test_a_disk_that_fills_up_costs_nothing_and_the_same_command_goes_on(
    main: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    command = ("update", model, "second.csv", "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr("ipll.own.folder.save_file", full)
        status, _, err = main(*command)
    assert status == 2
    assert "cannot write model/state-000002.safetensors: No space left on device. Make room" in err
    assert "and run the same command again. model is unchanged." in err
    assert "another place" not in err
    assert main(*command).status == 0


@pytest.mark.parametrize("overwrite", [False, True])
def test_ctrl_c_during_trials_says_what_the_same_command_does(
    main: Any, model: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    def stopped(*_: object, **__: object) -> tuple[()]:
        signal.raise_signal(signal.SIGINT)
        return ()

    monkeypatch.setattr("ipll.own.model.try_settings", stopped)
    where = (model, "--overwrite") if overwrite else ("new",)
    status, _, err = main("fit", "first.csv", "--out", *where, *QUICK)
    left = "model is unchanged." if overwrite else "There is no model yet."
    assert (status, f"Stopped. {left} The same command starts over." in err) == (130, True)


def test_ctrl_c_leaves_the_model_as_it_was(
    launch: Any, fitted: Path, iris: Path, tmp_path: Path, snapshot: Any
) -> None:
    shutil.copytree(fitted, tmp_path / "model")
    write_csv(tmp_path / "long.csv", iris_rows(list(range(103, 140)), NAMES))
    document = read_sealed(tmp_path / "model" / "model.json")
    document["config"]["train"]["epochs"] = document["given"]["train.epochs"] = 100_000
    write_sealed(tmp_path / "model" / "model.json", document)
    before = snapshot(tmp_path / "model")
    process: subprocess.Popen[str] = launch("update", "model", "long.csv", "--device", "cpu")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Read long.csv")  # from here on it learns
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # Python itself may end the second way; shells call both 130
    assert "Stopping" in err.partition("Stopped. model is unchanged.")[0]
    assert "Stopped. model is unchanged." in err
    after = snapshot(tmp_path / "model")
    assert {name: content for name, content in after.items() if not name.startswith(".pending")} == before
    assert ("goes on from here" in err) == any(name.startswith(".pending") for name in after)


def test_ctrl_c_is_heard_at_once_whatever_goes_on(launch: Any, tmp_path: Path) -> None:
    """Here a plugin takes its time: nothing is learnt yet."""
    (tmp_path / "plugin.py").write_text(WAITS)
    with launch("fit", "table.csv", "--out", "model", "--plugin", "plugin.py") as process:
        while process.poll() is None and not (tmp_path / "waits").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "Stopping.\n")


def test_ctrl_c_is_obeyed_where_nobody_reads_what_is_told(launch: Any, tmp_path: Path) -> None:
    """As in `ipll fit ... 2>&1 | head`, or where the terminal is gone."""
    (tmp_path / "plugin.py").write_text(WAITS)
    with launch("fit", "table.csv", "--out", "model", "--plugin", "plugin.py") as process:
        process.stdout.close()
        process.stderr.close()
        while process.poll() is None and not (tmp_path / "waits").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_a_stopped_fit_is_gone_on_with_by_the_same_command(launch: Any, iris: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "table.csv", iris_rows(list(range(0, 150, 3)), NAMES))
    quickly = ("--set", "train.epochs=100", "--set", "train.checkpoint_seconds=0.1")
    command = ("fit", "table.csv", "--out", "model", *quickly, "--device", "cpu")
    with launch(*command) as process:
        while process.poll() is None and not list(tmp_path.glob("model/.pending/*.json")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "There is no model yet. The same command goes on from here." in err
    assert (tmp_path / "model" / ".pending").is_dir()
    with launch(*command) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert re.search(r"^Going on where it was stopped, in epoch \d+ of 100\.$", err, re.M)
    assert "The model is in model." in out
    assert not (tmp_path / "model" / ".pending").exists()
