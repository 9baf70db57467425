"""What `ipll methods` says: every method, its parts, the paper's tables, what was measured here, every setting."""

from __future__ import annotations

import io
import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipll import cli
from ipll.component import FAMILIES
from ipll.config import preset_names, resolve
from ipll.errors import ConfigError
from ipll.method import method_table
from ipll.paper.published import TABLES, cells, paper_value, tables_of
from ipll.paper.summary import made_of, setting_rows, table_numbers

METHODS = tuple(method_table())


def rows(out: str) -> dict[str, list[str]]:
    """The rows of printed tables, by their first cell."""
    lines = [line.strip("│").split("│") for line in out.splitlines() if line.startswith("│")]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


# The paper's numbers


def test_every_number_of_the_paper_belongs_to_a_method() -> None:
    assert len(cells()) == 561
    assert {cell.table for cell in cells()} == set(TABLES)
    for method, settings in {(cell.method, tuple(cell.settings.items())) for cell in cells()}:
        assert method in METHODS
        resolve("cifar100", method, overrides=dict(settings))  # what a sweep sets, the method knows


def test_tables_agree_where_they_repeat_a_number() -> None:
    def place(cell: Any) -> tuple[Any, ...]:
        return (*cell[1:6], sorted(cell.settings.items()), cell.metric)

    for _, same in groupby(sorted(cells(), key=place), key=place):
        assert len({cell.value for cell in same}) == 1


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [
        ("pgdr", {"q": 0.1}, 64.40),
        ("proden+pgdr", {"q": 0.1}, 64.40),  # an alias
        ("pico+wa", {"q": 0.1}, 67.31),
        ("pico+pgdr", {"q": 0.2, "blurry": 30}, 70.85),
        ("pico+pgdr", {"q": 0.1, "tasks": 20}, 65.54),
        ("pico+pgdr", {"q": "banded"}, 67.10),
        ("pico+pgdr", {"q": 0.2, "blurry": 0}, 63.26),
        ("pico+pgdr", {"q": 0.1, "metric": "std"}, 0.88),
        ("pgdr/linear-classifier", {"q": 0.1}, 59.30),
        ("pgdr/no-memory", {"q": 0.2}, 23.18),
        ("pgdr/no-memory", {"q": 0.1}, None),
        ("pgdr", {"q": 0.1, "tasks": 20}, None),
    ],
)
def test_numbers_of_the_paper(method: str, setting: dict[str, Any], value: float | None) -> None:
    assert paper_value(method, "cifar100", **setting) == value


def test_sweeps_are_a_method_with_settings() -> None:
    swept = [cell for cell in cells() if cell.table == "tab:beta"]
    assert [cell.settings["disambiguation.beta_start"] for cell in swept] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(cell.method == "pgdr" and len(set(cell.settings.values())) == 1 for cell in swept)


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        ("pico+wa", "1, 2, 4-6, 16, 17"),
        ("proden+c-flat", "9"),
        ("terial+ancl", "10"),
        ("pgdr", "3, 7-13, 16, text"),
        ("terial+pgdr", "3, 7-13, 16, text"),
        ("papi+pgdr/no-kd", ""),
    ],
)
def test_tables_of_a_method(method: str, numbers: str) -> None:
    assert table_numbers(method) == numbers
    assert bool(tables_of(method)) == bool(numbers)


# The list


def test_the_list_has_one_line_a_method(main: Any) -> None:
    status, out, err = main("methods")
    assert (status, err) == (0, "")
    listed = rows(out)
    assert set(listed) == set(METHODS)
    assert listed["pgdr"][1] == "3, 7-13, 16, text"
    assert listed["pico+wa"][:2] == ["pico · contrastive · wa · herding memory", "1, 2, 4-6, 16, 17"]
    assert re.fullmatch(r"6\d\.\d\d / 64\.40 \(\+\d+\)", listed["pgdr"][2])
    assert listed["pgdr/mp"][0] == "pgdr, but proden disambiguation, no separation"
    assert "every number: ipll table published" in out


def test_groups_of_the_list(main: Any) -> None:
    parts = re.split(r"\n *(?=PGDR, plain|Variants|Ours\b)", main("methods").out)
    pairs, pgdr, variants, ours = (set(rows(part)) for part in parts)
    assert len(pairs) == 4 * 7
    assert pgdr == {"pgdr", "proden+pgdr", "terial+pgdr", "pico+pgdr", "papi+pgdr"}
    assert len(variants) == 3 * 12  # the paper's ten, and our two
    assert ours == {"pgdr/best", "pgdr/boosted", "pgdr/images", "pgdr/tables"}


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_is_made_of_names_all_its_members(method: str) -> None:
    """Told by itself or by the method that it is a variant of; what a plain learner has is left out."""
    config = resolve("digits", method)
    words = made_of(method)
    base, but, changes = words.partition(", but ")
    said = made_of(base) if but else made_of(words.removeprefix("the same as ")) if "same as" in words else words
    for part in config.parts:
        if part.kind not in ("none", "linear", "sgd"):
            assert part.kind in said + changes, part
    if but:
        assert resolve("digits", base).parts != config.parts
        assert base == method.partition("/")[0]


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        (None, set(METHODS)),
        ("papi+pgdr", {"auxiliary.prototype-kl", "momentum_buffers", "checkpoint_seconds"}),
        ("pico+er-ace", {"auxiliary.contrastive", "prototype_momentum", "warm_up"}),
    ],
)
def test_a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch, name: str | None, whole: set[str]) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(cli.console, "out_console", Console(file=screen, width=100, force_terminal=True))
    cli.methods(name)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    table = [line for line in lines if line[:1] in "┏┃┡│├└"]
    assert max(map(len, table)) <= 100
    assert "…" not in "".join(table)  # nothing is cut
    assert whole <= {line.strip("│").split("│")[0].strip() for line in table if line.startswith("│")}


# One method


def test_every_setting_with_the_value_that_it_has() -> None:
    for preset in preset_names():
        for method in METHODS:
            config = resolve(preset, method).to_table()
            shown = {key: value for key, value, *_ in setting_rows(method, preset)}
            flat = {f"{section}.{key}": value for section in config for key, value in _leaves(config[section])}
            assert shown == {key: value if isinstance(value, str) else json.dumps(value) for key, value in flat.items()}


def _leaves(values: Any) -> list[tuple[str, Any]]:
    if not isinstance(values, dict):
        return []
    return [
        (f"{key}.{name}" if name else key, leaf)
        for key, value in values.items()
        for name, leaf in (_leaves(value) if isinstance(value, dict) else [("", value)])
    ]


@pytest.mark.parametrize(
    ("preset", "method", "key", "value", "origin"),
    [
        ("cifar100", "pico+icarl", "retention.temperature", "2.0", "method"),
        ("cifar100", "pgdr", "retention.temperature", "1.0", "ours"),
        ("cifar100", "pico+wa", "retention.temperature", "2.0", "official code"),
        ("cifar100", "pico+er-ace", "memory.batches", "paired", "method"),
        ("cifar100", "pico+er-ace", "model.head", "cosine", "method"),
        ("cifar100", "pico+er-ace", "auxiliary.kinds", '["contrastive"]', "method"),
        ("cifar100", "pgdr", "train.lr", "0.1", "paper"),
        ("cifar100", "papi", "train.lr", "0.01", "method, for cifar100"),
        ("digits", "papi", "train.lr", "0.2", "preset"),
        ("digits", "pgdr", "train.epochs", "20", "preset"),
        ("cifar100", "pgdr", "train.epochs", "200", "paper"),
        ("cifar100", "pgdr", "separation.alpha", "0.8", "paper"),
        ("cifar100", "pgdr", "memory.kind", "representative-diverse", "method"),
        ("cifar100", "pgdr/distance-memory", "memory.diverse_share", "0.0", "method"),
    ],
)
def test_where_a_value_comes_from(main: Any, preset: str, method: str, key: str, value: str, origin: str) -> None:
    status, out, _ = main("methods", method, "--preset", preset)
    assert status == 0
    row = rows(out)[key]
    assert row[:2] == [value, origin]
    assert row[2]


def test_one_method_says_what_it_is(main: Any) -> None:
    out = main("methods", "pgdr").out
    assert out.startswith("pgdr: PGDR (prototype-guided")
    assert "tables of the paper: 3, 7-13, 16, text" in out
    first = r"  6.{4} \(paper 64.40\), cifar100, 10 tasks, 10-blurry, q 0.1, 200 epochs, n = 3: "
    assert re.search(rf"measured here:\n{first}results/cifar100/pgdr/q0.1-10b-seed0.json and 2 more\n", out)
    assert "pgdr on cifar100" in out
    out = main("methods", "terial+c-flat", "--preset", "digits").out
    assert "tables of the paper: none" in out
    assert "measured here: no" in out


def test_names_that_do_not_exist(main: Any) -> None:
    for arguments, says in (
        (
            ["pico+ware"],
            "unknown method 'pico+ware'. Did you mean 'pico+wa'? One of a plugin is known with --plugin FILE.",
        ),
        (["zzzz"], "unknown method 'zzzz'. See: ipll methods. One of a plugin is known with --plugin FILE."),
        (["pgdr", "--preset", "cifar10"], "unknown preset 'cifar10'. Did you mean 'cifar100'?"),
    ):
        status, out, err = main("methods", *arguments)
        assert (status, out) == (2, "")
        assert says in err
    with pytest.raises(ConfigError, match="unknown method"):
        tables_of("pgrd")


def test_families_are_told_in_the_map_of_the_code(root: Path) -> None:
    """docs/architecture.md lists every member."""
    lines = (root / "docs" / "architecture.md").read_text().splitlines()
    for family, registry in FAMILIES.items():
        (line,) = (line for line in lines if line.startswith(f"| {family} |"))
        assert set(re.findall(r"`([^`]+)`", line.split("|")[3])) == set(registry), family
