"""HTML pages that need nothing else: a template with its script, which the page vouches for by its digest."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_page(name: str, filters: dict[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """-> the page of `templates/NAME.html.j2`, with the script `templates/NAME.js` and these values."""
    script = resources.files("ipll.results").joinpath(f"templates/{name}.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("ipll.results"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= filters or {}
    return environment.get_template(f"{name}.html.j2").render(script=script, script_hash=digest, **values)
