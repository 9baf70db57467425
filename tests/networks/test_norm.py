"""Norm is batch norm, a residual and ReLU, one after another; its kernels on a GPU compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ipll.networks import norm as norm_module
from ipll.networks.backbones import ResNet18, imagenet_stem, small_stem
from ipll.networks.network import ModelConfig, Network
from ipll.networks.norm import ConvNorm, Norm, conv_norm

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not norm_module.can_fuse(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
                       reason="there is no CUDA device with kernels"),
]  # fmt: skip
on_gpu = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="gpu", marks=gpu)]
SHAPES = [(8, 64, 16, 16), (5, 48, 7, 6), (3, 16, 33, 5), (2, 512, 4, 4), (40, 128, 1, 1)]


def make(channels: int, device: str, *, relu: bool = True) -> Norm:
    torch.manual_seed(0)
    norm = Norm(channels, relu=relu)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm.to(device)


def random(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=device).to(dtype).contiguous(memory_format=torch.channels_last)


def reference(norm: Norm, x: Tensor, residual: Tensor | None) -> Tensor:
    """Straight from the definition, in float64."""
    x = x.double()
    axes = (0, 2, 3)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, var = norm.running_mean.double(), norm.running_var.double()
    if norm.training:
        mean, var = x.mean(axes), x.var(axes, correction=0)

    def wide(vector: Tensor) -> Tensor:
        return vector.double().view(1, -1, 1, 1)

    y = (x - wide(mean)) / (wide(var) + norm.eps).sqrt() * wide(norm.weight) + wide(norm.bias)
    y = y if residual is None else y + residual.double()
    return y.relu() if norm.relu else y


@pytest.mark.parametrize("device", on_gpu)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_forward_and_backward_are_those_of_the_definition(
    shape: tuple[int, ...], relu: bool, added: bool, device: str
) -> None:
    norm = make(shape[1], device, relu=relu)
    x = (3 * random(shape, device) + 5).requires_grad_()
    residual = random(shape, device).requires_grad_() if added else None
    inputs = [x, norm.weight, norm.bias, *([residual] if residual is not None else [])]
    y, expected = norm(x, residual), reference(norm, x, residual)
    torch.testing.assert_close(y.double(), expected, atol=2e-5, rtol=1e-5)
    gradient = random(shape, device)
    found = torch.autograd.grad(y, inputs, gradient)
    for ours, theirs in zip(found, torch.autograd.grad(expected, inputs, gradient.double()), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("device", on_gpu)
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_gradients_of_two_readers_add_up(used: tuple[bool, bool], added: bool, device: str) -> None:
    shape = (5, 48, 7, 6)
    norm = make(48, device)
    x = random(shape, device).requires_grad_()
    residual = random(shape, device).requires_grad_() if added else None
    inputs = [x, norm.weight, norm.bias, *([residual] if residual is not None else [])]
    pair = [y for y, use in zip(norm.twice(x, residual), used, strict=True) if use]
    gradients = [random(shape, device) for _ in pair]
    found = torch.autograd.grad(pair, inputs, gradients)
    whole = torch.stack(gradients).sum(dim=0).double()
    for ours, theirs in zip(found, torch.autograd.grad(reference(norm, x, residual), inputs, whole), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("device", on_gpu)
def test_running_statistics_are_batch_norms(device: str) -> None:
    ours = make(64, device)
    theirs = nn.BatchNorm2d(64).to(device)
    theirs.load_state_dict(ours.state_dict())
    for _ in range(3):
        x = 2 * random((6, 64, 5, 5), device) - 4
        ours(x)
        theirs(x)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("device", on_gpu)
def test_without_training_the_running_statistics_count(device: str) -> None:
    norm = make(64, device).eval()
    x, residual = random((6, 64, 5, 5), device), random((6, 64, 5, 5), device)
    with torch.no_grad():
        torch.testing.assert_close(norm(x, residual).double(), reference(norm, x, residual), atol=1e-5, rtol=1e-5)
    x.requires_grad_()
    norm(x, residual).sum().backward()  # a gradient is there where one is asked for
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("device", on_gpu)
def test_far_from_zero_the_variance_is_not_lost(device: str) -> None:
    norm = make(64, device, relu=False)
    x = random((64, 64, 8, 8), device) + 3000
    torch.testing.assert_close(norm(x).double(), reference(norm, x, None), atol=0.05, rtol=0.01)


@pytest.mark.parametrize("device", on_gpu)
def test_one_value_of_a_channel_has_no_variance(device: str) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        make(16, device)(random((1, 16, 1, 1), device))


@pytest.mark.parametrize("device", on_gpu)
def test_float64_stays_exact(device: str) -> None:
    norm = make(16, device).double()
    x = random((4, 16, 3, 3), device, torch.float64)
    torch.testing.assert_close(norm(x), reference(norm, x, None), atol=1e-12, rtol=1e-12)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, kernels of our own are not used."""
    return lambda: monkeypatch.setattr(norm_module, "can_fuse", lambda device: False)


@pytest.mark.parametrize("stem", [small_stem, imagenet_stem])
@pytest.mark.parametrize("device", [pytest.param("cuda", id="gpu", marks=gpu)])
def test_a_network_learns_the_same_with_kernels(
    stem: Callable[[int, int], ConvNorm], device: str, plain: Callable[[], None]
) -> None:
    torch.manual_seed(0)
    fused = ResNet18(3, 16, stem).to(device)
    other = copy.deepcopy(fused)
    x = torch.randn(24, 3, 32, 32, device=device)
    gradients = []
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for network in (fused, other):
            network(x).square().sum().backward()
            gradients.append([w.grad for w in network.parameters()])
            plain()
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3 * float(theirs.abs().max()), rtol=1e-3)
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(dict(fused.named_buffers())[name], buffer, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("device", [pytest.param("cuda", id="gpu", marks=gpu)])
def test_the_same_input_gives_the_same_bits(device: str) -> None:
    norm = make(64, device)
    x, residual = random((64, 64, 32, 32), device, torch.bfloat16), random((64, 64, 32, 32), device, torch.bfloat16)
    gradient = random((64, 64, 32, 32), device, torch.bfloat16)
    runs = []
    for _ in range(3):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, residual)]
        y = norm(*inputs)
        runs.append([y, *torch.autograd.grad(y, [*inputs, norm.weight, norm.bias], gradient)])
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("device", [pytest.param("cuda", id="gpu", marks=gpu)])
def test_folded_into_convolutions_it_is_no_less_exact(device: str, plain: Callable[[], None]) -> None:
    """In bf16, against the same network in float32; a trained network's statistics differ from channel to channel."""
    torch.manual_seed(0)
    network = ResNet18(3, 64).to(device)
    for _ in range(20):
        network(torch.rand(128, 3, 32, 32, device=device) * torch.rand(128, 3, 1, 1, device=device))
    network.eval()
    x = torch.rand(128, 3, 32, 32, device=device)
    errors = []
    with torch.no_grad():
        exact = network.double()(x.double()).float()
        network.float()
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                errors.append(float((network(x).float() - exact).norm() / exact.norm()))
            plain()
    assert errors[0] < 1.2 * errors[1]
    assert errors[0] < 0.02


@pytest.mark.parametrize("device", on_gpu)
def test_a_convolution_and_its_norm(device: str) -> None:
    torch.manual_seed(0)
    pair = ConvNorm(nn.Conv2d(3, 16, 3, bias=False), make(16, device), nn.MaxPool2d(2)).to(device).eval()
    x, residual = torch.randn(4, 3, 10, 10, device=device), torch.randn(4, 16, 8, 8, device=device)
    with torch.no_grad():
        expected = pair[1](pair[0](x))
        torch.testing.assert_close(pair(x), nn.functional.max_pool2d(expected, 2))
        expected = pair[1](pair[0](x), residual)
        torch.testing.assert_close(conv_norm(pair[0], pair[1], x, residual)[0], expected)


@pytest.mark.parametrize("device", [pytest.param("cuda", id="gpu", marks=gpu)])
def test_a_network_that_is_held_is_folded_once(device: str) -> None:
    """Until it is held again: then what was folded is overwritten where it lies, for a captured step reads it."""
    network = ResNet18(3, 16).to(device).eval()
    x = random((4, 3, 32, 32), device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        plain = network(x)
        norm_module.keep_folded(network)
        assert torch.equal(network(x), plain)
        folded = network.stem[1].folded
        network.stem[0].weight.mul_(2)
        assert torch.equal(network(x), plain)  # as it was when it was held
        norm_module.keep_folded(network)
        assert not torch.equal(network(x), plain)
        assert network.stem[1].folded[0].data_ptr() == folded[0].data_ptr()


@pytest.mark.parametrize("device", [pytest.param("cuda", id="gpu", marks=gpu)])
def test_a_network_that_goes_on_learning_is_folded_once_meanwhile(device: str) -> None:
    network = ResNet18(3, 16).to(device).eval()
    x = random((4, 3, 32, 32), device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        plain = network(x)
        with norm_module.folded_meanwhile(network):
            assert torch.equal(network(x), plain)
            folded = network.stem[1].folded
            assert torch.equal(network(x), plain)
            assert network.stem[1].folded is folded
        network.stem[0].weight.mul_(2)
        assert not torch.equal(network(x), plain)
        assert network.stem[1].folded is None


@pytest.mark.parametrize("device", [pytest.param("cuda", id="gpu", marks=gpu)])
def test_weights_cast_by_one_kernel_give_the_gradients_of_autocast(device: str) -> None:
    network = Network(ModelConfig(backbone="resnet18-thin"), 3, 10, 0, bf16=True).to(device).train()
    network.head.birth(0, 10, 0)
    x = random((8, 3, 32, 32), device)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(network(x).logits.square().sum(), list(network.backbone.parameters())))

    found = gradients()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "_features", lambda self, x: self.backbone(x))
        expected = gradients()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
