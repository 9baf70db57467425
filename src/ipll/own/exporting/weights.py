"""A model's weights for those who build on them: a safetensors file, and a README that tells what is what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ipll.component import Component
from ipll.engine.files import write_atomically, write_text
from ipll.engine.state import part_of
from ipll.learner import Learner
from ipll.own.exporting.description import GIVES
from ipll.own.markdown import plain_text
from ipll.own.model import Model
from ipll.prototypes import Prototypes

FILES = WEIGHTS, README = "weights.safetensors", "README.md"
TEXT = """# Weights of a model that ipll learnt

`{weights}` holds {count} tensors, and in its metadata, under `ipll`, a description as JSON. There is no code in it, and
no sample that was learnt from.

```python
from safetensors.torch import load_file

weights = load_file("{weights}")
```

**Input.** {input}.{before}{seen}

**Network.** The backbone `{backbone}`{members}: `network.backbone.*` and `network.head.*`. It sees
(x - mean) / std, where images are scaled to [0, 1]; both are in the description, for each channel or feature. The head
has room for {capacity} classes; its first {classes} rows are those listed below.

**What is said of a sample.** softmax(scores / {temperature:.6g}), where the scores are those of the classifier
`{classifier}`{corrected}. `centres` are the prototypes that distances are from; beyond {far:.6g} a sample is unlike
anything seen. The code is `judged` in `ipll/own/training.py`, version {version}; `ipll export --format onnx` has all of
it in one file, which gives:

{gives}

**Classes**, in their order: {names}.

| tensor | shape | type |
|---|---|---|
"""


def write_weights(model: Model, learner: Learner, description: Mapping[str, Any], folder: Path) -> None:
    """Writes the folder. The README comes last."""
    tensors = tensors_of(model, learner)
    readme = _readme(model, description, tensors)
    metadata = {"ipll": json.dumps(description, ensure_ascii=False)}
    write_atomically(folder / WEIGHTS, lambda temporary: save_file(tensors, temporary, metadata))
    write_text(folder / README, readme)


def tensors_of(model: Model, learner: Learner) -> dict[str, Tensor]:
    """-> all that predictions are made of, by name: network, prototypes, classifier and what corrects logits."""
    parts: dict[str, Any] = {"network": learner.network, "classifier": learner.classifier}
    if prototypes := part_of(learner.ctx.parts, Prototypes):
        parts["prototypes"] = prototypes
    for part in learner.ctx.parts:
        if type(part).correct is not Component.correct:
            parts["correction"] = part
    named = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    return {key: value.detach().contiguous().clone() for key, value in (named | {"centres": model.centres}).items()}


def _readme(model: Model, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    config, members = model.config, model.config.model.members
    text = TEXT.format(
        weights=WEIGHTS,
        count=len(tensors),
        input=description["input"],
        before=f" Before it, {description['before']}." if "before" in description else "",
        seen=f" They go through {description['network']} first, which is not here." if "network" in description else "",
        backbone=config.model.backbone,
        members=f", {members} side by side" if members > 1 else "",
        capacity=model.capacity,
        classes=len(model.names),
        temperature=model.temperature,
        classifier=config.part("classifier").kind,
        corrected=" of logits that `correction.*` corrects" * any(key.startswith("correction.") for key in tensors),
        far=model.far,
        version=description["ipll"],
        names=", ".join(plain_text(json.dumps(name, ensure_ascii=False)) for name in model.names),
        gives="\n".join(f"- `{name}`: {meaning}" for name, meaning in GIVES.items()),
    )
    return text + "".join(f"| `{key}` | {list(one.shape)} | {_kind(one)} |\n" for key, one in tensors.items())


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
