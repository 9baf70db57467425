"""Does an exported model say of real photos what the model says? By onnxruntime, on photos that were not learnt from.

    python benchmarks/export_photos.py FOLDER --out results/own/export_photos.json

FOLDER is that of photos.py: a folder of photos for each class (CUB-200-2011 has such). Ten classes of a draw are
learnt, through the pretrained network and from scratch (a few epochs: it need not be good, only the same). Then other
photos are decoded by Pillow as docs/export.md has it, without ipll, and what the ONNX file says of them is compared
with `Model.predict` on the files themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from photos import EACH, Clock, Draw
from PIL import Image, ImageOps

from ipll.engine.device import cpu_threads, describe
from ipll.networks.photos import LITE0
from ipll.own import Model, export

BLOCK = 50  # photos that are decoded at a time
SCRATCH = {"data.size": 64, "train.epochs": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "command": " ".join(["python benchmarks/export_photos.py", *sys.argv[1:]]),
        "environment": describe(torch.device("cpu")) | {"onnxruntime": onnxruntime.__version__},
        "runs": [],
    }
    draw = Draw(options.folder, options.draw)
    with cpu_threads(options.threads):
        for network, settings in ((LITE0, {}), ("scratch", SCRATCH)):
            report["runs"].append(compared(draw, network, settings, options.photos))
            print(json.dumps(report["runs"][-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def compared(draw: Draw, network: str, settings: dict[str, Any], count: int) -> dict[str, Any]:
    """-> how far apart the file and the model are, on photos of classes that were learnt and of others."""
    learnt = draw.samples(draw.rows(0, EACH, test=False), EACH)
    model = Model.fit(learnt, network=network, settings=settings, seed=draw.seed, device="cpu")
    others = np.setdiff1d(np.arange(len(draw.truth)), draw.rows(0, EACH, test=False))
    rows = np.sort(draw.rng.permutation(others)[:count])
    wanted = model.predict(draw.samples(rows, len(draw.names)), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        export(model, path := Path(folder) / "photos.onnx")
        size, session = path.stat().st_size, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    told = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    started, parts = Clock(), []
    for start in range(0, len(rows), BLOCK):
        shown = np.stack([pixels(draw.paths[row], told) for row in rows[start : start + BLOCK]])
        parts.append(session.run(["probabilities", "class", "distance", "unlike"], {"input": shown}))
    probabilities, classes, distance, unlike = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {
        "network": network, "photos": len(rows), "of_classes_learnt": int((draw.truth[rows] < EACH).sum()),
        "bytes": size, "probabilities_differ_by": float(np.abs(probabilities - wanted.probabilities).max()),
        "on_average_by": float(np.abs(probabilities - wanted.probabilities).mean()),
        "other_class": int((classes != wanted.classes).sum()), "other_unlike": int((unlike != wanted.unlike).sum()),
        "distance_differs_by": float(np.abs(distance / wanted.distance - 1).max()), "unlike": int(unlike.sum()),
        **started.spent(),
    }  # fmt: skip


def pixels(path: str, told: dict[str, Any]) -> npt.NDArray[np.uint8]:
    """-> uint8 [size, size, 3], by the lines of docs/export.md."""
    image, size = Image.open(path), told["size"]
    short = round(size * told["margin"])
    width, height = (short * side // min(image.size) for side in image.size)
    image.draft(None, (2 * width, 2 * height))
    turned = ImageOps.exif_transpose(image).convert("RGB")
    upright = (width, height) if (width > height) == (turned.width > turned.height) else (height, width)
    turned = turned.resize(upright, Image.Resampling[told["resampling"].upper()])
    left, top = round((turned.width - size) / 2), round((turned.height - size) / 2)
    return np.asarray(turned.crop((left, top, left + size, top + size)))


if __name__ == "__main__":
    main()
