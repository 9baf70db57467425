"""What an export takes and gives, in words and numbers: whoever has the file needs nothing else."""

from __future__ import annotations

from typing import Any

import ipll
from ipll.own.model import Model

GIVES = {
    "probabilities": "float32 [n, classes]: of each class, in the order of 'classes'; they sum to 1",
    "class": "int64 [n]: the most probable one, counted from 0",
    "distance": "float32 [n]: from the sample's features to the prototype of that class; infinite where it has none",
    "unlike": "bool [n]: the distance exceeds 'far': the sample is unlike anything seen, the class a guess",
}


def describe(model: Model) -> dict[str, Any]:
    """-> what stands in the metadata, ready for JSON."""
    known = {
        "classes": list(model.names),
        "known": [name for name, known in zip(model.names, model.known.tolist(), strict=True) if known],
        **_input(model),
        "outputs": GIVES,
        "temperature": model.temperature,
        "far": model.far,
        "prototypes": f"[{len(model.centres)}, {model.centres.shape[1]}], inside: 'distance' is from them",
        "method": model.config.method,
        "samples": len(model.records),
        "updates": model.updates,
        "ipll": ipll.__version__,
    }
    return {key: value for key, value in known.items() if value is not None}


def photo_network(model: Model) -> Any:
    """-> the pretrained network that photos go through before they are learnt from; None where there is none."""
    return None if model.through is None else model.through.find()


def _input(model: Model) -> dict[str, Any]:
    if (network := photo_network(model)) is not None:
        shown = network.shown
        return _images(shown.size, 3, shown.margin, shown.resampling) | {
            "network": network.name, "mean": list(shown.mean), "std": list(shown.std),
        }  # fmt: skip
    if model.kind == "images":
        values = {"mean": list(model.mean), "std": list(model.std)}
        return _images(model.shape[-1], model.shape[0], 1.0, "bilinear") | values
    return {
        "input": f"float32 [n, {model.shape[0]}]: the features as they come, in the order of 'features', not scaled; "
        "NaN where a number is missing, which counts as the 'mean'; of words, 'habitat=wood', 1 or 0",
        "kind": "features",
        "features": list(model.feature_names),
        "mean": list(model.mean),
        "std": list(model.std),
    }


def _images(size: int, channels: int, margin: float, resampling: str) -> dict[str, Any]:
    colour = "grey" if channels == 1 else "red, green, blue"
    return {
        "input": f"uint8 [n, {size}, {size}, {channels}]: {colour}, 0 to 255; scaled inside",
        "kind": "images",
        "size": size,
        "channels": channels,
        "margin": margin,
        "resampling": resampling,
        "before": f"not inside: decode, turn by EXIF, resize the shorter side to {round(size * margin)} ({resampling}, "
        f"smoothed where it shrinks, as Pillow does) and cut out the middle {size} x {size}",
    }
