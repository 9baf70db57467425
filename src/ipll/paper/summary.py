"""Tables for the terminal: results side by side, methods, settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from ipll.component import FAMILIES
from ipll.config import SECTIONS, packaged_layers, resolve
from ipll.messages import cell
from ipll.method import ADDED, canonical, method_entry, method_table, our_methods
from ipll.paper.measured import measured_of
from ipll.paper.published import TABLES, tables_of
from ipll.results.conditions import accuracy_word, scored_alike
from ipll.results.result import Result
from ipll.settings import describe


def compare(results: Sequence[Result]) -> Table:
    """Accuracy on all classes seen so far after each task, one column a run; all on the same kind of samples."""
    first = max(results, key=lambda result: len(result["accuracy_per_task"]))
    names = [str(result.folder or f"{result['method']} ({i})") for i, result in enumerate(results, 1)]
    accuracy = accuracy_word(scored_alike(dict(zip(names, results, strict=True))))
    table = Table(title=f"{cell(first['preset'])}: {accuracy} on all classes seen so far, in %")
    table.add_column("after task", justify="right")
    table.add_column("classes", justify="right")
    for result in results:
        table.add_column(cell(result["method"]), justify="right")
    for t in range(len(first["accuracy_per_task"])):
        cells = [result["accuracy_per_task"][t : t + 1] for result in results]
        shown = (f"{one[0]:.1f}" if one else "" for one in cells)
        table.add_row(str(t + 1), str(first["seen_classes_per_task"][t]), *shown)
    table.add_section()
    rows = {
        "average": "average_incremental_accuracy",
        "forgetting": "forgetting",
        "seconds": "wall_seconds",
    }
    for label, key in rows.items():
        table.add_row(label, "", *(f"{result[key]:.1f}" for result in results))
    return table


def method_groups() -> dict[str, list[str]]:
    """All methods: what a group has in common -> its names."""
    groups: dict[str, list[str]] = {
        "A disambiguation, with a retention": [],
        "PGDR, plain and with another method's loss": [],
        "Variants of PGDR": [],
        "Ours": [],
        "From plugins": [],
    }
    pairs, pgdr, variants, ours, added = groups.values()
    for name in method_table():
        if name in ADDED:
            added.append(name)
        elif name in our_methods():
            ours.append(name)
        else:
            (variants if "/" in name else pgdr if name.endswith("pgdr") else pairs).append(name)
    return {title: names for title, names in groups.items() if names}


def method_row(name: str) -> tuple[str, ...]:
    """-> (name, members, numbers of the paper's tables, our number beside the paper's) of a method.

    Of several numbers the first one, on which data if not CIFAR-100, and how many more there are. A star: with other
    training than the paper's.
    """
    measured, number = measured_of(name), ""
    if measured:
        one, more = measured[0], len(measured) - 1
        star, paper = "" if one.protocol.is_papers else "*", "-" if one.paper is None else f"{one.paper:.2f}"
        where = "" if one.setting.dataset == "cifar100" else f" {one.setting.dataset}"
        number = f"{one.ours:.2f}{star} / {paper}{where}" + (f" (+{more})" if more else "")
    return name, made_of(name), table_numbers(name), number


def table_numbers(method: str) -> str:
    """-> the paper's tables that the method appears in, neighbours joined: '1, 2, 4-6'."""
    shown: list[list[str]] = []
    for label in tables_of(method):
        number = TABLES[label]
        if shown and shown[-1][-1].isdigit() and number == str(int(shown[-1][-1]) + 1):
            shown[-1].append(number)
        else:
            shown.append([number])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}{', ' if len(run) == 2 else '-'}{run[-1]}" for run in shown)


def made_of(name: str) -> str:
    """-> a method's members and own settings; an alias and a variant are told by the method that they come from.

    What a plain learner has anyway is left out: a linear classifier, SGD, and 'none' of a family.
    """
    base = name.partition("/")[0]
    if (same := canonical(name)) != name:
        return f"the same as {same}"
    if base != name and base in method_table():
        return f"{base}, but {', '.join(_differences(method_entry(name), method_entry(base)))}"
    entry, words = method_entry(name), []
    for family in FAMILIES:
        if family == "auxiliary":
            words += entry[family]
        elif (kind := entry[family]) not in ("none", "linear", "sgd"):
            words.append(f"{kind} {family}" if family in ("separation", "memory", "classifier") else kind)
    return " · ".join([*dict.fromkeys(words), *(f"{key}={value}" for key, value in _own_settings(entry).items())])


def _differences(entry: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    words = []
    for family in FAMILIES:
        if family == "auxiliary":
            words += [f"no {kind}" for kind in base[family] if kind not in entry[family]]
            words += [kind for kind in entry[family] if kind not in base[family]]
        elif entry[family] != base[family]:
            words.append(f"no {family}" if entry[family] == "none" else f"{entry[family]} {family}")
    settings, former = _own_settings(entry), _own_settings(base)
    return words + [f"{key}={value}" for key, value in settings.items() if former.get(key) != value]


def _own_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in (*FAMILIES, "doc") and not key.startswith("@")}


def setting_rows(method: str, preset: str) -> Iterator[tuple[str, ...]]:
    """(key, value, where it comes from, meaning) of every setting that a method has on a preset.

    A value comes from the paper, official code or us where it is the default, else from the preset or the method.
    """
    config = resolve(preset, method)
    values = _flat(config.to_table())
    layers = {name: _flat(layer) for name, layer in packaged_layers(preset, method).items()}

    def rows(section: str, settings: type[Any]) -> Iterator[tuple[str, ...]]:
        for name, default, meaning, origin in describe(settings):
            key = f"{section}.{name}"
            changed = [layer for layer, own in layers.items() if key in own] if values[key] != _text(default) else []
            yield key, values[key], changed[-1] if changed else origin, meaning

    for section, settings in SECTIONS.items():
        yield from rows(section, settings)
    for family in FAMILIES:
        several = family == "auxiliary"
        key = f"{family}.kinds" if several else f"{family}.kind"
        yield key, values[key], "method", f"the member{'s' if several else ''} of this family"
        for part in config.parts:
            if part.family == family:
                yield from rows(f"{family}.{part.kind}" if several else family, type(part.settings))


def setting_table(rows: Iterable[tuple[str, ...]], *, title: str, narrow: bool) -> Table:
    """Rows of `setting_rows`, one line each under its full key; for a narrow screen, wrapped and grouped by section."""
    table = Table("setting", title=title)
    for name, width in (("value", 22), ("from", 13), ("meaning", None)):
        table.add_column(name, max_width=width if narrow else None)
    former = ""
    for key, *cells in rows:
        section, _, name = key.rpartition(".")
        if narrow and section != former:
            table.add_section()
            table.add_row(section, style="bold")
            former = section
        table.add_row(f"  {name}" if narrow else key, *map(cell, cells))
    return table


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Nested tables -> {'a.b': value}, values as --set takes them."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: _text(value)}
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
