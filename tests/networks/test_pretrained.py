"""Pretrained weights: torchvision's names and arithmetic, files that do not fit, and runs that start from them."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from weights import (
    NORM,
    State,
    lively,
    our_key,
    prefixed,
    refusal,
    save,
    thin,
    torchvision_keys,
    torchvision_state,
)

from ipll.networks.backbones import BACKBONES, build_backbone, small_stem
from ipll.networks.pretrained import load_weights

# The architecture


def test_the_imagenet_resnet18_has_torchvisions_tensors() -> None:
    backbone = build_backbone("resnet18-imagenet", 3, torch.Generator().manual_seed(0))
    keys = torchvision_keys()
    assert len(keys) == len(set(keys)) == 122
    assert {our_key(key) for key in keys if not key.startswith("fc.")} == backbone.state_dict().keys()
    assert sum(p.numel() for p in backbone.parameters()) == 11_689_512 - 513_000  # torchvision's count, less the head
    assert backbone.stem(torch.rand(1, 3, 224, 224)).shape == (1, 64, 56, 56)


def naive_forward(state: State, x: Tensor, *, training: bool = False) -> Tensor:
    """torchvision's ResNet-18 up to the head, written from its definition."""

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias, mean, var = (state[f"{name}.{n}"].clone() for n in NORM[:4])
        return F.batch_norm(x, mean, var, weight, bias, training=training, eps=1e-5)

    x = F.relu(norm("bn1", F.conv2d(x, state["conv1.weight"], stride=2, padding=3)))
    x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            out = F.relu(norm(f"{at}.bn1", F.conv2d(x, state[f"{at}.conv1.weight"], stride=stride, padding=1)))
            out = norm(f"{at}.bn2", F.conv2d(out, state[f"{at}.conv2.weight"], padding=1))
            if f"{at}.downsample.0.weight" in state:
                x = norm(f"{at}.downsample.1", F.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride))
            x = F.relu(out + x)
    return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


@pytest.mark.parametrize("size", [64, 75])
def test_it_computes_what_torchvisions_does(size: int) -> None:
    backbone = lively(build_backbone("resnet18-imagenet", 3, torch.Generator().manual_seed(1)))
    images, state = torch.rand(2, 3, size, size), torchvision_state(backbone)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), naive_forward(state, images), rtol=1e-5, atol=1e-5)
        expected = naive_forward(state, images, training=True)
        torch.testing.assert_close(backbone.train()(images), expected, rtol=1e-4, atol=1e-4)
    assert all(m.momentum == 0.1 for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))


# Files that fit


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_torchvisions_file_gives_its_features_bit_for_bit(suffix: str, tmp_path: Path) -> None:
    original = lively(build_backbone("resnet18-imagenet", 3, torch.Generator().manual_seed(2)))
    file = save(torchvision_state(original, classes=1000), tmp_path / f"resnet18{suffix}")
    loaded = build_backbone("resnet18-imagenet", 3, torch.Generator().manual_seed(3)).eval()
    load_weights(loaded, str(file))
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(loaded(images), original(images))
    own = original.state_dict()
    assert all(torch.equal(tensor, own[key]) for key, tensor in loaded.state_dict().items())
    file.unlink()


@pytest.mark.parametrize(
    "form",
    [
        lambda state: {"state_dict": state, "epoch": 90},
        lambda state: {"model": state, "args": {"lr": 0.1}},
        lambda state: prefixed("module.", state),
        lambda state: {"state_dict": prefixed("module.", state)},
        lambda state: {key: tensor for key, tensor in state.items() if not key.startswith("fc.")},
        lambda state: {key: tensor for key, tensor in state.items() if "num_batches_tracked" not in key},
        lambda state: {our_key(key): tensor for key, tensor in state.items()},
        lambda state: prefixed("backbone.", state) | {"head.weight": torch.zeros(2, 4)},
        lambda state: prefixed("module.encoder_q.", state) | {"module.queue": torch.zeros(4, 8)},
        lambda state: prefixed("model.", {our_key(key): tensor for key, tensor in state.items()}),
        lambda state: {"model_state_dict": state, "optimizer": {"state": {0: {"exp_avg": torch.zeros(2)}}}},
        lambda state: {"ema": {"params": prefixed("module.", state)}, "metrics": {"accuracy": torch.ones(())}},
    ],
    ids=[
        *("state_dict", "model", "module.", "both", "no head", "no counters", "our names"),
        *("backbone.", "encoder_q.", "model. and our names", "model_state_dict", "wrapped twice"),
    ],
)
def test_the_forms_in_which_weights_come(form: Callable[[State], Any], state: State, tmp_path: Path) -> None:
    backbone = thin(3).eval()
    images = torch.rand(2, 3, 64, 64)
    assert not torch.equal(backbone(images), lively(thin())(images))
    load_weights(backbone, str(save(form(state), tmp_path / "weights.pt")))
    assert torch.equal(backbone(images), lively(thin())(images))


@pytest.mark.parametrize("written", [".safetensors", ".pth", ".old.pth"])
def test_a_file_is_read_by_its_content_whatever_its_name(written: str, state: State, tmp_path: Path) -> None:
    file = tmp_path / f"weights{written}"
    if written == ".old.pth":
        torch.save(state, file, _use_new_zipfile_serialization=False)
    else:
        save(state, file)
    renamed = file.rename(tmp_path / f"renamed{'.pth' if written == '.safetensors' else '.safetensors'}")
    load_weights(backbone := thin(), str(renamed))
    assert torch.equal(backbone.stem[0].weight, state["conv1.weight"])


def test_half_precision_becomes_single(state: State, tmp_path: Path) -> None:
    halves = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    backbone = thin()
    load_weights(backbone, str(save(halves, tmp_path / "half.safetensors")))
    assert all(p.dtype == torch.float32 for p in backbone.parameters())
    assert torch.equal(backbone.stem[0].weight, halves["conv1.weight"].float())


def test_grey_images_are_seen_as_if_in_all_three_channels(state: State, tmp_path: Path) -> None:
    file = save(state, tmp_path / "weights.pth")
    colour, grey = thin(3).eval(), thin(1).eval()
    for backbone in (colour, grey):
        load_weights(backbone, str(file))
    images = torch.rand(2, 1, 64, 64)
    torch.testing.assert_close(grey(images), colour(images.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)
    assert "The file is for images of 3 channels, the data have 4." in refusal(thin(4), file)


# Files that do not fit


def test_a_stem_of_another_size_is_refused_with_the_backbone_that_fits(state: State, tmp_path: Path) -> None:
    message = refusal(thin(stem=small_stem), save(state, tmp_path / "weights.pth"))
    assert "119 of 120 tensors fit" in message
    assert "of another shape: conv1.weight [4, 3, 7, 7] instead of [4, 3, 3, 3]" in message
    assert message.endswith("The file's stem is 7x7, the backbone's 3x3: use another backbone "
                            "(--set model.backbone=resnet18-imagenet).")  # fmt: skip
    small = torchvision_state(thin(stem=small_stem))
    assert "(--set model.backbone=resnet18)." in refusal(thin(), save(small, tmp_path / "small.pth"))
    assert {"resnet18", "resnet18-imagenet"} <= set(BACKBONES)


def test_wrong_shapes_missing_and_unexpected_keys_are_named(state: State, tmp_path: Path) -> None:
    state["layer2.0.conv1.weight"] = torch.zeros(8, 4, 1, 1)
    for key in [key for key in state if key.startswith("layer3.1.bn")]:
        del state[key]
    state["extra.weight"] = torch.zeros(1)
    message = refusal(thin(), save(state, tmp_path / "weights.safetensors"))
    assert "109 of 120 tensors fit" in message
    missing = "missing: layer3.1.bn1.weight, layer3.1.bn1.bias, layer3.1.bn1.running_mean and 5 more;"
    assert missing in message
    assert "unexpected: extra.weight;" in message
    assert "of another shape: layer2.0.conv1.weight [8, 4, 1, 1] instead of [8, 4, 3, 3]." in message
    assert message.endswith("Give the weights of a plain ResNet-18, all of them.")
    wide = torchvision_state(thin(width=8))
    assert "The file's stem is 8 wide, the backbone's 4" in refusal(thin(), save(wide, tmp_path / "wide.pth"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (lambda s: prefixed("encoder_q.", s) | prefixed("encoder_k.", s), "under 'encoder_q.', 'encoder_k.'."),
        (lambda s: {"model": s, "ema": s}, "under 'model.', 'ema.'."),
        (lambda s: s | prefixed("ema.", s), "under '', 'ema.'."),
    ],
    ids=["two prefixes", "two wrappers", "one within"],
)
def test_two_networks_in_a_file_are_refused_by_their_names(
    content: Callable[[State], Any], told: str, state: State, tmp_path: Path
) -> None:
    message = refusal(thin(), save(content(state), tmp_path / "weights.pth"))
    assert f"holds the backbone's names more than once, {told} Save those that you want" in message


def deeper(depths: tuple[int, ...], *, bottleneck: bool) -> State:
    """Keys as in torchvision's deeper ResNets, with small tensors."""
    keys = ["conv1.weight", "bn1.weight", "fc.weight"]
    for layer, depth in enumerate(depths, 1):
        for block in range(depth):
            keys += [f"layer{layer}.{block}.conv{i}.weight" for i in ((1, 2, 3) if bottleneck else (1, 2))]
    return {key: torch.zeros(4, 3, 7, 7) for key in keys}


@pytest.mark.parametrize(
    ("depths", "bottleneck", "name"),
    [((3, 4, 6, 3), True, "ResNet-50"), ((3, 4, 6, 3), False, "ResNet-34"), ((1, 1, 1, 1), False, "another depth")],
)
def test_another_architecture_is_named(depths: tuple[int, ...], bottleneck: bool, name: str, tmp_path: Path) -> None:
    message = refusal(thin(), save(deeper(depths, bottleneck=bottleneck), tmp_path / "weights.pth"))
    assert re.search(rf"This file is a .*{name}; give the weights of a ResNet-18", message)
    assert len(message) < 700


def test_another_architecture_is_named_under_a_prefix_too(state: State, tmp_path: Path) -> None:
    state |= {f"layer3.{block}.conv1.weight": torch.zeros(1) for block in (2, 3, 4, 5)}
    message = refusal(thin(), save({"net": prefixed("encoder.", state)}, tmp_path / "weights.pth"))
    assert "120 of 120 tensors fit the backbone; unexpected: layer3.2.conv1.weight" in message
    assert "This file is a ResNet of another depth; give the weights of a ResNet-18" in message


def test_what_is_no_resnet_on_either_side(state: State, tmp_path: Path) -> None:
    other = save({"patch_embed.weight": torch.zeros(2)}, tmp_path / "vit.pth")
    assert "0 of 120 tensors fit" in (message := refusal(thin(), other))
    assert "This file is no ResNet; give the weights of a ResNet-18" in message
    small = build_backbone("small-cnn", 3, torch.Generator())
    assert "must be those of the backbone's own state_dict()" in refusal(small, save(state, tmp_path / "r.pth"))


def test_values_that_are_not_finite_are_refused(state: State, tmp_path: Path) -> None:
    state["layer1.0.bn2.bias"] = torch.full_like(state["layer1.0.bn2.bias"], float("nan"))
    assert "layer1.0.bn2.bias holds values that are not finite" in refusal(thin(), save(state, tmp_path / "nan.pth"))


# Files that cannot be read


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_file_is_not_run(
    write: Callable[[Any, Path], object], suffix: str, state: State, tmp_path: Path
) -> None:
    write(state | {"conv1.weight": Code(tmp_path / "made")}, file := tmp_path / f"evil{suffix}")
    assert "cannot be read as tensors alone" in refusal(thin(), file)
    assert not (tmp_path / "made").exists()


def test_a_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pth")
    message = refusal(thin(), tmp_path / "model.pth")
    assert re.search(r"it holds more than tensors \(torch\.\S+Linear\), and no code is run", message)
    assert "docs/pretrained.md" in message


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_damaged_files(suffix: str, state: State, tmp_path: Path) -> None:
    whole = save(state, tmp_path / f"whole{suffix}").read_bytes()
    for name, content in {"cut": whole[:-1000], "start": whole[:50], "none": b"", "page": b"<html>404</html>"}.items():
        (file := tmp_path / f"{name}{suffix}").write_bytes(content)
        message = refusal(thin(), file)
        assert f"{file}: cannot be read as tensors alone: " in message
        assert len(message) < 600


def test_files_without_named_tensors(tmp_path: Path) -> None:
    for i, value in enumerate(([torch.zeros(2)], {"epoch": 3}, torch.zeros(2))):
        torch.save(value, file := tmp_path / f"{i}.pth")
        assert "holds no tensors with names" in refusal(thin(), file)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.pth'}: there is no such file. Give a .safetensors" in refusal(thin(), tmp_path / "no.pth")
    assert f"{tmp_path}: is not a file" in refusal(thin(), tmp_path)
