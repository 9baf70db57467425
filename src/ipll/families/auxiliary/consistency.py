"""Consistency regularisation: the strong view must agree with the soft target (the appendix's L_cr)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ipll.component import FAMILIES, Batch, Component, soft_cross_entropy
from ipll.networks.network import Output
from ipll.settings import Section, setting


@dataclass(frozen=True)
class ConsistencySettings(Section, name="auxiliary.consistency"):
    weight: float = setting(1.0, "weight of L_cr in the total loss (Eq. 11)", "paper", least=0)


@FAMILIES["auxiliary"].register("consistency")
class Consistency(Component):
    Settings = ConsistencySettings
    views = ("strong",)

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"cr": soft_cross_entropy(out["strong"].shaped, targets)}

    def weights(self) -> dict[str, float]:
        return {"cr": self.settings.weight}
