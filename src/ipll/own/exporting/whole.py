"""All that lies between a sample as a user has it and what is said of it, as one module that can be traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ipll.learner import Learner
from ipll.own.training import judged
from ipll.views.images import Views


class Whole(nn.Module):
    """Features float32 [n, d], or images uint8 [n, height, width, channels] -> probabilities [n, classes], class [n],
    distance [n], unlike [n].

    It computes what `Model.predict` does, by the learner's own parts; `before`, where there is one, makes the features
    of images [n, channels, height, width]. The learner is held in a tuple: what is registered would go into the file,
    the memory's samples among it.
    """

    def __init__(
        self, learner: Learner, centres: Tensor, temperature: float, far: float, before: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.held = (learner.eval(), before)
        self.centres, self.temperature, self.far = centres, temperature, far

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        learner, before = self.held
        with Plainly():
            if samples.ndim == 4:
                samples = samples.permute(0, 3, 1, 2)
            if before is not None:
                samples = before(samples)
            outputs = [learner.network(look) for look in _looks(learner, samples)]
            features, logits = (
                sum(parts[1:], parts[0]) / len(parts) for parts in zip(*(out[:2] for out in outputs), strict=True)
            )
            logits = learner.ctx.correct(logits)
            probabilities, distance = judged(learner, features, logits, self.centres, self.temperature)
            return probabilities, probabilities.argmax(dim=1), distance, distance > self.far


class Photo(nn.Module):
    """Photos, uint8 [n, 3, size, size] -> what a pretrained network gives for them [n, dim]."""

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (mean, std))

    def forward(self, photos: Tensor) -> Tensor:
        found: Tensor = self.network((photos.float() - self.mean) / self.std)
        return found.flatten(1)


def _looks(learner: Learner, samples: Tensor) -> tuple[Tensor, ...]:
    """As `Views.looks` and `FeatureViews.looks`, without blocks, whose number would depend on that of the samples."""
    views = learner.ctx.views
    if not isinstance(views, Views):
        return views.looks(torch.where(torch.isnan(samples), views.mean, samples))  # numbers that are missing
    plain = torch.addcmul(views.offset, views.plain_view.apply(samples.float()), views.scale)
    return (plain, plain.flip(-1)) if views.test_mirror else (plain,)


class Plainly(TorchFunctionMode):
    """Within it, functions that ONNX lacks are made of those that it has."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return PLAIN.get(func, func)(*args, **(kwargs or {}))


def searchsorted(knots: Tensor, values: Tensor) -> Tensor:
    """knots [d, k], in order, values [d, n] -> [d, n]: how many knots of the row are less. By bisection."""
    k = knots.shape[1]
    step = 1 << k.bit_length() >> 1
    filled = F.pad(knots, (0, 2 * step - 1 - k), value=torch.inf)
    found = torch.zeros_like(values, dtype=torch.int64)
    while step:
        found = found + step * (filled.gather(1, found + (step - 1)) < values)
        step //= 2
    return found


def cdist(features: Tensor, points: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor:
    """[n, d], [m, d] -> distances [n, m]. By products, seen from the points' mean: what is far from zero would lose
    digits."""
    if p != 2:
        raise NotImplementedError("distances other than the Euclidean one")
    middle = points.mean(dim=0)
    x, y = features - middle, points - middle
    squares = (x * x).sum(dim=1, keepdim=True) + (y * y).sum(dim=1) - 2 * (x @ y.T)
    return squares.clamp_min(0).sqrt()


def interpolate(
    images: Tensor,
    size: tuple[int, int],
    scale_factor: None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: None = None,
    antialias: bool = False,
) -> Tensor:
    """Bilinear, smoothed where images shrink; each side is resized by a matrix."""
    if (mode, align_corners, antialias) != ("bilinear", False, True):
        raise NotImplementedError(f"resizing that is {mode}")
    rows, columns = (torch.from_numpy(resizing(*both)) for both in zip(images.shape[-2:], size, strict=True))
    return rows @ images @ columns.T


def resizing(before: int, after: int) -> npt.NDArray[np.float32]:
    """-> [after, before]: how much of each pixel of a line goes into each of the resized one."""
    scale = before / after
    centres, pixels = (np.arange(after) + 0.5) * scale, np.arange(before) + 0.5
    weights = np.maximum(0, 1 - np.abs(pixels - centres[:, None]) / max(scale, 1))
    shares: npt.NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return shares


def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    return torch.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


def nan_to_num(x: Tensor, nan: float) -> Tensor:
    return torch.where(torch.isnan(x), nan, x)


def embedding_bag(index: Tensor, values: Tensor, *, mode: str, **unused: Any) -> Tensor:
    """index [n, k], values [m, d] -> the sum of k of them [n, d]. The exporter's own is a loop over samples: 20,000
    rows through 160 trees took 11 s instead of 2.5."""
    if mode != "sum" or any(value not in (None, False, 2.0) for value in unused.values()):  # 2: a norm not asked for
        raise NotImplementedError(f"bags that are not plain sums: {unused}")
    return F.embedding(index, values).sum(dim=1)


PLAIN: dict[Any, Callable[..., Any]] = {
    torch.searchsorted: searchsorted,
    torch.cdist: cdist,
    F.interpolate: interpolate,
    torch.lerp: lerp,
    torch.Tensor.nan_to_num: nan_to_num,
    F.embedding_bag: embedding_bag,
}
