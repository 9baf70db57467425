"""Settings that change nothing are told: a sweep of them would give the same number over and over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipll.benchmark.checks import idle_notices
from ipll.config import resolve, to_toml


@pytest.mark.parametrize(
    ("method", "setting", "told"),
    [
        ("proden", "memory.size=50", "memory.size is set, but proden has no memory"),
        ("proden", "prototypes.gamma=0.3", "prototypes.gamma is set, but proden has no prototypes"),
        ("pgdr", "memory.size=50", ""),
        ("pgdr", "prototypes.gamma=0.3", ""),
        ("pgdr/no-memory", "memory.size=50", "memory.size is set, but pgdr/no-memory has no memory"),
        ("proden+wa", "memory.kind=none", ""),  # a memory less is a change
        (
            "pgdr/mp",
            "separation.kind=entropy",
            "separation.kind is set, but no part of pgdr/mp asks for the separation",
        ),
        ("pgdr", "separation.alpha=0.5", ""),
        ("pgdr", "model.projection=16", "model.projection is set, but no part of pgdr projects features"),
        ("pico", "model.projection=16", ""),
        ("pgdr", "model.width=64", "model.width is set, but model.backbone=small-cnn has none"),
    ],
)
def test_settings_that_change_nothing_are_told(
    method: str, setting: str, told: str, main: Any, quick_options: list[str], tmp_path: Path
) -> None:
    """Else a sweep of them would give the same number over and over, each time as another one's."""
    options = [*quick_options, "--method", method, "--set", setting, "--out", tmp_path / "run"]
    status, out, err = main("run", "digits", *options)
    assert status == 0, err
    assert ("changes nothing" in out + err) == bool(told)
    assert told in " ".join((out + err).split())


def test_in_a_file_only_what_it_changes_is_told(tmp_path: Path) -> None:
    """The file of another run holds all settings, those of prototypes that it has none of too."""
    file, plain = tmp_path / "mine.toml", resolve("digits", "proden+wa")
    file.write_text(to_toml(plain.to_table()))
    assert idle_notices(plain, {}, file) == []
    file.write_text("[prototypes]\ngamma = 0.3\n[memory]\nsize = 50")
    (told,) = idle_notices(resolve("digits", "proden+wa", file=file), {}, file)
    assert told.startswith("Note: prototypes.gamma is set, but proden+wa has no prototypes")


def test_of_a_member_that_nobody_asks_settings_change_nothing() -> None:
    chosen = {"disambiguation.kind": "proden", "separation.alpha": 0.5}
    (told,) = idle_notices(resolve("digits", "pgdr", overrides=chosen), chosen)
    assert told == "Note: separation.alpha is set, but no part of pgdr asks for the separation: it changes nothing."
