"""The families of components: a method is one member of each, of auxiliary losses any number.

Each door, FAMILY/__init__.py, holds the family's base, the member that does nothing where there is one, and MEMBERS:
the modules of all others, which register themselves when they are imported.
"""

from __future__ import annotations

from importlib import import_module

from ipll.component import FAMILIES


def load_members() -> None:
    """Makes every member known by its name."""
    for family in FAMILIES:
        door = import_module(f"{__name__}.{family}")
        for module in door.MEMBERS:
            import_module(f"{door.__name__}.{module}")
