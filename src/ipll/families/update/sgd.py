"""Plain steps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ipll.component import FAMILIES
from ipll.families.update import Update


@FAMILIES["update"].register("sgd")
class Sgd(Update):
    """Stochastic gradient descent with momentum."""

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        self.descent.forget_gradients()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        self.descent.step()
        return value.detach()
