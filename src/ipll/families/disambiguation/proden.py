"""PRODEN: progressive identification of the true label (Lv et al., ICML 2020)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ipll.component import FAMILIES, Batch
from ipll.families.disambiguation import Disambiguation
from ipll.networks.network import Output


@FAMILIES["disambiguation"].register("proden")
class Proden(Disambiguation):
    """Learns from the stored targets, then replaces them with the prediction of the same pass, restricted to S_i.

    The mask is the candidate set itself, not 'weight above zero' as in the official code, where a weight that
    underflows once can never return.
    """

    def targets(self, p: Tensor, out: Mapping[str, Output], batch: Batch) -> tuple[Tensor, Tensor]:
        logits = out["weak"].logits.float().masked_fill(~batch.candidates, -float("inf"))
        return p, logits.softmax(dim=1)
