"""What a mistyped option gets: the options that are near, and the settings that are called so (`--epochs`).

The sources say which settings there are. To import them takes torch, which takes seconds.
"""

from __future__ import annotations

import ast
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

SHOWN = 3
UsageError: Any = typer.BadParameter.__mro__[1]  # typer's own, or click's: that depends on its version


class Program(TyperGroup):
    """The commands, with a plain flag --help: typer checks one that has no default by pydantic, in a quarter second."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


class Command(TyperCommand):
    """A command that knows settings from options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if hasattr(error, "possibilities"):  # no such option
                _explain(error, takes_settings=any("--set" in option.opts for option in self.params))
            raise


def _explain(error: Any, *, takes_settings: bool) -> None:
    """Adds the settings to what the error says; one that is called just so stands in place of options that are near."""
    settings = near_settings(error.option_name)
    exact = any(name.rpartition(".")[2] == _name(error.option_name) for name in settings)
    if settings and takes_settings:
        options = [] if exact else list(error.possibilities or ())
        proposed = [*options, *(f"--set {name}=VALUE" for name in settings)]
        error.message += f". Did you mean {' or '.join(proposed[:SHOWN])}?"
        error.possibilities = []
    elif exact:
        error.message += f". A setting ({', '.join(settings)}), which this command does not take."


def near_settings(option: str) -> list[str]:
    """-> the settings that an option may have meant: called so; else nearly so; else described so."""
    meanings, wanted = setting_meanings(), _name(option)
    last = {name: name.rpartition(".")[2] for name in meanings}
    near = get_close_matches(wanted, last.values(), n=SHOWN, cutoff=0.75)
    called_so = [name for name in meanings if last[name] == wanted]
    nearly_so = [name for name in meanings if last[name] in near or last[name].startswith(f"{wanted}_")]
    described_so = [name for name in meanings if meanings[name].startswith(wanted.replace("_", " "))]
    return (called_so or nearly_so or described_so)[:SHOWN]


def setting_meanings() -> dict[str, str]:
    """-> what each setting means, by its dotted name; those of ipll, not of plugins."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    trees = (ast.parse(text) for text in texts if "= setting(" in text)
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    return {
        f"{section}.{line.target.id}": str(getattr(line.value.args[1], "value", ""))
        for node in classes.values()
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(line.value, ast.Call)
        if (section := _section(node, classes))
    }


def _section(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> str:
    """-> class X(Section, name="train"): 'train'; that of its base where it has none of its own."""
    named = [str(word.value.value) for word in node.keywords if isinstance(word.value, ast.Constant)]
    bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return [*named, *(_section(base, classes) for base in bases), ""][0]


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_").lower()
