"""MATLAB's .mat and NumPy's .npz: the layouts that data sets of partial labels come in, and what is wrong with some."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_matrix, csr_matrix
from sklearn.datasets import load_iris

from ipll.own import read_table

Refused = Callable[..., str]

IRIS = load_iris()
SEEN = np.arange(150) % 5 > 0
TRUTH = np.eye(3)[IRIS.target]
SETS = np.maximum(TRUTH, np.random.default_rng(0).random((150, 3)) < 0.3)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def matlab(**change: Any) -> dict[str, Any]:
    return {"data": IRIS.data, "partial_target": csc_matrix(SETS.T), "target": csc_matrix(TRUTH.T)} | change


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"partial_target": SETS.T, "target": TRUTH.T},
        {"partial_target": SETS, "target": csr_matrix(TRUTH)},
        {"partial_target": SETS.astype(bool), "target": TRUTH.astype(np.uint8)},
        {"partial_target": csc_matrix(SETS.T > 0), "target": IRIS.target + 1},
        {"data": csc_matrix(IRIS.data), "target": IRIS.target[:, None] + 1.0},
    ],
    ids=range(6),
)
@pytest.mark.parametrize("packed", [False, True])
def test_layouts_of_matlab(change: dict[str, Any], packed: bool) -> None:
    savemat("lost.mat", matlab(**change), do_compression=packed)
    samples = read_table("lost.mat")
    assert samples.features is not None
    np.testing.assert_array_equal(samples.features, IRIS.data.astype(np.float32))
    assert set(samples.names) == {"1", "2", "3"}
    order = np.array([int(name) - 1 for name in samples.names])
    np.testing.assert_array_equal(samples.candidates, SETS[:, order] > 0)
    assert samples.label_names == [str(k + 1) for k in IRIS.target]
    assert samples.warnings == ["lost.mat: classes are called by their number, from 1."]
    assert (samples.rows[0], samples.word, samples.numbered_in) == (1, "sample", "lost.mat")


@pytest.mark.parametrize("names", [np.array(IRIS.target_names, object), np.array(IRIS.target_names)])
def test_names_and_ids_of_matlab(names: Any) -> None:
    ids = np.array([f"flower {i}" for i in range(150)])
    savemat("lost.mat", matlab(class_names=names, ids=ids, folds={"of": 10}))
    samples = read_table("lost.mat")
    assert sorted(samples.names) == sorted(IRIS.target_names)
    assert samples.label_names == IRIS.target_names[IRIS.target].tolist()
    assert samples.ids == ids.tolist()
    assert samples.warnings == ["lost.mat: ignored: 'folds'."]


def test_numpy_archives() -> None:
    gaps = np.where(np.arange(600).reshape(150, 4) % 50 == 0, np.nan, IRIS.data)
    np.savez("lost.npz", X=gaps, candidates=SETS > 0, truth=IRIS.target)
    samples = read_table("lost.npz")
    assert set(samples.names) == {"0", "1", "2"}
    assert samples.label_names == [str(k) for k in IRIS.target]
    assert [w for w in samples.warnings if "from 0" in w]
    assert [w for w in samples.warnings if "12 of 600 numbers are missing" in w]
    assert samples.rows[0] == 0
    np.savez_compressed(
        "lost.npz", features=IRIS.data, partial_target=SETS.T, label=IRIS.target_names[IRIS.target],
        classes=IRIS.target_names, ids=np.arange(150) + 1000,
    )  # fmt: skip
    samples = read_table("lost.npz")
    assert sorted(samples.names) == sorted(IRIS.target_names)
    assert (samples.ids[0], samples.label_names[0], samples.warnings) == ("1000", "setosa", [])


def test_as_many_classes_as_samples() -> None:
    """A square matrix lies either way; what we call candidates has a row for each sample."""
    sets = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    np.savez("square.npz", data=IRIS.data[:3], candidates=sets)
    samples = read_table("square.npz")
    assert samples.candidates.tolist() == (sets > 0).tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": IRIS.data[:3], "partial_target": np.eye(3), "target": None}, ["which side is which", "'candidates'"]),
        ({"data": IRIS.data.T}, ["'partial_target' has the shape (3, 150)", "4 samples", "save the transpose"]),
        ({"partial_target": SETS.T / 2}, ["'partial_target' holds 0.5", "a matrix of 0 and 1"]),
        ({"partial_target": SETS.T * (np.arange(150) != 4)}, ["lost.mat, sample 5: no candidates"]),
        ({"target": np.ones((3, 150))}, ["150 faults", "sample 1: several true labels in 'target'"]),
        ({"target": np.ones((4, 150))}, ["'partial_target' has 3 classes, but there are 4"]),
        ({"class_names": np.array(["a", "b"])}, ["'classes' has 2 entries, but 3 are needed"]),
        ({"class_names": np.array(["a", "b", "a"])}, ["must be different names"]),
        ({"ids": np.arange(149)}, ["'ids' has 149 entries, but 150"]),
        ({"data": np.zeros((150, 2, 2))}, ["'data' has the shape (150, 2, 2)", "[n, d]"]),
        ({"data": IRIS.data * 1j}, ["'data' is a", "not numbers or text"]),
        ({"data": {"a": 1}}, ["'data' is a struct"]),
        ({"data": np.array([[1, "x"]], object)}, ["a cell holds something else than text"]),
        ({"X": IRIS.data}, ["both 'data' and 'X'"]),
        ({"data": None, "train_data": IRIS.data}, ["no features, but 'partial_target'", "'train_data'", "'features'"]),
        ({"partial_target": None}, ["no array 'candidates'. Add one: a matrix of 0 and 1"]),
    ],
    ids=range(16),
)
def test_faults(refused: Refused, change: dict[str, Any], said: list[str]) -> None:
    savemat("lost.mat", {name: array for name, array in matlab(**change).items() if array is not None})
    message = refused(read_table, "lost.mat")
    assert "lost.mat" in message
    for part in said:
        assert part in message


def test_objects_of_numpy_are_not_read(refused: Refused) -> None:
    np.savez("lost.npz", data=IRIS.data, candidates=np.array([["a"], None], object))
    assert "'candidates.npy' is a pickle" in refused(read_table, "lost.npz")
    np.save("lost.npy", IRIS.data)
    assert "numpy.savez(file, data=X, candidates=Y)" in refused(read_table, "lost.npy")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + bytes(200), "version 7.3, which is HDF5"),
        (b"hello" * 100, "no .mat file of version 5 to 7"),
    ],
)
def test_what_is_no_mat(refused: Refused, content: bytes, said: str) -> None:
    Path("lost.mat").write_bytes(content)
    assert said in refused(read_table, "lost.mat")


@pytest.mark.parametrize("packed", [False, True])
def test_damage_is_an_error_and_no_crash(packed: bool) -> None:
    """SciPy's own reader takes the process with it, on some of these."""
    from ipll.errors import DataError

    savemat("lost.mat", matlab(class_names=np.array(["a", "b", "c"], object)), do_compression=packed)
    whole, rng = Path("lost.mat").read_bytes(), np.random.default_rng(0)
    refusals = 0
    for length in rng.integers(0, len(whole), 60).tolist():
        changed = bytearray(whole)
        changed[length : length + 4] = rng.bytes(4)
        for content in (whole[:length], bytes(changed)):
            Path("lost.mat").write_bytes(content)
            try:
                read_table("lost.mat")
            except DataError as error:
                assert "lost.mat" in str(error)  # noqa: PT017
                refusals += 1
    assert refusals >= 60


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def array(name: bytes, kind: int, shape: tuple[int, int], *rest: bytes) -> bytes:
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack("<ii", *shape)) + element(1, name)
    return element(14, head + b"".join(rest))


def test_bombs_and_false_claims(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H2s", 0x100, b"IM")
    few = element(9, np.zeros(4).tobytes())
    nothing = element(5, np.zeros(4, np.int32).tobytes())
    sets = array(b"partial_target", 5, (10**9, 3), nothing, nothing, few)
    cells = b""
    for _ in range(3000):
        cells = element(14, element(6, struct.pack("<II", 1, 0)) + element(5, bytes(8)) + element(1, b"data") + cells)
    for content, said in (
        (array(b"data", 6, (2**30, 2**30), few), "1073741824 x 1073741824 values, but there are 4"),
        (array(b"data", 6, (-2, -2), few), "values, but there are 4"),
        (array(b"data", 6, (3, 4), element(9, np.zeros(12).tobytes())) + sets, "'partial_target' has 1000000000 x 3"),
        (cells, "cannot be read"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("ipll.engine.machine.memory", lambda: 2**30)
            Path("lost.mat").write_bytes(head + content)
            assert said in refused(read_table, "lost.mat")
    wide = array(b"partial_target", 5, (10**8, 3), element(5, struct.pack("<iii", 0, 1, 10**8 - 1)),
                 element(5, struct.pack("<iiii", 0, 1, 2, 3)), element(9, np.ones(3).tobytes()))  # fmt: skip
    Path("lost.mat").write_bytes(head + array(b"data", 6, (3, 4), element(9, np.zeros(12).tobytes())) + wide)
    assert read_table("lost.mat").names == ("1", "2", "100000000")  # and at once
    bomb = zlib.compress(array(b"data", 6, (2**22, 1), element(9, bytes(2**25))))
    Path("lost.mat").write_bytes(head + struct.pack("<II", 15, len(bomb)) + bomb)
    monkeypatch.setattr("ipll.engine.machine.memory", lambda: 2**24)
    assert "would unpack to more than" in refused(read_table, "lost.mat")


def test_all_commands_take_matrices(main: Any) -> None:
    part = {True: np.flatnonzero(SEEN), False: np.flatnonzero(~SEEN)}
    for name, rows, classes in (("first", part[True], slice(0, 3)), ("next", part[False], slice(0, 3))):
        savemat(f"{name}.mat", matlab(data=IRIS.data[rows], partial_target=SETS[rows, classes].T, target=TRUTH[rows].T))
    status, out, err = main("fit", "first.mat", "--out", "m", "--set", "train.epochs=6", "--device", "cpu")
    assert status == 0, err
    assert "Read first.mat: 120 samples of 4 features to learn from, 3 classes" in out
    assert "120 of them came with a label, which was not learnt from" in out
    assert "classes are called by their number, from 1." in err
    status, out, err = main("evaluate", "m", "next.mat")
    assert status == 0, err
    assert "on 30 rows" in out
    status, out, _ = main("predict", "m", "next.mat", "--out", "p.csv")
    assert "p.csv: 30 predictions" in out
    assert main("update", "m", "next.mat").status == 0
    again = main("update", "m", "next.mat")
    assert again.status == 2
    assert "id 'next.mat:1' was learnt before" in again.err
