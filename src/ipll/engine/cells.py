"""Cells of CSV files for people: a spreadsheet takes text that begins like a formula for one, and runs it.

Such text gets a leading apostrophe when it is written, as spreadsheets themselves mark text, and loses it when it is
read. Plain numbers stay as they are.
"""

from __future__ import annotations

import re

FORMULA = r"^'*[=+\-@\t\r]"
HARMLESS = r"^'*(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|nan)|[=+\-@])\z"


def guard(text: str) -> str:
    """-> a cell for a CSV; `unguarded` (own/guarded.py) gives the text back."""
    harmless = re.match(HARMLESS.replace(r"\z", r"\Z"), text)
    return f"'{text}" if re.match(FORMULA, text) and not harmless else text
