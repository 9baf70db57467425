"""HTML pages that need nothing else: a template with its script, which the page vouches for by its digest."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

NONE = "–"  # in a cell that has nothing to say

Row = tuple[str, list[str]]  # of a table: a label and one cell per column


def render_page(
    package: str,
    name: str,
    filters: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    scripts: Sequence[str] = (),
    **values: Any,
) -> str:
    """-> the page of a package's `templates/NAME.html.j2`, with the script `templates/NAME.js` and these values.
    `scripts` are the names of further ones, which run after it.

    Templates may use those of this package too: macros and the style sheet that all pages share.
    """
    templates = resources.files(package).joinpath("templates")
    script = "".join(templates.joinpath(f"{one}.js").read_text(encoding="utf-8") for one in (name, *scripts))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    loader = ChoiceLoader([PackageLoader(package), PackageLoader(__package__)])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= filters
    return environment.get_template(f"{name}.html.j2").render(script=script, script_hash=digest, **values)
