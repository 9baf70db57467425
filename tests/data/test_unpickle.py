"""A data file is read; a file that wants to run something is refused before anything has run."""

from __future__ import annotations

import builtins
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipll.data.unpickle import load_pickle
from ipll.errors import DataError


def text(value: bytes) -> bytes:
    """A Python 2 string."""
    return b"T" + struct.pack("<i", len(value)) + value


def array(module: bytes, values: np.ndarray, code: bytes, order: bytes = b"<") -> bytes:
    """An array as protocol 2 has it."""
    shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in values.shape) + b"t"
    state = b"(K\x03" + text(order) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
    dtype = b"cnumpy\ndtype\n(" + text(code) + b"K\x00K\x01tR" + state + b"b"
    empty = b"c" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + text(values.tobytes()) + b"tb"


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_old_and_new_module_path(tmp_path: Path, module: bytes) -> None:
    values = np.arange(256, dtype=np.uint8).reshape(2, 128)  # every byte, those that are no ASCII too
    content = b"\x80\x02}(" + text(b"data") + array(module, values, b"u1", b"|") + text(b"kind") + text(b"\xe9") + b"u."
    read = load_pickle(write(tmp_path / "train", content))
    assert list(read) == ["data", "kind"]
    assert read["kind"] == "\xe9"
    assert type(read["data"]) is np.ndarray
    assert read["data"].dtype == np.uint8
    assert read["data"].flags.writeable
    np.testing.assert_array_equal(read["data"], values)


@pytest.mark.parametrize("dtype", [">i4", "<f8", "?", "<u2"])
@pytest.mark.parametrize("protocol", [3, 4])
def test_what_numpy_writes_today_in_nested_containers(tmp_path: Path, dtype: str, protocol: int) -> None:
    values = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
    shared = [values, "text"]
    written = {"a": [1, (2.5, {"b": values})], "twice": [shared, shared], "none": None}
    read = load_pickle(write(tmp_path / "file", pickle.dumps(written, protocol=protocol)))
    np.testing.assert_array_equal(read["a"][1][1]["b"], values)
    np.testing.assert_array_equal(read["twice"][1][0], values)
    assert read["a"][1][1]["b"].dtype == values.dtype
    assert (read["a"][0], read["a"][1][0], read["none"]) == (1, 2.5, None)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"data": [1, ({"deep": x},)]}], ids=["bare", "nested"])
def test_exploits_do_not_run(tmp_path: Path, protocol: int, wrap: Any) -> None:
    mark = tmp_path / "was run"
    for call, name in (
        (Call(os.system, f"touch '{mark}'"), "system"),
        (Call(builtins.eval, f"open({str(mark)!r}, 'w').close()"), "eval"),
    ):
        content = pickle.dumps(wrap(call), protocol=protocol)
        file = write(tmp_path / "train", content)
        with pytest.raises(DataError, match=rf"train asks for '\w+\.{name}'"):
            load_pickle(file)
        assert not mark.exists()
        pickle.loads(content)  # it is a real exploit: pickle's own reader runs it
        assert mark.exists()
        mark.unlink()


def test_other_numpy_functions_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "train", pickle.dumps(Call(np.load, "x.npy")))
    with pytest.raises(DataError, match=r"'numpy\.load'"):
        load_pickle(file)


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    for code in (b"O8", b"V8", b"i4,O8"):
        # Bytes declared to be objects, without the flag that says 'object': addresses of the file's choice.
        content = b"\x80\x02" + array(b"numpy.core.multiarray", np.full(2, 0x41414141), code, b"|") + b"."
        with pytest.raises(DataError, match=f"type '{code.decode()}' are not admitted"):
            load_pickle(write(tmp_path / "train", content))


def test_stand_ins_cannot_be_changed_by_a_file(tmp_path: Path) -> None:
    change = b"\x80\x02c%b\n%b\n(N}" + text(b"__init__") + b"K\x01stb."
    for module, name in ((b"numpy", b"dtype"), (b"numpy", b"ndarray"), (b"numpy.core.multiarray", b"_reconstruct")):
        with pytest.raises(DataError, match="damaged"):
            load_pickle(write(tmp_path / "train", change % (module, name)))
    test_old_and_new_module_path(tmp_path, b"numpy.core.multiarray")


def test_a_container_that_holds_itself(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append({"again": loop})
    with pytest.raises(DataError, match="holds itself"):
        load_pickle(write(tmp_path / "train", pickle.dumps(loop)))


def test_every_truncation_is_a_data_error(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8)
    whole = b"\x80\x02}" + text(b"data") + array(b"numpy.core.multiarray", values, b"u1", b"|") + b"s."
    np.testing.assert_array_equal(load_pickle(write(tmp_path / "train", whole))["data"], values)
    for length in range(len(whole)):
        with pytest.raises(DataError, match=r"train is damaged .* Delete it and fetch"):
            load_pickle(write(tmp_path / "train", whole[:length]))


def test_shape_that_does_not_fit_the_bytes(tmp_path: Path) -> None:
    content = array(b"numpy.core.multiarray", np.zeros(4, np.uint8), b"u1", b"|").replace(
        b"J\x04\x00\x00\x00", b"J\x05\x00\x00\x00"
    )
    with pytest.raises(DataError, match="damaged"):
        load_pickle(write(tmp_path / "train", b"\x80\x02" + content + b"."))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*train: No such file"):
        load_pickle(tmp_path / "train")
