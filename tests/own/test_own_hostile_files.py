"""Files that a stranger gives: only regular ones are opened, and what is wrong with them is a message, not a hang."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from ipll.config import read_toml
from ipll.data.pictures import open_image, read_picture
from ipll.data.sources import load_source
from ipll.data.stream import Stream
from ipll.data.unpickle import load_pickle
from ipll.engine.npz import read_npz
from ipll.engine.regular import check_regular, clear_link
from ipll.errors import ConfigError, DataError, IpllError
from ipll.networks.pretrained import load_weights
from ipll.own import Model, from_arrays, read_table, read_votes
from ipll.own.folder import read_records

NESTED = "[" * 200_000 + "]" * 200_000
KINDS = ("pipe", "socket", "device", "folder")

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    return tmp_path


def put(kind: str, name: str) -> Path:
    """-> what is no regular file, at this place."""
    path = Path(name)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "a.csv": read_table,
    "a.tsv": read_table,
    "a.parquet": read_table,
    "a.jsonl": read_table,
    "b.csv": read_votes,
    "c.toml": read_toml,
    "d.npz": Stream.load,
    "e.png": lambda path: read_picture(path, 8),
    "f.pkl": load_pickle,
    "g.safetensors": lambda path: load_weights(torch.nn.Linear(1, 1), str(path)),
    "g.pth": lambda path: load_weights(torch.nn.Linear(1, 1), str(path)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_opened(name: str, kind: str) -> None:
    with pytest.raises(IpllError, match=name):
        READERS[name](put(kind, name))


def test_a_link_to_a_regular_file_is_fine() -> None:
    Path("real.toml").write_text("a = 1\n")
    Path("link.toml").symlink_to("real.toml")
    check_regular("link.toml")
    assert read_toml(Path("link.toml")) == {"a": 1}
    clear_link(Path("link.toml"))
    assert not Path("link.toml").exists()
    assert Path("real.toml").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_are_no_files(main: Any, kind: str, photos: Path) -> None:
    images = np.zeros((8, 8, 8), np.uint8)
    images[::2] += 200
    Model.fit(from_arrays(images, ["a", "b"] * 4), device="cpu", settings={"train.epochs": 1, "data.size": 8}).save("m")
    put(kind, "photos/strange.png")
    status, _, err = main("predict", "m", "photos")
    if kind == "folder":  # it may be called what it likes
        assert status == 0
        return
    assert status == 2
    assert "strange.png" in err
    status, out, _ = main("predict", "m", "photos", "--skip-bad")
    assert status == 0
    assert "Skipped 1" in out


def test_postscript_is_a_program_and_no_image() -> None:
    Path("a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(DataError, match=r"a\.png"):
        read_picture(Path("a.png"), 8)
    with pytest.raises(OSError, match="cannot identify"):
        open_image("a.png")


# Archives of arrays


def header(shape: tuple[int, ...], descr: str = "<i8") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(member: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile("x.npz", "w", compression) as file:
        file.writestr("task.npy", member)
    return Path("x.npz")


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (header((10**6, 10**6)) + bytes(64), "8,000,000,000,000 bytes"),
        (header((2**63, 2**63)) + bytes(64), "bytes of values, but there are 64"),
        (header((-1,)) + bytes(8), "task.npy"),
        (header((1,), "|O") + b"cos\nsystem\n.", "is a pickle"),
        (header((9,)) + bytes(64), "72 bytes of values, but there are 64"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"[" * 65535, "damaged header"),
        (b"hello", "damaged header"),
        (b"", "damaged header"),
    ],
)
def test_an_array_is_refused_by_its_header(member: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=r"'task\.npy'") as caught:
        read_npz(archive(member), ["task"])
    assert says in str(caught.value)


def test_an_archive_that_is_encrypted() -> None:
    data = bytearray(archive(header((1,)) + bytes(8)).read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    Path("x.npz").write_bytes(data)
    with pytest.raises(ValueError, match="is encrypted"):
        read_npz(Path("x.npz"), ["task"])


def test_packed_arrays_are_read_and_bombs_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(header((1000,)) + bytes(8000), zipfile.ZIP_DEFLATED)
    assert read_npz(path, ["task", "other"])["task"].shape == (1000,)
    monkeypatch.setattr("ipll.engine.npz.LARGEST", 8000)
    with pytest.raises(ValueError, match="would unpack to"):
        read_npz(path, ["task"])


def test_packed_weights_are_refused() -> None:
    torch.save({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}, "w.pth")
    load_weights(torch.nn.Linear(1, 1), "w.pth")
    with zipfile.ZipFile("w.pth") as old, zipfile.ZipFile("packed.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    with pytest.raises(ConfigError, match="is compressed"):
        load_weights(torch.nn.Linear(1, 1), "packed.pth")


# Text


def test_a_hundred_thousand_brackets(main: Any) -> None:
    Path("a.toml").write_text(f"a = {NESTED}")
    Path("a.jsonl").write_text(f'{{"features": {NESTED}}}\n')
    for command in (("stream", "digits", "--config", "a.toml"), ("fit", "a.jsonl", "--out", "m")):
        status, _, err = main(*command)
        assert status == 2
        assert str(command[1 if command[0] == "fit" else 3]) in err
    assert main("stream", "digits", "--set", f"stream.tasks={NESTED}").status == 2


@pytest.mark.parametrize("content", [b"a = '\xff'", b"\xff\xfea\0=\0", b"a = 1979-02-31", b"\0"])
def test_a_configuration_that_is_no_text(content: bytes) -> None:
    Path("a.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.toml: cannot be read as TOML"):
        read_toml(Path("a.toml"))


def test_parquet_that_says_more_than_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"id": pa.array(["a"] * 1000), "features.x": pa.array([0.0] * 1000)}), "a.parquet")
    monkeypatch.setattr("ipll.engine.machine.memory", lambda: 1000)
    with pytest.raises(DataError, match="1,000 rows of 2 columns"):
        read_table("a.parquet", unlabelled=True)


def test_parquet_with_much_in_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are few; a list in one of them is long, and takes no room in the file."""
    pq.write_table(pa.table({"id": ["a"], "features": [[0.0] * 100_000]}), "a.parquet")
    assert Path("a.parquet").stat().st_size < 10_000
    monkeypatch.setattr("ipll.engine.machine.memory", lambda: 100_000)
    with pytest.raises(DataError, match=r"1 rows of 2 columns, 800,\d+ bytes"):
        read_table("a.parquet", unlabelled=True)
    with pytest.raises(DataError, match=r"a\.parquet says that it has"):
        read_records(Path("a.parquet"), ("a",))


# A data root


@pytest.fixture
def images_root(here: Path) -> Path:
    for split in ("train", "test"):
        for name in ("a", "b"):
            (here / "root" / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(here / "root" / split / name / "0.png")
    return here / "root"


def test_prepared_images_are_not_written_through_a_link(images_root: Path) -> None:
    """A link of a stranger's data root could lead to any file of the user's."""
    place = images_root / ".ipll" / "folder-8"
    place.mkdir(parents=True)
    victim = images_root.parent / "victim"
    victim.write_text("precious")
    (place / "images.part").symlink_to(victim)
    load_source("folder", images_root, 8)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["index.json", "images.part", "progress.json"])
def test_a_data_root_with_strange_files(images_root: Path, name: str, kind: str) -> None:
    place = images_root / ".ipll" / "folder-8"
    place.mkdir(parents=True)
    os.chdir(place)
    put(kind, name)
    if kind == "folder" or (name == "images.part" and kind != "device"):  # a link to a device is removed
        with pytest.raises(DataError, match="folder-8"):
            load_source("folder", images_root, 8)
    else:
        assert len(load_source("folder", images_root, 8).train_labels) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: [],
        lambda index: index | {"files": 3},
        lambda index: index | {"files": [[]]},
        lambda index: index | {"images": "../../../../etc/passwd"},
        lambda index: index | {"images": 3},
        lambda index: {key: value for key, value in index.items() if key != "images"},
    ],
)
def test_a_damaged_index_is_made_anew(images_root: Path, damage: Callable[[Any], Any]) -> None:
    from ipll.data.prepare import _digest

    load_source("folder", images_root, 8)
    file = images_root / ".ipll" / "folder-8" / "index.json"
    index = json.loads(file.read_text())
    index.pop("checksum")
    changed = damage(index)
    file.write_text(json.dumps(changed | {"checksum": _digest(changed)} if isinstance(changed, dict) else changed))
    assert len(load_source("folder", images_root, 8).train_labels) == 2
    assert json.loads(file.read_text())["images"] == index["images"]


# Model folders


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X = np.arange(24.0).reshape(12, 2) % 5
    folder = tmp_path_factory.mktemp("models") / "small"
    Model.fit(from_arrays(X, ["a", "b"] * 6), device="cpu", settings={"train.epochs": 1}).save(folder)
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("names", []), ("names", ["a", "a"]), ("names", "ab"), ("shape", [10**9]), ("shape", [-1]), ("shape", []),
        ("shape", "x"), ("mean", ["x", 1]), ("std", [1]), ("capacity", 10**12), ("capacity", 1), ("temperature", 0),
        ("temperature", "x"), ("far", None), ("updates", 0), ("kind", "songs"), ("chosen", [{}]), ("given", []),
        ("config", 3), ("known", [1]), ("min_class_samples", True), ("feature_names", ["x"]),
    ],
)  # fmt: skip
def test_a_model_of_strange_facts(main: Any, small_model: Path, here: Path, key: str, value: object) -> None:
    model = shutil.copytree(small_model, here / "model")
    facts = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(facts | {key: value}))
    status, _, err = main("info", "model")
    assert status == 2
    assert "model" in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_regular_description(main: Any, kind: str) -> None:
    Path("model").mkdir()
    put(kind, "model/model.json")
    Path("table.jsonl").write_text('{"features": [1, 2], "candidates": ["a"], "label": "a"}\n')
    for command in (("info", "model"), ("predict", "model", "table.jsonl"), ("update", "model", "table.jsonl")):
        status, _, err = main(*command)
        assert status == 2
        assert "model/model.json" in err


def test_what_is_no_model(main: Any, small_model: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("x")
    Path("empty").mkdir()
    Path("link").symlink_to("nowhere")
    Path("table.jsonl").write_text('{"features": [1, 2], "candidates": ["a"], "label": "a"}\n')
    cases = {
        "nowhere": "there is no such folder",
        "file": "it is not a folder",
        "empty": "it has no model.json",
        "link": "it is not a folder",
        str(finished_run): "it holds a run",
    }
    for command in (["info"], ["audit"], ["predict"], ["evaluate"], ["update"]):
        table = [] if command[0] in ("info", "audit") else ["table.jsonl"]
        for folder, says in cases.items():
            status, out, err = main(*command, folder, *table)
            assert (status, out) == (2, ""), command
            assert says in err
            assert folder in err
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # what the command line's own parser looks at, too
    with pytest.raises(DataError, match="Permission denied"):
        Model.load(small_model)
    assert main("info", small_model).status == 2
