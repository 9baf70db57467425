from __future__ import annotations

import pytest
from weights import State, lively, thin, torchvision_state


@pytest.fixture
def state() -> State:
    return torchvision_state(lively(thin()))
