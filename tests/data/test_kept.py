"""What is kept of a network's embeddings, where it cannot be read."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipll.data import kept
from ipll.data.kept import Kept


def test_a_file_that_cannot_be_read_now_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, say, which pass: it is made anew, and found again later."""
    store, key = Kept(tmp_path, dim=2), hashlib.sha256(b"a picture").digest()
    store.add({key: np.ones(2, np.float32)})
    with monkeypatch.context() as patch:
        patch.setattr(kept, "read_npz", refuse)
        assert not store.find({key})
    np.testing.assert_array_equal(store.find({key})[key], np.ones(2))


def refuse(*_: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")
