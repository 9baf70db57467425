"""A convolution, batch norm, a residual to add and ReLU: what a ResNet is made of, in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ipll.engine import processes


@cache
def can_fuse(device: torch.device) -> bool:
    """Are there kernels for it (fused.py)? Triton comes with PyTorch's CUDA builds for Linux."""
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


class BatchNorm(nn.BatchNorm2d):
    """Batch norm by the rows of all processes that share a batch (engine/processes.py); in one it is PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and processes.shared()):
            return super().forward(x)
        y: Tensor = _Shared.apply(x, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return y


def strange_norms(network: nn.Module) -> list[str]:
    """-> the names of layers that normalise by the rows of one process alone."""
    norms = ((name, m) for name, m in network.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return [name for name, module in norms if not isinstance(module, BatchNorm)]


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm) -> Tensor:
        """Means and variances of parts give those of the whole, as Chan et al. (1979) add them up. PyTorch normalises
        by the own rows, fast, and what those of all differ by is linear in that."""
        own, own_mean, own_rstd = torch.native_batch_norm(x, None, None, None, None, True, 0.0, norm.eps)
        rows = own_mean.new_full(own_mean.shape, x.numel() / x.shape[1])
        told = torch.stack([own_mean, own_rstd**-2 - norm.eps, rows])
        means, variances, n = processes.of_all(told).unbind(dim=1)  # [processes, channels] each
        total = n.sum(dim=0)
        mean = (n * means).sum(dim=0) / total
        variance = (n * (variances + (means - mean) ** 2)).sum(dim=0) / total
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * total / (total - 1), norm.momentum)
        norm.num_batches_tracked.add_(1)
        rstd = (variance + norm.eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, rstd, rows / total)
        ctx.eps = norm.eps
        slope, offset = weight * rstd / own_rstd, bias + weight * rstd * (own_mean - mean)
        return torch.addcmul(offset.to(own.dtype)[:, None, None], own, slope.to(own.dtype)[:, None, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """PyTorch's own gradient, which has the sums of the own rows, and what those of all differ by: linear in x."""
        x, weight, mean, rstd, share = ctx.saved_tensors
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, rstd, True, ctx.eps, [True, True, True]
        )
        own = torch.stack([dbias, dweight])
        missing = (own - share * processes.sum_of_all(own)) / (x.numel() / x.shape[1])
        slope = weight * rstd * rstd * missing[1]
        offset = weight * rstd * missing[0] - slope * mean
        dx = torch.addcmul(dx.add_(offset.to(dx.dtype)[:, None, None]), x, slope.to(dx.dtype)[:, None, None])
        return dx, dweight, dbias, None


class Norm(BatchNorm):
    """relu(norm(x) + residual), or without `relu`, norm(x) + residual.

    On a GPU it takes as few passes over memory as there can be, unless a compiler is at work, which has its own way.
    """

    def __init__(self, channels: int, *, relu: bool = True) -> None:
        super().__init__(channels)
        self.relu = relu
        self.held = self.stale = False  # see `keep_folded`
        self.folded: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.twice(x, residual)[0]

    def twice(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """-> the same tensor twice, for two readers: their gradients come back apart, and a kernel that reads them
        anyway adds them up."""
        if self.fuses(x):
            from ipll.networks.fused import norm_relu  # needs Triton

            return norm_relu(self, x, residual, relu=self.relu)
        y = super().forward(x)
        if residual is not None:
            y = y + residual
        y = torch.relu(y) if self.relu else y
        return y, y

    def fuses(self, x: Tensor) -> bool:
        """Is there a kernel for it? There is none for a gradient without training, for float64 (they compute in
        float32), and for a single value of each channel, of which PyTorch says that it has no variance."""
        if self.training and processes.shared():  # its sums would have to be added up between two kernels
            return False
        wanted = (self.training or not torch.is_grad_enabled()) and not torch.compiler.is_compiling()
        return wanted and can_fuse(x.device) and x.itemsize <= 4 and x.numel() > x.shape[1]


def keep_folded(network: nn.Module) -> list[Norm]:
    """The network's weights stay as they are now until this is called again, as a teacher's do within a task: each
    norm is folded into its convolution once, not at every pass. What was folded is overwritten in place, so that a
    captured step goes on reading it. -> the norms."""
    norms = [module for module in network.modules() if isinstance(module, Norm)]
    for norm in norms:
        norm.held = norm.stale = True
    return norms


@contextmanager
def folded_meanwhile(network: nn.Module) -> Iterator[None]:
    """The same for a network that goes on learning afterwards."""
    norms = keep_folded(network)
    try:
        yield
    finally:
        for norm in norms:
            norm.held, norm.folded = False, None


class ConvNorm(nn.Sequential):
    """A convolution without a bias and its Norm, and whatever else comes behind them."""

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(x)[0]

    def twice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = conv_norm(self[0], self[1], x)
        for module in list(self)[2:]:
            both = (module(both[0]),) * 2
        return both


def conv_norm(conv: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """-> norm(conv(x), residual), twice (see Norm.twice)."""
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, Norm)
    if not norm.training and norm.fuses(x) and torch.is_autocast_enabled("cuda"):
        from ipll.networks.fused import folded  # needs Triton

        y = folded(conv, norm, x, residual, relu=norm.relu, dtype=torch.get_autocast_dtype("cuda"))
        return y, y
    return norm.twice(conv(x), residual)
