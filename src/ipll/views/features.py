"""The views of feature vectors: tabular data and embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ipll.errors import ConfigError, DataError
from ipll.views.augment import NOISE, AugmentConfig
from ipll.views.images import Views

FEATURE_VIEWS = ("identity", NOISE)


class FeatureViews:
    """The weak, strong and plain view of float32 features [n, d] -> float32, standardised.

    `mean` and `std` are per feature; one that does not vary is only centred. 'identity' is the features as they are.
    'noise' adds Gaussian noise of `augment.noise` standard deviations, and then gives each feature, with probability
    `augment.drop`, its mean: the value that says least.
    """

    def __init__(
        self, config: AugmentConfig, mean: Sequence[float], std: Sequence[float], device: torch.device | str
    ) -> None:
        self.noise, self.drop = config.noise, config.drop
        self.noisy = {"weak": config.weak == NOISE, "strong": config.strong == NOISE}
        self.mean, spread = (torch.tensor(values, dtype=torch.float32, device=device) for values in (mean, std))
        self.scale = 1 / torch.where(spread > 0, spread, 1.0)

    def weak(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return self._perturbed(samples, generator) if self.noisy["weak"] else self.plain(samples)

    def strong(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return self._perturbed(samples, generator) if self.noisy["strong"] else self.plain(samples)

    def plain(self, samples: Tensor) -> Tensor:
        """No augmentation: what is shown to the model at test."""
        if samples.dtype != torch.float32 or samples.ndim != 2 or samples.shape[1] != len(self.mean):
            raise DataError(
                f"samples are {samples.dtype} {list(samples.shape)}: this model takes float32 features "
                f"[n, {len(self.mean)}]."
            )
        return (samples - self.mean) * self.scale

    def looks(self, samples: Tensor) -> tuple[Tensor, ...]:
        """All that the model is shown of samples at test, to be averaged: the plain view alone."""
        return (self.plain(samples),)

    def _perturbed(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        features = self.plain(samples)
        noise = torch.randn(features.shape, generator=generator, device=features.device)
        kept = torch.rand(features.shape, generator=generator, device=features.device) >= self.drop
        return (features + self.noise * noise) * kept


def make_views(
    takes: str,
    config: AugmentConfig,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
    *,
    compiled: bool = False,
    graphs: bool = False,
) -> Views | FeatureViews:
    """-> the views of what a backbone takes, 'images' or 'features'."""
    features = takes == "features"
    for key, name in (("weak", config.weak), ("strong", config.strong)):
        if features and name not in FEATURE_VIEWS:
            raise ConfigError(
                f"augment.{key} '{name}' is a view of images, but model.backbone takes features: "
                f"choose one of {', '.join(FEATURE_VIEWS)}."
            )
        if not features and name == NOISE:
            raise ConfigError(
                f"augment.{key} '{name}' is a view of features, but model.backbone takes images: choose another view, "
                "or --set model.backbone=mlp."
            )
    for key, value, off in (
        ("test_size", config.test_size, "0"),
        ("test_mirror", str(config.test_mirror).lower(), "false"),
        ("cutmix", f"{config.cutmix:g}", "0"),
    ):
        if features and str(value) != off:
            raise ConfigError(
                f"augment.{key}={value} is for images, but model.backbone takes features: "
                f"use --set augment.{key}={off}."
            )
    if features:
        return FeatureViews(config, mean, std, device)
    return Views(config, mean, std, device, compiled=compiled, graphs=graphs)
