"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started
