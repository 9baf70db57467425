"""CutMix: a further view that holds parts of two images, learnt with both their targets (Yun et al., ICCV 2019)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ipll.component import Batch, Component, Draw
from ipll.networks.network import Output


class CutMix(Component):
    """Joins any method by `augment.cutmix`, the weight of its loss, so that every baseline can have it too.

    Each weak view gets a rectangle of another one of the batch. How much of the area stays is uniform on [0, 1], the
    rectangle's place too; what lies beyond the border is cut off, and the share is what is left. The loss is that of
    both targets in these shares, each with the logits as its own sample sees them (`Component.reshape`).
    """

    views = ("cutmix",)

    def inputs(self, draw: Draw, generator: torch.Generator) -> None:
        weak = draw.views["weak"]
        n, _, height, width = weak.shape
        kept, x, y = torch.rand((3, n, 1), generator=generator, device=weak.device)
        partner = torch.randperm(n, generator=generator, device=weak.device)
        pasted = rectangles(kept, x, y, height, width)
        draw.views["cutmix"] = torch.where(pasted[:, None], weak[partner], weak)
        draw.extra |= {"cutmix partner": partner, "cutmix share": 1 - pasted.float().mean((1, 2))}

    def losses(self, out: Mapping[str, Output], targets: Tensor, batch: Batch) -> dict[str, Tensor]:
        view, partner, share = out["cutmix"], batch.extra["cutmix partner"], batch.extra["cutmix share"]
        other = view.logits + (view.shaped - view.logits)[partner]
        own, others = (
            -(wanted * shaped.float().log_softmax(dim=1)).sum(dim=1)
            for wanted, shaped in ((targets, view.shaped), (targets[partner], other))
        )
        return {"cutmix": (share * own + (1 - share) * others).mean()}

    def weights(self) -> dict[str, float]:
        return {"cutmix": float(self.settings)}


def rectangles(kept: Tensor, x: Tensor, y: Tensor, height: int, width: int) -> Tensor:
    """-> [n, height, width] bool: the pixels of a rectangle about (x, y) of 1 - `kept` of the area, as far as it lies
    in the image. All three are columns [n, 1] in [0, 1)."""
    half = (1 - kept).sqrt() / 2
    rows = (torch.arange(height, device=kept.device) + 0.5) / height
    columns = (torch.arange(width, device=kept.device) + 0.5) / width
    in_rows, in_columns = (rows - y).abs() < half, (columns - x).abs() < half
    return in_rows[:, :, None] & in_columns[:, None, :]
