"""What the tests of the equations share."""

from __future__ import annotations

import pytest
from live import Live

from ipll.data.sources import load_source


@pytest.fixture(scope="session")
def live() -> Live:
    return Live(load_source("digits"))
