"""A model as one ONNX file, compared with the model before it is kept."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipll.engine.files import write_atomically
from ipll.engine.state import MEMORY
from ipll.errors import ConfigError, RunError
from ipll.learner import Learner
from ipll.own.exporting.description import GIVES, photo_network
from ipll.own.exporting.whole import Photo, Whole
from ipll.own.model import Model
from ipll.own.training import predict_block

EXTRA = "pip install 'ipll[onnx]'"
OPSET = 18
INPUT = "input"
EQUAL = 1e-4  # what the file and the model say may differ by so much
COMPARED, FEWEST = 64, 8  # samples, at most and at least


def write_onnx(model: Model, learner: Learner, description: Mapping[str, Any], path: Path) -> None:
    """Writes the file; a RunError where the model has a part that ONNX cannot express, or says something else there."""
    if missing := _missing():
        raise ConfigError(f"ONNX files need the package {missing}: {EXTRA}. Or use --format safetensors.")
    network = photo_network(model)
    before = None if network is None else Photo(network.module, network.shown.mean, network.shown.std).eval()
    whole = Whole(learner, model.centres, model.temperature, model.far, before).eval()
    samples = _samples(model, description)
    content = _described(_converted(whole, samples[:3]), description)
    with torch.no_grad():
        said, wanted = _run(content, samples), [part.numpy() for part in whole(samples)]
    if before is None:
        wanted[:2] = _predicted(model, learner, samples)
    compare(said, wanted)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _missing() -> str:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            return name
    return ""


def _samples(model: Model, description: Mapping[str, Any]) -> Tensor:
    """-> samples of the memory as the file takes them; without one, or of photos, that it does not keep, made up."""
    kept, generator = model.tensors[f"{MEMORY}samples"][:COMPARED], torch.Generator().manual_seed(0)
    if len(kept) >= FEWEST and model.kind == description["kind"]:
        return kept.permute(0, 2, 3, 1).contiguous() if kept.ndim == 4 else kept
    if description["kind"] == "features":
        made = torch.randn(COMPARED, model.shape[0], generator=generator)
        return made * torch.tensor(model.std) + torch.tensor(model.mean)
    size = description["size"]
    return torch.randint(256, (FEWEST, size, size, description["channels"]), generator=generator, dtype=torch.uint8)


def _converted(whole: Whole, samples: Tensor) -> Any:
    """-> the ONNX model."""
    try:
        with _quiet(), torch.no_grad():
            count = torch.export.Dim("n", min=1)
            program = torch.export.export(whole, (samples,), dynamic_shapes=({0: count},), strict=False)
            found = torch.onnx.export(
                program, dynamo=True, input_names=[INPUT], output_names=list(GIVES), opset_version=OPSET, verbose=False
            )
            assert found is not None
            return found.model_proto
    except Exception as error:  # of two packages, with many kinds
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip(" .")
        raise RunError(
            f"the model has a part that cannot be written as ONNX: {said}. Use --format safetensors."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of its own matters: of packages that it could use, of what it is about to change."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _described(proto: Any, description: Mapping[str, Any]) -> bytes:
    """-> the file's content, with the description in it and without the traces of where it was made."""
    import onnx

    graph = proto.graph
    for node in [*_nodes(graph.node), *(node for function in proto.functions for node in _nodes(function.node))]:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for part in (proto, graph, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    proto.producer_name, proto.producer_version, graph.name = "ipll", description["ipll"], "ipll"
    proto.doc_string = (
        f"{len(description['classes'])} classes, learnt from {description['samples']} samples. Metadata: JSON, by key."
    )
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
        value.doc_string = GIVES.get(value.name, description["input"])
    for key, value in description.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value, ensure_ascii=False)
    onnx.checker.check_model(proto, full_check=True)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def _nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """-> with those within them: of loops and conditions."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g.node)


def _run(content: bytes, samples: Tensor) -> list[Any]:
    """-> what onnxruntime makes of it. One sample goes by itself: the file takes any number."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    parts = [session.run(list(GIVES), {INPUT: part.numpy()}) for part in (samples[:1], samples[1:])]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _predicted(model: Model, learner: Learner, samples: Tensor) -> tuple[Any, Any]:
    """-> probabilities and classes, as `Model.predict` has them."""
    array = samples.permute(0, 3, 1, 2).contiguous().numpy() if samples.ndim == 4 else samples.numpy()
    probabilities, _ = predict_block(learner, array, model.centres, model.temperature)
    return probabilities, probabilities.argmax(1)


def compare(said: list[Any], wanted: list[Any]) -> None:
    """A RunError where the probabilities differ, or the class where it is not a tie."""
    probabilities, classes = wanted[:2]
    rows = np.arange(len(classes))
    apart = float(np.abs(said[0] - probabilities).max())
    behind = float((probabilities[rows, classes] - probabilities[rows, said[1]]).max())
    if not max(apart, behind) <= EQUAL:
        raise RunError(
            f"the ONNX file says something else than the model: probabilities differ by {max(apart, behind):.2g}. "
            "It was not kept; use --format safetensors."
        )
