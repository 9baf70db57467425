"""The named data sets: what they hold, and what is said when their files are not right."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import ipll
from ipll.data.source import Source
from ipll.data.sources import SOURCES, SourceLoader, default_data_root, load_source
from ipll.data.sources.cifar100 import Cifar100, Cifar100H
from ipll.errors import ConfigError, DataError


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPLL_DATA", "~/somewhere")
    assert default_data_root() == Path.home() / "somewhere"
    monkeypatch.setenv("IPLL_DATA", "")
    assert default_data_root() == Path.home() / ".cache" / "ipll"
    monkeypatch.delenv("IPLL_DATA")
    assert default_data_root() == Path.home() / ".cache" / "ipll"


def test_names() -> None:
    assert {"digits", "cifar100", "cifar100-h"} <= set(SOURCES)
    for name in ("digits", "cifar100", "cifar100-h"):
        assert SOURCES[name].name == name
        assert SOURCES[name].description
    with pytest.raises(ConfigError, match="Did you mean 'cifar100'"):
        load_source("cifar10")


@pytest.mark.parametrize("first", ["from ipll.config import resolve", "from ipll.plugins import SOURCES"])
def test_names_are_known_whatever_is_imported_first(root: Path, first: str) -> None:
    lines = f"{first}; from ipll.data.source import SOURCES; print(*sorted(SOURCES))"
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", lines], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(SOURCES)


def test_digits() -> None:
    digits = load_source("digits")
    assert SOURCES["digits"]().available(Path("/nowhere"))
    assert digits.train_samples.shape == (1437, 1, 8, 8)
    assert digits.test_samples.shape == (360, 1, 8, 8)
    for samples in (digits.train_samples, digits.test_samples):
        assert samples.dtype == np.uint8
        assert (samples.min(), samples.max()) == (0, 240)
    assert digits.class_names == tuple("0123456789")
    assert digits.superclasses is None
    scaled = digits.train_samples / 255
    assert digits.mean == pytest.approx((scaled.mean(),))
    assert digits.std == pytest.approx((scaled.std(),))


def test_digits_split_is_stratified_and_a_partition() -> None:
    digits = load_source("digits")
    images, labels = load_digits(return_X_y=True)
    for split in (digits.train_labels, digits.test_labels):
        share = np.bincount(split, minlength=10) / len(split)
        assert np.abs(share - np.bincount(labels) / len(labels)).max() < 0.002

    def rows(samples: np.ndarray, truth: np.ndarray) -> list[tuple[int, ...]]:
        return sorted(map(tuple, np.column_stack([samples.reshape(len(samples), -1), truth]).astype(int).tolist()))

    together = np.concatenate([digits.train_samples, digits.test_samples])
    assert rows(together, np.concatenate([digits.train_labels, digits.test_labels])) == rows(images * 15, labels)


def test_digits_never_change() -> None:
    digits = load_source("digits")
    arrays = (digits.train_samples, digits.train_labels, digits.test_samples, digits.test_labels)
    found = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    assert found == "aee66f802f8336cfaa4e3ecc2107a3aa74db8470d9e66431368b555d8ae5a5dd"


TRAIN, TEST = 300, 100


class TinyCifar(Cifar100):
    """The official layout with fewer samples."""

    sizes = {"train": TRAIN, "test": TEST}  # noqa: RUF012


def official(size: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    fine = np.arange(size) % 100
    return {
        "filenames": [f"{row}.png" for row in range(size)],
        "fine_labels": fine.tolist(),
        "coarse_labels": (fine % 20).tolist(),
        "data": generator.integers(0, 256, (size, 3072), dtype=np.uint8),
    }


def write_cifar(folder: Path, change: Callable[[dict[str, dict[str, Any]]], None] = lambda content: None) -> Path:
    content = {
        "train": official(TRAIN, 0),
        "test": official(TEST, 1),
        "meta": {"fine_label_names": [f"class {c}" for c in range(100)], "coarse_label_names": ["x"] * 20},
    }
    change(content)
    folder.mkdir(parents=True)
    for name, value in content.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=4))
    return folder


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/cifar-100-python.tar.gz"
    monkeypatch.setattr(Cifar100, "url", url)
    return url


@pytest.mark.parametrize("place", ["cifar-100-python", "."])
def test_cifar_is_read_from_the_folder_or_its_parent(tmp_path: Path, place: str) -> None:
    root = tmp_path / "root"
    write_cifar(root / place)
    assert TinyCifar().available(root)
    source = TinyCifar().load(root)
    expected = official(TRAIN, 0)["data"]
    assert source.train_samples.shape == (TRAIN, 3, 32, 32)
    assert source.train_samples.dtype == np.uint8
    np.testing.assert_array_equal(source.train_samples[7, 1, 3], expected[7, 1024 + 3 * 32 : 1024 + 4 * 32])
    np.testing.assert_array_equal(source.train_labels, np.arange(TRAIN) % 100)
    np.testing.assert_array_equal(source.test_labels, np.arange(TEST) % 100)
    assert source.train_labels.dtype == np.int64
    assert source.superclasses is not None
    np.testing.assert_array_equal(source.superclasses, np.arange(100) % 20)
    assert source.class_names[42] == "class 42"
    assert source.mean == (0.5071, 0.4867, 0.4408)
    assert source.std == (0.2675, 0.2565, 0.2761)


def drop(file: str, key: str) -> Callable[[dict[str, dict[str, Any]]], None]:
    return lambda content: content[file].pop(key)


def put(file: str, key: str, make: Callable[[Any], Any]) -> Callable[[dict[str, dict[str, Any]]], None]:
    return lambda content: content[file].update({key: make(content[file][key])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("train", "data"), r"train has no entry 'data'"),
        (drop("test", "coarse_labels"), r"test has no entry 'coarse_labels'"),
        (drop("meta", "fine_label_names"), r"meta has no entry 'fine_label_names'"),
        (put("train", "data", lambda d: d[:-1]), r"train: 'data' is uint8 \[299, 3072\], expected uint8 \[300, 3072\]"),
        (put("test", "data", lambda d: d.astype(np.float32)), r"test: 'data' is float32 \[100, 3072\]"),
        (put("test", "data", lambda d: "x"), r"test: 'data' is str"),
        (put("train", "fine_labels", lambda y: [*y[:-1], 100]), r"'fine_labels' has 100 in row 299, expected 0 to 99"),
        (put("test", "coarse_labels", lambda y: [-1, *y[1:]]), r"'coarse_labels' has -1 in row 0, expected 0 to 19"),
        (put("train", "fine_labels", lambda y: y[1:]), r"'fine_labels' is not a list of 300 whole numbers"),
        (put("train", "fine_labels", lambda y: ["a", *y[1:]]), r"'fine_labels' is not a list of 300 whole numbers"),
        (put("train", "fine_labels", lambda y: [c // 2 * 2 for c in y]), r"train has no sample of class \[1, 3, "),
        (
            put("train", "coarse_labels", lambda y: [5, *y[1:]]),
            r"train: class 0 has superclass 5 in row 0, elsewhere 0",
        ),
        (put("test", "coarse_labels", lambda y: [*y[:9], 3, *y[10:]]), r"test: class 9 .* 3 in row 9, elsewhere 9"),
        (put("meta", "fine_label_names", lambda n: n[1:]), r"meta: 'fine_label_names' is not a list of 100 names"),
    ],
)
def test_wrong_content_is_named(
    tmp_path: Path, change: Callable[[dict[str, dict[str, Any]]], None], message: str
) -> None:
    write_cifar(tmp_path / "cifar-100-python", change)
    with pytest.raises(DataError, match=message + ".* Delete .* run again to fetch it"):
        TinyCifar().load(tmp_path)


def test_truncated_file(tmp_path: Path) -> None:
    file = write_cifar(tmp_path / "cifar-100-python") / "test"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(DataError, match=r"cifar-100-python/test is damaged .*fetch"):
        TinyCifar().load(tmp_path)


def test_missing_and_no_network(tmp_path: Path, closed_port: str) -> None:
    assert not Cifar100().available(tmp_path)
    for name in ("cifar100", "cifar100-h"):
        with pytest.raises(DataError) as caught:
            load_source(name, tmp_path)
        for part in (f"cannot reach {closed_port}", str(tmp_path / "cifar-100-python.tar.gz"), "--data-root"):
            assert part in str(caught.value)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Cifar100], list[str]]]:
    """A class whose archive comes from a server on this machine, and the requests that the server got."""
    monkeypatch.setenv("no_proxy", "*")
    site = tmp_path / "site"
    folder = write_cifar(site / "cifar-100-python")
    with tarfile.open(site / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *arguments: object) -> None:
            requests.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        class Served(TinyCifar):
            url = f"http://127.0.0.1:{server.server_port}/cifar-100-python.tar.gz"
            checksum = "md5:" + hashlib.md5((site / "cifar-100-python.tar.gz").read_bytes()).hexdigest()

        yield Served, requests
        server.shutdown()
        thread.join()


def test_fetch_unpack_read(tmp_path: Path, served: tuple[type[Cifar100], list[str]]) -> None:
    loader, requests = served[0](), served[1]
    root = tmp_path / "root"
    assert not loader.available(root)
    source = loader.load(root)
    np.testing.assert_array_equal(source.test_samples.reshape(TEST, -1), official(TEST, 1)["data"])
    assert loader.available(root)
    assert sorted(os.listdir(root)) == ["cifar-100-python", "cifar-100-python.tar.gz"]
    loader.load(root)
    assert len(requests) == 1  # the second time it is there


def test_deleting_a_damaged_file_is_a_way_out(tmp_path: Path, served: tuple[type[Cifar100], list[str]]) -> None:
    loader = served[0]()
    root = tmp_path / "root"
    loader.load(root)
    damaged = root / "cifar-100-python" / "train"
    damaged.write_bytes(b"")
    with pytest.raises(DataError, match="damaged"):
        loader.load(root)
    damaged.unlink()
    np.testing.assert_array_equal(loader.load(root).train_labels, np.arange(TRAIN) % 100)


def test_archive_put_there_by_hand(tmp_path: Path, served: tuple[type[Cifar100], list[str]]) -> None:
    loader, requests = served[0](), served[1]
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-100-python.tar.gz").write_bytes((tmp_path / "site" / "cifar-100-python.tar.gz").read_bytes())
    assert loader.available(root)
    assert loader.load(root).classes == 100
    assert requests == []


@pytest.mark.cifar
@pytest.mark.skipif(not Cifar100()._folder(default_data_root()), reason="IPLL_DATA does not hold CIFAR-100")
def test_the_real_cifar100() -> None:
    source = load_source("cifar100")
    assert source.train_samples.shape == (50_000, 3, 32, 32)
    assert source.test_samples.shape == (10_000, 3, 32, 32)
    assert (np.bincount(source.train_labels) == 500).all()
    assert (np.bincount(source.test_labels) == 100).all()
    assert source.train_labels[:5].tolist() == [19, 29, 0, 11, 1]
    assert (source.class_names[0], source.class_names[19], source.class_names[99]) == ("apple", "cattle", "worm")
    assert source.superclasses is not None
    assert (np.bincount(source.superclasses) == 5).all()
    trees = {c for c, name in enumerate(source.class_names) if name.endswith("_tree")}
    assert len(trees) == 5
    assert len({source.superclasses[c] for c in trees}) == 1
    for channel in range(3):
        share = np.bincount(source.train_samples[:, channel].ravel(), minlength=256) / (50_000 * 32 * 32)
        value = np.arange(256) / 255
        mean = share @ value
        assert mean == pytest.approx(source.mean[channel], abs=3e-4)
        assert np.sqrt(share @ (value - mean) ** 2) == pytest.approx(source.std[channel], abs=3e-4)
    other = Cifar100H().load(default_data_root())
    assert other.name == "cifar100-h"
    np.testing.assert_array_equal(other.train_labels, source.train_labels)
    np.testing.assert_array_equal(other.superclasses, source.superclasses)


# Sources of one's own


def loaded(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Source:
    """-> what `load_source` gives of a loader whose source is a small one with these fields."""
    grey, labels = np.zeros((6, 1, 4, 4), np.uint8), np.arange(6) % 3
    whole: dict[str, Any] = {
        "name": "mine", "train_samples": grey, "train_labels": labels, "test_samples": grey, "test_labels": labels,
        "class_names": ("a", "b", "c"), "mean": (0.5,), "std": (0.25,),
    }  # fmt: skip
    loader = type("Mine", (SourceLoader,), {"available": lambda *_: True, "load": lambda *_: Source(**whole | fields)})
    monkeypatch.setitem(SOURCES.members, "mine", loader)
    return load_source("mine")


FEATURES = {
    "train_samples": np.zeros((6, 2), np.float32), "test_samples": np.zeros((6, 2), np.float32),
    "mean": (-300.0, 1e6), "std": (0.0, 70.0),
}  # fmt: skip


@pytest.mark.parametrize("fields", [{}, FEATURES, {"superclasses": np.array([0, 0, 1])}])
def test_a_source_that_fits_together(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, **fields).classes == 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"train_samples": np.zeros((6, 4))},
            "train_samples must be uint8 images [n, channels, height, width] or float32 features [n, d], got float64",
        ),
        ({"test_samples": np.zeros((6, 4, 4), np.uint8)}, "test_samples must be uint8 images"),
        ({"train_samples": [[1, 2]]}, "train_samples must be uint8 images [n, channels, height, width] or float32 f"),
        (
            {"test_samples": np.zeros((6, 1, 8, 8), np.uint8)},
            "test_samples must be like its train_samples, [6, 1, 4, 4], got [6, 1, 8, 8].",
        ),
        ({"train_labels": np.arange(5) % 3}, "train_labels must be whole numbers [6], one for each of the train_samp"),
        (
            {"test_labels": np.zeros(6)},
            "test_labels must be whole numbers [6], one for each of the test_samples, got f",
        ),
        ({"train_labels": np.arange(1, 7)}, "train_labels must be places in class_names, 0 to 2, got [3, 4, 5]."),
        (
            {"test_labels": np.arange(6) % 3 - 1},
            "test_labels must be places in class_names, 0 to 2, got [-1].",
        ),
        ({"mean": (0.5, 0.5, 0.5)}, "mean must have one number for each of the 1 channels, got 3."),
        (FEATURES | {"std": (1.0,)}, "std must have one number for each of the 2 features, got 1."),
        ({"mean": (127.0,)}, "mean must be of samples scaled to [0, 1], not of grey levels, got [127.0]."),
        ({"std": (float("nan"),)}, "std must be of samples scaled to [0, 1], not of grey levels, got [nan]."),
        ({"std": (0.0,)}, "std must not be 0: samples are divided by it, got [0.0]."),
        (FEATURES | {"mean": (0.0, float("inf"))}, "mean must be finite numbers, got [inf]."),
        ({"superclasses": np.arange(2)}, "superclasses must have 3 entries, got 2."),
    ],
)
def test_a_source_that_does_not(fields: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=f"^data set 'mine': its {re.escape(says)}"):
        loaded(monkeypatch, **fields)


def test_a_source_shows_no_pixels() -> None:
    assert (
        repr(load_source("digits")) == "Source('digits', 10 classes, 1437 training and 360 test samples of [1, 8, 8])"
    )


def test_features_need_another_backbone(monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> None:
    """And a user is told which, and which views."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    samples = (rng.normal(size=(120, 5)) + 3 * labels[:, None]).astype(np.float32)
    loaded(
        monkeypatch, train_samples=samples, train_labels=labels, test_samples=samples, test_labels=labels,
        mean=tuple(samples.mean(axis=0).tolist()), std=tuple(samples.std(axis=0).tolist()),
    )  # fmt: skip
    chosen = quick | {"data.source": "mine", "memory.size": 20, "train.epochs": 10, "train.lr": 0.02}
    with pytest.raises(DataError, match=r"--set model\.backbone=mlp --set augment\.weak=identity") as told:
        ipll.run("digits", **chosen)
    options = re.findall(r"--set (\S+)=([a-z]+)", str(told.value))
    assert ipll.run("digits", **chosen, **dict(options)).last_accuracy > 80
