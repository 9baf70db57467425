"""Pretrained weights by name, and in runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from weights import (
    State,
    lively,
    refusal,
    save,
    thin,
)

import ipll
from ipll.config import resolve
from ipll.data.sources import load_source
from ipll.errors import ConfigError
from ipll.learner import Learner
from ipll.networks.backbones import Backbone, build_backbone
from ipll.networks.network import make_backbone
from ipll.networks.pretrained import load_weights, pin


class Stub(nn.Module):
    """A model of another package."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.state


@pytest.mark.parametrize(
    ("weights", "asked"),
    [
        ("torchvision:resnet18", ("resnet18", {"weights": "DEFAULT"})),
        ("torchvision:resnet18.IMAGENET1K_V1", ("resnet18", {"weights": "IMAGENET1K_V1"})),
        ("timm:resnet18.tv_in1k", ("resnet18.tv_in1k", {"pretrained": True})),
    ],
)
def test_by_name(weights: str, asked: tuple[Any, ...], state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    asks: list[tuple[Any, ...]] = []

    def give(name: str, **options: Any) -> Stub:
        asks.append((name, options))
        torch.rand(5)  # a model that is built draws from the global generator
        return Stub(state)

    for name in ("torchvision", "torchvision.models", "timm"):
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        module.get_model = module.create_model = give  # type: ignore[attr-defined]
    generator = torch.get_rng_state()
    backbone = thin().eval()
    torch.set_rng_state(generator)
    load_weights(backbone, weights)
    assert torch.equal(torch.get_rng_state(), generator)
    assert asks == [asked]
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(backbone(images), lively(thin())(images))


@pytest.mark.parametrize("name", ["hf-hub:somebody/evil", "hf_hub:somebody/evil", "../evil", "a b"])
def test_settings_of_a_stranger_name_no_weights_of_a_stranger(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    for use in (lambda weights: load_weights(thin(), weights), lambda weights: pin(weights, "")):
        with pytest.raises(ConfigError, match=re.escape(f"model.weights=timm:{name}: '{name}' is no name of timm's")):
            use(f"timm:{name}")


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_that_is_missing_or_fails(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Blocked:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocked(), *sys.meta_path])
    assert f"needs the package {package}: pip install {package}" in refusal(thin(), f"{package}:resnet18")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host. Sorry.")

    for name in (package, f"{package}.models"):
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        module.get_model = module.create_model = fail  # type: ignore[attr-defined]
    message = refusal(thin(), f"{package}:resnet18")
    assert f"{package} says: no route to host. Without a network, export the weights" in message


# Runs


@pytest.fixture
def digits_weights(tmp_path: Path) -> Path:
    """Weights for the digits' backbone, as if trained elsewhere."""
    backbone = lively(build_backbone("small-cnn", 1, torch.Generator().manual_seed(9)))
    return save(dict(backbone.state_dict()), tmp_path / "small.safetensors")


def test_every_copy_of_the_network_starts_from_the_weights(digits_weights: Path) -> None:
    """The teacher, and the key encoder that PiCO makes of the network."""
    config = resolve("digits", "pico+pgdr", overrides={"model.weights": str(digits_weights)})
    source = load_source("digits")
    learner = Learner(config, channels=1, classes=10, mean=source.mean, std=source.std)
    expected = lively(build_backbone("small-cnn", 1, torch.Generator().manual_seed(9))).state_dict()
    copies = [key for key in learner.state_dict() if key.endswith("backbone.layers.0.weight")]
    assert len(copies) >= 3
    for key in copies:
        assert torch.equal(learner.state_dict()[key], expected["layers.0.weight"]), key


def test_weights_are_part_of_the_configuration(digits_weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(digits_weights.parent)
    model = resolve("digits", overrides={"model.weights": digits_weights.name}).model
    assert model.weights == str(digits_weights)
    assert len(model.weights_sha256) == 64
    overrides = {"model.weights": str(digits_weights), "model.weights_sha256": model.weights_sha256}
    assert resolve("digits", overrides=overrides).model == model
    save({"layers.0.weight": torch.zeros(3)}, digits_weights)
    with pytest.raises(ConfigError, match=r"is not the file that the configuration was made with"):
        resolve("digits", overrides=overrides)
    with pytest.raises(ConfigError, match=r"is not the file that the configuration was made with"):
        make_backbone(model, 1, seed=0)
    assert resolve("digits").model.weights_sha256 == ""


def test_a_run_is_resumed_without_the_file(
    digits_weights: Path, quick: dict[str, Any], stop_at: Any, tmp_path: Path
) -> None:
    settings = quick | {"model.weights": str(digits_weights), "train.checkpoint_seconds": 0}
    whole = ipll.run("digits", **settings)
    assert whole["accuracy_per_task"] != ipll.run("digits", **quick)["accuracy_per_task"]
    with pytest.raises(ipll.Interrupted):
        ipll.run("digits", out=tmp_path / "run", reporter=stop_at(14), **settings)
    digits_weights.unlink()
    resumed = ipll.resume(tmp_path / "run")
    assert resumed["accuracy_per_task"] == whole["accuracy_per_task"]
    assert resumed["config"]["model"]["weights"] == str(digits_weights)


def test_weights_that_do_not_fit_are_told_before_anything_is_written(main: Any, state: State, tmp_path: Path) -> None:
    file = save(state, tmp_path / "weights.pth")
    status, _, err = main("run", "digits", "--set", f"model.weights={file}", "--out", tmp_path / "run")
    assert status == 2
    assert "tensors fit the backbone" in err
    assert not (tmp_path / "run").exists()


def test_a_preset_that_expects_weights_says_so(
    main: Any, digits_weights: Path, quick_options: list[str], tmp_path: Path
) -> None:
    expects = ["run", "digits", *quick_options, "--overwrite", "--out", tmp_path / "run", "--set"]
    status, _, err = main(*expects, "model.expects_weights=true")
    assert status == 0
    assert err.count("the paper's numbers need a pretrained backbone") == 1
    status, _, err = main(*expects, "model.expects_weights=true", "--set", f"model.weights={digits_weights}")
    assert status == 0
    assert "pretrained" not in err
    assert "pretrained" not in main(*expects, "model.expects_weights=false").err


def test_the_backbone_of_a_plugin_takes_weights(tmp_path: Path) -> None:
    """Names stay as they are, its own 'fc.' too."""

    class Plain(Backbone):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 4)

    first, second = Plain(), Plain()
    load_weights(second, str(save(dict(first.state_dict()), tmp_path / "plain.pth")))
    assert torch.equal(second.fc.weight, first.fc.weight)
