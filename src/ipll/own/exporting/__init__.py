"""A model leaves Python: as one ONNX file that any runtime reads, or as plain weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ipll.errors import ConfigError
from ipll.own.exporting.description import describe
from ipll.own.exporting.onnx_file import write_onnx
from ipll.own.exporting.parts import ready
from ipll.own.exporting.weights import FILES, write_weights
from ipll.own.model import Model

ENDING = ".onnx"
FORMATS: dict[str, Callable[..., None]] = {"onnx": write_onnx, "safetensors": write_weights}


def export(model: Model, out: str | Path, *, format: str = "onnx", overwrite: bool = False) -> None:
    """Writes the model to `out`: with 'onnx' a file, what it says equal to `Model.predict` on a CPU; with 'safetensors'
    a folder with the weights and a README. The memory's samples and the records stay behind."""
    path = Path(out)
    check_place(path, format, overwrite=overwrite)
    FORMATS[format](model, ready(model), describe(model), path)


def check_place(path: Path, format: str, *, overwrite: bool = False) -> None:
    """Raises, before any work is done, unless an export may go there. A folder with other files is never written to."""
    if format not in FORMATS:
        raise ConfigError(f"unknown format '{format}'. Use one of {', '.join(FORMATS)}.")
    if format == "onnx" and path.suffix.lower() != ENDING:
        raise ConfigError(f"cannot write {path.name!r}: its ending names no format. Call it something{ENDING}.")
    if format != "onnx" and path.suffix.lower() == ENDING:
        raise ConfigError(f"{path} would be a folder with this format. Leave out {ENDING}, or --format.")
    if path.is_dir():
        if format == "onnx" or any(file.name not in FILES for file in path.iterdir()):
            raise ConfigError(f"{path} is a folder with other things in it. Choose another --out.")
        taken = any(path.iterdir())
    else:
        taken = path.exists()
        if taken and format != "onnx":
            raise ConfigError(f"{path} is a file, not a folder. Choose another --out.")
    if taken and not overwrite:
        raise ConfigError(f"{path} is there already. Choose another --out, or replace it with --overwrite.")
