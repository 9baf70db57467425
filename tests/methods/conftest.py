"""What the tests of the methods share."""

from __future__ import annotations

import pytest

from ipll.data.sources import load_source
from live import Live


@pytest.fixture(scope="session")
def live() -> Live:
    return Live(load_source("digits"))
