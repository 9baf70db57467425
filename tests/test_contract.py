"""Every named method keeps the contract, and so do combinations that have no name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipll.component import FAMILIES
from ipll.method import method_table
from ipll.testing import check_method

FREE = [
    ("pgdr", {"update.kind": "c-flat"}),
    ("pgdr", {"memory.kind": "herding"}),
    ("pico+bic", {"memory.kind": "representative-diverse", "train.momentum_buffers": "carried"}),
]


ALIKE = ("pico+", "papi+", "terial+")  # whose parts other rows of the same grid have too
KEPT = ("pico+pgdr", "pico+bic", "pico+ancl", "pico+c-flat", "papi+pgdr", "papi+ancl", "terial+wa")


def listed() -> list[Any]:
    """Every named method. Those whose parts are all in others, put together in the same way, have time in `slow`."""
    again = [n for n in method_table() if ("+" in n and "/" in n) or (n.startswith(ALIKE) and n not in KEPT)]
    return [pytest.param(n, marks=pytest.mark.slow) if n in again else n for n in method_table()]


@pytest.mark.parametrize("name", listed())
def test_named_method(name: str) -> None:
    check_method(name)


@pytest.mark.parametrize(("name", "settings"), FREE, ids=[f"{name} {' '.join(s.values())}" for name, s in FREE])
def test_free_combination(name: str, settings: dict[str, Any]) -> None:
    check_method(name, **settings)


def test_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method's author calls the same battery."""
    members = FAMILIES["disambiguation"].members
    monkeypatch.setattr("ipll.plugins._files", {})  # other tests are to know nothing of it
    monkeypatch.setattr(FAMILIES["disambiguation"], "members", dict(members))
    plugin = tmp_path / "smooth.py"
    plugin.write_text(
        "from ipll.component import FAMILIES\n"
        "from ipll.families.disambiguation.proden import Proden\n\n\n"
        "@FAMILIES['disambiguation'].register('smooth')\n"
        "class Smooth(Proden):\n"
        "    def targets(self, p, out, batch):\n"
        "        use, store = super().targets(p, out, batch)\n"
        "        return use, (p + store) / 2\n"
    )
    check_method("proden+wa", plugins=[plugin], **{"disambiguation.kind": "smooth"})
