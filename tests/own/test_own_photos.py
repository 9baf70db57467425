"""Photos through a pretrained network: seen once, kept, learnt as a table. The network here sees the mean colour."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_photos import TINY, write_package, write_photos

import ipll.own.embedding
import ipll.own.through
from ipll import IncrementalClassifier
from ipll.engine.files import parse_json
from ipll.errors import ConfigError, DataError, Interrupted
from ipll.networks.photos import LITE0, find_network, missing
from ipll.own import Model, from_arrays, read_given, read_table
from ipll.own.audit import write_audit
from ipll.own.embedding import embed
from ipll.own.reading.given import read_to_predict
from ipll.progress import Listener, Silent

CPU = torch.device("cpu")
FEW = {"train.epochs": 3, "model.members": 2, "model.folds": 2, "model.width": 16}
SOME = [f"{key}={value}" for key, value in FEW.items()]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Puts the network where Python finds it, and the home elsewhere -> a function that counts the photos it saw."""
    monkeypatch.syspath_prepend(str(write_package(tmp_path / "packages")))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINY_LOG", str(tmp_path / "log"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)

    def seen() -> int:
        log = tmp_path / "log"
        counts = [int(line) for line in log.read_text().split()] if log.exists() else []
        log.unlink(missing_ok=True)
        return sum(counts)

    return seen


def test_all_that_is_done_with_a_model_is_done_with_photos(tiny: Callable[[], int], tmp_path: Path, main: Any) -> None:
    first = write_photos(tmp_path / "first", ["red", "green"])
    second = write_photos(tmp_path / "second", ["red", "blue"], seed=1)
    model = tmp_path / "model"
    some = [part for one in [*SOME[1:], "train.epochs=30"] for part in ("--set", one)]
    said = main("fit", first, "--out", model, "--network", TINY, "--device", "cpu", *some).out
    assert "Photos are seen through torchvision:tiny" in said
    assert "Accuracy 100.0 % on 4 rows" in said
    assert "It keeps 12 photos, as features and as small pictures" in said
    assert main("update", model, second, "--device", "cpu").status == 0
    assert "Accuracy 100.0 %" in main("evaluate", model, second, "--device", "cpu").out
    assert main("predict", model, tmp_path / "first", "--out", tmp_path / "said.csv", "--device", "cpu").status == 0
    assert len((tmp_path / "said.csv").read_text().splitlines()) == 1 + 16
    assert "photos through torchvision:tiny" in main("info", model).out
    assert main("audit", model, "--out", tmp_path / "audit.html").status == 0
    kept = Model.load(model).kept_pictures()
    assert kept is not None
    assert kept.shape == (24, 3, 48, 48)
    assert parse_json((model / "model.json").read_bytes())["through"]["name"] == TINY


def test_each_photo_of_the_memory_keeps_its_own_picture(tiny: Callable[[], int], tmp_path: Path) -> None:
    """Also in updates, in which some of them leave and others come."""
    learnt = read_given(write_photos(tmp_path / "first", ["red", "green"])).train
    model = Model.fit(learnt, network=TINY, settings=FEW | {"memory.size": 6}, device="cpu")
    more = read_given(write_photos(tmp_path / "second", ["green", "blue"], seed=1), update=True).train
    model = model.update(more, device="cpu")
    pictures, ids = model.kept_pictures(), model.tensors["module.memory.ids"].tolist()
    assert pictures is not None
    assert len(ids) == len(pictures) == 6
    for row, picture in zip(ids, pictures, strict=True):
        strongest = ("red", "green", "blue")[picture.mean((1, 2)).argmax()]
        assert strongest == model.records.given[row]
    write_audit(model, tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text(encoding="utf-8").count("iVBOR") == 6
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model").kept_pictures()
    assert again is not None
    assert np.array_equal(again, pictures)


def test_photos_are_seen_once(tiny: Callable[[], int], tmp_path: Path) -> None:
    """Whatever table, folder or name they come by; and what is damaged of it is made anew."""
    table = write_photos(tmp_path / "photos", ["red", "green"])
    images = read_to_predict(table, skip_bad=False).images
    network = find_network(TINY)
    tiny()
    assert images is not None
    values, _ = embed(images, network, CPU, Silent())
    assert tiny() == 16
    shutil.copytree(tmp_path / "photos", tmp_path / "moved")
    shutil.copy(tmp_path / "moved" / "red0-0.jpg", tmp_path / "moved" / "twin.jpg")
    write_photos(tmp_path / "moved" / "more", ["blue"], each=2)
    moved = read_to_predict(tmp_path / "moved", skip_bad=False).images
    assert moved is not None
    others, _ = embed(moved, network, CPU, Silent())
    assert tiny() == 2
    assert np.array_equal(others[:16], values[[*range(8, 16), *range(8)]])  # by name: green, then red
    (path, *_) = (p for p in (tmp_path / "home").rglob("*.npz") if values[3].tobytes() in p.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(values[3].tobytes())] ^= 1
    path.write_bytes(content)
    again, _ = embed(moved, network, CPU, Silent())
    assert tiny() == 16
    assert np.array_equal(again, others)


def test_arrays_are_photos_too(tiny: Callable[[], int]) -> None:
    rng = np.random.default_rng(0)
    mean = np.array([[200, 60, 60], [60, 200, 60]])[np.arange(24) % 2]
    X = np.clip(rng.normal(mean[:, None, None], 20, (24, 24, 24, 3)), 0, 255).astype(np.uint8)
    y = np.array(["red", "green"])[np.arange(24) % 2]
    learner = IncrementalClassifier(network=TINY, settings=FEW, random_state=0, device="cpu").fit(X, y)
    tiny()
    assert learner.score(X, y) == 1.0
    assert tiny() == 1  # to find out how many values it gives
    assert (
        learner.partial_fit(X[:, ::-1, :, :].copy(), [["red", "green"]] * 24).predict(X[:2]).tolist() == y[:2].tolist()
    )


class Stopping(Listener):
    """Ctrl-C, once some photos are done."""

    def photos(self, done: int, total: int, seconds: float) -> None:
        if done >= 16:
            raise KeyboardInterrupt


def test_stopped_it_goes_on_from_there(tiny: Callable[[], int], tmp_path: Path) -> None:
    samples = read_given(write_photos(tmp_path / "photos", ["red", "green"], each=40)).train
    find_network(TINY)
    tiny()
    with pytest.raises(Interrupted, match="16 of 60 photos are embedded and kept"):
        Model.fit(samples, network=TINY, settings=FEW, device="cpu", reporter=Stopping())
    tiny()
    Model.fit(samples, network=TINY, settings=FEW, device="cpu")
    assert tiny() == 1 + 60 - 16  # one to find out how many values it gives


KILLED = """
import sys
from pathlib import Path
import torch
import ipll.own.embedding
from ipll.networks.photos import find_network
from ipll.own.reading.given import read_to_predict
from ipll.progress import Silent

ipll.own.embedding.KEEP_SECONDS = 0.0
images = read_to_predict(Path(sys.argv[1]), skip_bad=False).images
ipll.own.embedding.embed(images, find_network("torchvision:tiny"), torch.device("cpu"), Silent())
"""


def test_killed_it_goes_on_from_there(tiny: Callable[[], int], tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", ["red", "green"], each=100)
    places = os.pathsep.join([str(tmp_path / "packages"), *sys.path])
    environment = os.environ | {"TINY_SLEEP": "0.2", "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "photos")], env=environment)
    embeddings = tmp_path / "home" / ".cache" / "ipll" / "embeddings"
    until = time.monotonic() + 60
    while not list(embeddings.glob("*/*.npz")) and running.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    kept = 0
    for path in embeddings.glob("*/*.npz"):
        with np.load(path) as file:
            kept += len(file["keys"])
    assert kept
    images = read_to_predict(tmp_path / "photos", skip_bad=False).images
    assert images is not None
    network = find_network(TINY)
    tiny()
    values, broken = embed(images, network, CPU, Silent())
    assert not broken
    assert tiny() == 200 - kept
    assert np.array_equal(values[:100].argmax(1) % 3, np.ones(100))  # green comes first by name


def test_photos_that_cannot_be_decoded_are_named(tiny: Callable[[], int], tmp_path: Path) -> None:
    table = write_photos(tmp_path / "photos", ["red", "green"])
    whole = (tmp_path / "photos" / "red0-3.jpg").read_bytes()
    (tmp_path / "photos" / "red0-3.jpg").write_bytes(whole[: len(whole) // 2])
    samples = read_table(table)
    with pytest.raises(DataError, match=r"row 5: image '.*red0-3\.jpg' cannot be read"):
        Model.fit(samples, network=TINY, settings=FEW, device="cpu")
    model = Model.fit(samples, network=TINY, settings=FEW, device="cpu", skip_bad=True)
    assert [row for row, _ in model.skipped] == [5]
    assert len(model.records) == 15
    with pytest.raises(DataError, match="red0-3"):
        model.predict(samples, device="cpu")


def test_a_model_says_what_is_missing(
    tiny: Callable[[], int], tmp_path: Path, main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_photos(tmp_path / "photos", ["red", "green"])
    model = Model.fit(read_given(table).train, network=TINY, settings=FEW, device="cpu")
    model.save(tmp_path / "model")
    shutil.rmtree(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "torchvision")
    said = main("info", tmp_path / "model").out
    assert "not installed here" in said
    assert "pip install torchvision" in said
    assert main("audit", tmp_path / "model", "--out", tmp_path / "audit.html").status == 0
    refused = main("predict", tmp_path / "model", table)
    assert refused.status == 2
    assert "pip install torchvision" in refused.err


def test_a_model_is_not_used_with_another_network(tiny: Callable[[], int], tmp_path: Path) -> None:
    samples = read_given(write_photos(tmp_path / "photos", ["red", "green"])).train
    model = Model.fit(samples, network=TINY, settings=FEW, device="cpu")
    code = tmp_path / "packages" / "torchvision" / "models.py"
    code.write_text(code.read_text().replace("crop_size=[16]", "crop_size=[8]"))
    for name in ("torchvision.models", "torchvision"):
        sys.modules.pop(name)
    with pytest.raises(ConfigError, match="not the one that the model sees photos through"):
        model.predict(samples, device="cpu")


@pytest.mark.parametrize(
    ("network", "settings", "said"),
    [
        ("resnet50", {}, "unknown network 'resnet50'"),
        ("timm:hf-hub:somebody/something", {}, "unknown network"),
        ("torchvision:nothing", {}, "torchvision says: Unknown model nothing"),
        ("timm:resnet18", {}, "pip install timm"),
        (TINY, {"model.backbone": "small-cnn"}, "model.backbone is for learning from pixels"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused(
    tiny: Callable[[], int], tmp_path: Path, network: str, settings: dict[str, Any], said: str
) -> None:
    samples = read_given(write_photos(tmp_path / "photos", ["red", "green"])).train
    with pytest.raises(ConfigError, match=said):
        Model.fit(samples, network=network, settings=settings, device="cpu")


def test_features_need_no_network(tiny: Callable[[], int], tmp_path: Path) -> None:
    rows = from_arrays(np.eye(4, dtype=np.float32), ["a", "b", "a", "b"])
    with pytest.raises(ConfigError, match="holds features"):
        Model.fit(rows, network=TINY)
    photos = read_given(write_photos(tmp_path / "photos", ["red", "green"])).train
    model = Model.fit(photos, network=TINY, settings=FEW, device="cpu")
    with pytest.raises(DataError, match="the model learnt photos"):
        model.predict(rows)


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.parametrize("settings", [{}, {"model.backbone": "small-cnn"}])
def test_without_the_extra_photos_are_learnt_from_scratch_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(ipll.own.through, "missing", lambda name: "pip install it")
    samples = read_given(write_photos(tmp_path / "photos", ["red", "green"], each=4)).train
    listener = Notes()
    model = Model.fit(samples, settings={"train.epochs": 1, **settings}, device="cpu", reporter=listener)
    assert (model.kind, model.through) == ("images", None)
    assert [note for note in listener.notes if "pip install 'ipll[photos]'" in note] == listener.notes
    assert len(listener.notes) == (0 if settings else 1)


@pytest.mark.skipif(bool(missing(LITE0)), reason="needs the extra 'photos'")
def test_the_network_of_the_extra_is_the_default_for_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    samples = read_given(write_photos(tmp_path / "photos", ["red", "green"], each=5)).train
    model = Model.fit(samples, settings=FEW, device="cpu")
    assert model.through is not None
    assert (model.through.name, model.takes, model.shape) == (LITE0, "images", (1280,))
    assert model.config.method == "pgdr/tables"
    assert model.predict(samples, device="cpu").labels == samples.label_names
    grey = from_arrays(np.zeros((4, 28, 28), np.uint8), ["a", "b", "a", "b"])
    assert Model.fit(grey, settings={"train.epochs": 1}, device="cpu").through is None
