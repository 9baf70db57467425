"""Embeddings that are kept, by what they were made of: a folder of small archives, each written whole."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipll.engine.files import remove, write_atomically
from ipll.engine.npz import read_npz
from ipll.errors import DataError, DiskError
from ipll.messages import tell

Floats = npt.NDArray[np.float32]
KEY = 32  # bytes


class Kept:
    """`keys` uint8 [n, 32] and `values` float32 [n, dim] in each file; its name is the digest of the keys.

    Files are added and never changed, so processes need not wait for each other, and what a kill leaves is whole. What
    is damaged (an archive has checksums) is removed and made anew.
    """

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim, self.refused = folder, dim, False

    def find(self, wanted: Collection[bytes]) -> dict[bytes, Floats]:
        """-> the embeddings that are there, of those wanted."""
        found: dict[bytes, Floats] = {}
        for path in sorted(self.folder.glob("*.npz")):
            try:
                if here := [i for i, key in enumerate(self._keys(path)) if key in wanted and key not in found]:
                    found |= self._values(path, here)
            except FileNotFoundError:  # another process has found it damaged
                continue
            except OSError as error:
                tell(f"{path} cannot be read ({error.strerror or error}): what it holds is made anew.")
            except (ValueError, KeyError):
                tell(f"{path} is damaged: what it held is made anew.")
                try:
                    remove(path)
                except DataError as error:
                    tell(str(error))
        return found

    def add(self, fresh: Mapping[bytes, Floats]) -> None:
        """Keeps these; where the disk refuses, that is said once, and nothing is kept."""
        if not fresh or self.refused:
            return
        keys = np.frombuffer(b"".join(fresh), np.uint8).reshape(-1, KEY)
        values = np.stack(list(fresh.values()))
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez(file, keys=keys, values=values)

        try:
            write_atomically(self.folder / f"{name}.npz", write)
        except DiskError as error:
            self.refused = True
            tell(f"Embeddings are not kept: {error}")

    def _keys(self, path: Path) -> list[bytes]:
        keys = read_npz(path, ("keys",))["keys"]
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY:
            raise ValueError("its keys are no digests")
        return [key.tobytes() for key in keys]

    def _values(self, path: Path, rows: list[int]) -> dict[bytes, Floats]:
        arrays = read_npz(path, ("keys", "values"))
        keys, values = arrays["keys"], arrays["values"]
        if values.dtype != np.float32 or values.shape != (len(keys), self.dim) or not np.isfinite(values).all():
            raise ValueError("its values are no embeddings")
        return {keys[row].tobytes(): values[row] for row in rows}
