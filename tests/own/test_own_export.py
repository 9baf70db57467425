"""A model that leaves Python: what an ONNX file says is what the model says, and the file tells what it takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from irises import write_csv
from PIL import Image
from safetensors import safe_open
from sklearn.datasets import load_digits, load_wine

from ipll.errors import ConfigError, RunError
from ipll.own import Model, export, from_arrays, read_table
from ipll.own.exporting.onnx_file import _nodes, compare
from ipll.own.exporting.whole import cdist, interpolate, lerp, searchsorted

Exported = Callable[[str], tuple[Model, Any, Path]]

CLASSES = ("robin", "wren", "crow", "gull", "ümlaut|<b>")


def sets(target: Any, classes: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    return [[CLASSES[t], *([CLASSES[(t + 1) % classes]] if rng.random() < 0.4 else [])] for t in target.tolist()]


def table_model(**settings: Any) -> tuple[Model, Any]:
    """-> a model of wines, and 1,000 samples: known ones, some with gaps, and some far beyond them."""
    wine = load_wine()
    x = wine.data.astype(np.float32)
    method = settings.pop("method", "auto")
    samples = from_arrays(x, sets(wine.target, 3))
    model = Model.fit(samples, method=method, settings={"train.epochs": 4} | settings, device="cpu")
    more = np.random.default_rng(0).permuted(np.tile(x, (6, 1))[:1000], axis=0)
    more[-20:] *= 50
    more[::10, 3] = np.nan
    return model, more


def image_model(*, colour: bool = False, method: str = "pgdr", **settings: Any) -> tuple[Model, Any]:
    digits = load_digits(n_class=5)
    x = (digits.images * 15).astype(np.uint8)[..., None]
    if colour:
        x = np.concatenate([x, x // 2, 255 - x], axis=3)
    samples = from_arrays(x[:200], sets(digits.target[:200], 5))
    model = Model.fit(samples, method=method, settings={"train.epochs": 1} | settings, device="cpu")
    return model, np.concatenate([x, x.transpose(0, 2, 1, 3)])[:1000]


MODELS = {
    "a table by ranks": (table_model, {"model.inputs": "quantiles"}),
    "a table by z-scores, which prototypes classify": (table_model, {"model.inputs": "z-scores", "method": "pgdr"}),
    "small images, enlarged and mirrored": (image_model, {"augment.test_size": 13, "augment.test_mirror": True}),
    "colour images, a thin ResNet": (image_model, {"colour": True, "model.backbone": "resnet18-thin"}),
    "means of exemplars": (image_model, {"method": "proden+icarl"}),
    "a linear head with a correction": (image_model, {"method": "proden+bic"}),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """-> a function that gives a model, 1,000 samples and its file; each is made once."""

    @cache
    def made(which: str) -> tuple[Model, Any, Path]:
        for package in ("onnx", "onnxruntime", "onnxscript"):
            pytest.importorskip(package)
        make, settings = MODELS[which]
        model, x = make(**settings)
        path = tmp_path_factory.mktemp("exported") / "model.onnx"
        export(model, path)
        return model, x, path

    return made


def test_traces_are_found_within_loops_and_conditions() -> None:
    helper = pytest.importorskip("onnx").helper
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "inner", [], [])
    outer = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    assert [node.op_type for node in _nodes([outer])] == ["If", "Relu", "Relu"]


@pytest.mark.parametrize("which", MODELS)
def test_an_onnx_file_says_what_the_model_says(which: str, exported: Exported) -> None:
    model, x, path = exported(which)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)
    probabilities, classes, distance, unlike = session.run(None, {"input": x})
    wanted = model.predict(from_arrays(x, [["a", "b"]] * len(x)), device="cpu")
    assert len(x) == 1000
    np.testing.assert_allclose(probabilities, wanted.probabilities, atol=1e-4)
    np.testing.assert_array_equal(classes, wanted.classes)
    np.testing.assert_allclose(distance, wanted.distance, rtol=1e-4, atol=1e-4)
    near = np.abs(wanted.distance - model.far) < 1e-3 * model.far
    np.testing.assert_array_equal(unlike[~near], wanted.unlike[~near])
    one = session.run(["probabilities"], {"input": x[:1]})[0]
    np.testing.assert_allclose(one, probabilities[:1], atol=1e-5)

    told = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert tuple(told["classes"]) == model.names
    assert told["temperature"] == model.temperature
    assert told["mean"] == list(model.mean)
    assert told["kind"] == model.kind
    if model.kind == "images":
        assert (told["size"], told["channels"]) == (8, x.shape[3])
    else:
        assert told["features"] == list(model.feature_names)
        assert "NaN where a number is missing" in told["input"]
    content = path.read_bytes()
    kept = model.tensors["module.memory.samples"].numpy()
    assert len(kept)
    assert not any(sample.tobytes() in content for sample in kept), "what it keeps to go on learning is not for others"
    assert str(Path(__file__).parents[2]).encode() not in content, "where it was made is nobody's business"


def test_a_part_that_onnx_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipll.own.exporting.onnx_file._missing", str)
    model, _ = image_model()

    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError("no such operator\nand much more")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(RunError, match=r"as ONNX: no such operator. .*--format safetensors"):
        export(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_weights_and_what_they_are(tmp_path: Path) -> None:
    model, _ = image_model(method="proden+bic")
    export(model, tmp_path / "weights", format="safetensors")
    with safe_open(tmp_path / "weights" / "weights.safetensors", "pt") as file:
        names = set(file.keys())
        told = json.loads(file.metadata()["ipll"])
        assert torch.equal(file.get_tensor("centres"), model.centres)
    assert tuple(told["classes"]) == model.names
    assert {"network.head.weight", "correction.alpha"} <= names
    assert not any("memory" in name or "teacher" in name for name in names)
    readme = (tmp_path / "weights" / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in names)
    assert "<b>" not in readme.replace(r"\<b\>", "")


def test_where_an_export_may_go(main: Any, model: Path) -> None:
    Path("taken.onnx").write_text("mine")
    for arguments, says in (
        (["--out", "m.onx"], "Call it something.onnx"),
        (["--out", "m.onnx", "--format", "safetensors"], "would be a folder"),
        (["--out", "m.onnx", "--format", "pickle"], "Use one of onnx, safetensors"),
        (["--out", "taken.onnx"], "--overwrite"),
        (["--out", str(model), "--format", "safetensors", "--overwrite"], "other things"),
        (["--out", "first.csv", "--format", "safetensors", "--overwrite"], "is a file"),
    ):
        status, _, err = main("export", model, *arguments)
        assert status == 2
        assert says in err
    assert Path("taken.onnx").read_text() == "mine"
    status, out, err = main("export", model, "--out", "plain", "--format", "safetensors")
    assert status == 0, err
    assert "weights.safetensors" in out
    assert main("export", model, "--out", "plain", "--format", "safetensors").status == 2
    assert main("export", model, "--out", "plain", "--format", "safetensors", "--overwrite").status == 0


def test_an_export_without_its_packages(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'ipll\[onnx\]'"):
        export(Model.load(model), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_what_differs_is_not_kept() -> None:
    wanted = [np.array([[0.7, 0.3], [0.2, 0.8]], np.float32), np.array([0, 1])]
    compare(wanted, wanted)
    for said in (
        [wanted[0] + np.float32(3e-4), wanted[1]],
        [wanted[0], np.array([0, 0])],
        [np.full((2, 2), np.nan), wanted[1]],
    ):
        with pytest.raises(RunError, match="says something else"):
            compare(said, wanted)


def test_functions_that_onnx_lacks() -> None:
    """Each against torch's own."""
    g = torch.Generator().manual_seed(0)
    knots = torch.randint(5, (3, 11), generator=g).float().sort(dim=1).values
    values = torch.cat([torch.randint(-1, 6, (3, 30), generator=g).float(), torch.randn(3, 30, generator=g)], dim=1)
    assert torch.equal(searchsorted(knots, values), torch.searchsorted(knots, values))
    x, y = torch.randn(40, 7, generator=g) + 100, torch.randn(9, 7, generator=g) + 100
    exact = torch.cdist(x.double(), y.double())
    torch.testing.assert_close(cdist(x, y).double(), exact, rtol=1e-4, atol=1e-4)
    images = torch.rand(2, 3, 9, 9, generator=g)
    for side in (5, 9, 20):
        wanted = torch.nn.functional.interpolate(
            images, size=(side, side), mode="bilinear", align_corners=False, antialias=True
        )
        found = interpolate(images, (side, side), mode="bilinear", align_corners=False, antialias=True)
        torch.testing.assert_close(found, wanted)
    a, b, w = torch.rand(3, 50, generator=g)
    torch.testing.assert_close(lerp(a, b, w), torch.lerp(a, b, w))


def test_the_examples_of_the_document(
    root: Path, tmp_path: Path, photos: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there; no line of them needs ipll."""
    features, images = re.findall(r"^```python\n(.*?)^```$", (root / "docs/export.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    model, x, path = exported("a table by ranks")
    shutil.copy(path, "wine.onnx")
    np.savetxt("bottles.csv", x[:9], delimiter=",", header="a")
    wanted = model.predict(from_arrays(x[:9], [["a", "b"]] * 9), device="cpu")
    lines = [line.split() for line in said_by(features)]
    assert [line[0] for line in lines] == wanted.labels
    assert [float(line[1]) for line in lines] == pytest.approx(wanted.confidence, abs=2e-4)
    assert [line[2:] != [] for line in lines] == wanted.unlike.tolist()

    model, _, path = exported("small images, enlarged and mirrored")
    shutil.copy(path, "digits.onnx")
    picture = Image.open(photos / "3.png").resize((50, 31))
    exif = picture.getexif()
    exif[0x0112] = 6  # lies on its side
    for name, options in (
        ("photo.png", {"exif": exif}),
        ("photo.jpg", {"exif": exif, "quality": 95}),
        ("plain.png", {}),
    ):
        picture.save(name, **options)
        table = write_csv(Path("one.csv"), [{"image": name}])
        wanted = model.predict(read_table(table, unlabelled=True, allow_one_class=True), device="cpu")
        assert said_by(images.replace("photo.png", name)) == wanted.labels


def said_by(script: str) -> list[str]:
    assert "ipll" not in script
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
