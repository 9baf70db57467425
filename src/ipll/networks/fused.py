"""Batch norm, residual and ReLU as Triton kernels: two passes over memory forward and two backward.

Reading the activations of a wide layer takes a fifth of the time of its convolution, and operations that follow one
another read or write them a dozen times. Here the statistics are one pass; normalising, adding and cutting off another;
so are the two sums of the backward pass, and the gradient. ReLU's mask is found again from what is read anyway. Without
a gradient, batch norm is folded into the convolution's weights.

Activations are [rows, channels], the memory of a channels-last tensor. A program takes `WIDTH` channels and every n-th
block of rows. Sums are kept by program and added up by whoever needs them, always in the same order: the same input
gives the same bits. Sizes of tiles and numbers of programs were chosen by measurement on an H200 (docs/speed.md).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WIDTH = 64  # channels of a tile
SUMMING = {"bytes": 256, "warps": 8, "programs": 128}  # rows times bytes of a value; programs: of all channels
WRITING = {"bytes": 128, "warps": 4, "programs": 512}
STAGES = 3  # tiles that are on their way at once; they take at most 96 KiB of shared memory, which all cards have


@triton.jit
def _tile(start, c, rows, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Where the values of channels `c` lie in a block of rows, and which of them are there."""
    r = tl.arange(0, BLOCK)[:, None]
    return start * tl.full((), CHANNELS, tl.int64) + (r * CHANNELS + c[None, :]), r < rows - start


@triton.jit
def _read(x, here, inside):
    return tl.load(x + here, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _moments(
    x, partial, rows,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of x and of its square, both less the first row: far from zero, squares alone would lose the variance."""
    part = tl.program_id(0)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    shift = tl.load(x + c).to(tl.float32)[None, :]
    first = tl.zeros([BLOCK, WIDTH], tl.float32)
    second = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in tl.range(part * BLOCK, rows, PARTS * BLOCK, num_stages=STAGES):
        here, inside = _tile(start, c, rows, CHANNELS, BLOCK)
        value = _read(x, here, inside) - shift
        value = tl.where(inside, value, 0.0)
        first += value
        second += value * value
    tl.store(partial + part * CHANNELS + c, tl.sum(first, axis=0))
    tl.store(partial + (PARTS + part) * CHANNELS + c, tl.sum(second, axis=0))


@triton.jit
def _total(partial, c, CHANNELS: tl.constexpr, PARTS: tl.constexpr):
    p = tl.arange(0, PARTS)[:, None] * CHANNELS
    first = tl.sum(tl.load(partial + p + c[None, :]), axis=0)
    second = tl.sum(tl.load(partial + PARTS * CHANNELS + p + c[None, :]), axis=0)
    return first, second


@triton.jit
def _write(
    x, residual, y, scale, offset, c, rows,
    CHANNELS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = relu(scale x + offset + residual), from the end: what was read last is still in the cache."""
    blocks = tl.cdiv(rows, BLOCK)
    for k in range(tl.program_id(0), blocks, tl.num_programs(0)):
        start = (blocks - 1 - k) * BLOCK
        here, inside = _tile(start, c, rows, CHANNELS, BLOCK)
        value = _read(x, here, inside) * scale[None, :] + offset[None, :]
        if RESIDUAL:
            value += _read(residual, here, inside)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + here, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _normalise(
    x, residual, y, partial, weight, bias, mean_out, rstd_out, running_mean, running_var, batches, rows, momentum, eps,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """y = relu(norm(x) + residual) by the batch's statistics; the first program of some channels keeps theirs."""
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first, second = _total(partial, c, CHANNELS, PARTS)
    first /= rows
    mean = tl.load(x + c).to(tl.float32) + first
    variance = tl.maximum(second / rows - first * first, 0.0)
    rstd = 1.0 / tl.sqrt(variance + eps)
    if tl.program_id(0) == 0:
        tl.store(mean_out + c, mean)
        tl.store(rstd_out + c, rstd)
        tl.store(running_mean + c, tl.load(running_mean + c) * (1.0 - momentum) + mean * momentum)
        unbiased = variance * (rows / (rows - 1.0))
        tl.store(running_var + c, tl.load(running_var + c) * (1.0 - momentum) + unbiased * momentum)
        if tl.program_id(1) == 0:
            tl.store(batches, tl.load(batches) + 1)
    scale = tl.load(weight + c) * rstd
    _write(x, residual, y, scale, tl.load(bias + c) - mean * scale, c, rows, CHANNELS, RESIDUAL, RELU, BLOCK)


@triton.jit
def _apply(
    x, residual, y, weight, bias, mean, variance, rows, eps,
    CHANNELS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y = relu(norm(x) + residual) by statistics that are known."""
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    scale = tl.load(weight + c) / tl.sqrt(tl.load(variance + c) + eps)
    _write(
        x, residual, y, scale, tl.load(bias + c) - tl.load(mean + c) * scale, c, rows, CHANNELS, RESIDUAL, RELU, BLOCK
    )


@triton.jit
def _gradient_sums(
    x, y, dy, again, dz, partial, weight, bias, mean, rstd, rows,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, TWICE: tl.constexpr,
    KEEP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of dz, the gradient before ReLU, and of dz times the normalised x; dz is kept for who needs it again.

    TWICE: y had two readers, and its gradient comes in two parts.
    """
    part = tl.program_id(0)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    m, s = tl.load(mean + c)[None, :], tl.load(rstd + c)[None, :]
    scale = tl.load(weight + c)[None, :] * s
    offset = tl.load(bias + c)[None, :] - m * scale
    first = tl.zeros([BLOCK, WIDTH], tl.float32)
    second = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in tl.range(part * BLOCK, rows, PARTS * BLOCK, num_stages=STAGES):
        here, inside = _tile(start, c, rows, CHANNELS, BLOCK)
        value = _read(x, here, inside)
        gradient = _read(dy, here, inside)
        if TWICE:
            gradient += _read(again, here, inside)
        if RELU:
            if RESIDUAL:
                gradient = tl.where(_read(y, here, inside) > 0, gradient, 0.0)
            else:
                gradient = tl.where(value * scale + offset > 0, gradient, 0.0)
        if KEEP:
            tl.store(dz + here, gradient.to(dz.dtype.element_ty), mask=inside)
        first += gradient
        second += gradient * (value - m)
    tl.store(partial + part * CHANNELS + c, tl.sum(first, axis=0))
    tl.store(partial + (PARTS + part) * CHANNELS + c, tl.sum(second, axis=0) * tl.load(rstd + c))


@triton.jit
def _gradient(
    x, dz, dx, partial, weight, bias, mean, rstd, dweight, dbias, rows,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx, and the gradients of weight and bias; MASK: dz is still the gradient after ReLU."""
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first, second = _total(partial, c, CHANNELS, PARTS)
    if tl.program_id(0) == 0:
        tl.store(dbias + c, first)
        tl.store(dweight + c, second)
    m, s = tl.load(mean + c)[None, :], tl.load(rstd + c)[None, :]
    scale = tl.load(weight + c)[None, :] * s
    offset = tl.load(bias + c)[None, :] - m * scale
    first = (first / rows)[None, :]
    second = (second / rows)[None, :] * s
    blocks = tl.cdiv(rows, BLOCK)
    for k in range(tl.program_id(0), blocks, tl.num_programs(0)):
        start = (blocks - 1 - k) * BLOCK
        here, inside = _tile(start, c, rows, CHANNELS, BLOCK)
        value = _read(x, here, inside)
        gradient = _read(dz, here, inside)
        if MASK:
            gradient = tl.where(value * scale + offset > 0, gradient, 0.0)
        gradient = scale * (gradient - first - (value - m) * second)
        tl.store(dx + here, gradient.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _fold(weight, gamma, beta, mean, variance, folded, offset, eps, size, BLOCK: tl.constexpr):
    """A convolution's weights times the scale of the batch norm behind it, and the offset that is left."""
    o = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(gamma + o) / tl.sqrt(tl.load(variance + o) + eps)
    value = tl.load(weight + o * size + i, mask=i < size, other=0.0) * scale
    tl.store(folded + o * size + i, value.to(folded.dtype.element_ty), mask=i < size)
    if tl.program_id(1) == 0:
        left = tl.load(beta + o) - tl.load(mean + o) * scale
        tl.store(offset + o, left.to(offset.dtype.element_ty))


def _programs(x: Tensor, kind: dict[str, int]) -> tuple[tuple[int, int], dict[str, int]]:
    """-> a grid of programs for x [n, channels, height, width], and the sizes that its kernels want to know."""
    channels = x.shape[1]
    width = min(WIDTH, channels & -channels)
    parts = triton.next_power_of_2(triton.cdiv(kind["programs"], channels // width))
    sizes = {"CHANNELS": channels, "BLOCK": kind["bytes"] // x.itemsize, "WIDTH": width, "num_warps": kind["warps"]}
    return (parts, channels // width), sizes


class _Training(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, relu: bool
    ) -> tuple[Tensor, Tensor]:
        summing, sizes = _programs(x, SUMMING)
        partial = weight.new_empty((2, summing[0], x.shape[1]))
        rows, parts, added = x.numel() // x.shape[1], summing[0], residual is not None
        _moments[summing](x, partial, rows, PARTS=parts, STAGES=STAGES, **sizes)
        y, mean, rstd = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        writing, sizes = _programs(x, WRITING)
        _normalise[writing](
            x, residual, y, partial, weight, bias, mean, rstd, norm.running_mean, norm.running_var,
            norm.num_batches_tracked, rows, norm.momentum, norm.eps, PARTS=parts, RESIDUAL=added, RELU=relu, **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu and added else None, weight, bias, mean, rstd)
        ctx.set_materialize_grads(False)
        ctx.relu, ctx.added = relu, added
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *both: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, rstd = ctx.saved_tensors
        there = [part.contiguous(memory_format=torch.channels_last) for part in both if part is not None]
        twice = len(there) == 2
        dy, again = there[0], there[1] if twice else None
        keep = twice or y is not None
        dz = torch.empty_like(dy) if keep else dy
        summing, sizes = _programs(x, SUMMING | {"bytes": 128} if twice else SUMMING)  # smaller tiles of more tensors
        partial = weight.new_empty((2, summing[0], x.shape[1]))
        rows, parts = x.numel() // x.shape[1], summing[0]
        _gradient_sums[summing](
            x, y, dy, again, dz, partial, weight, bias, mean, rstd, rows, PARTS=parts, RESIDUAL=ctx.added,
            RELU=ctx.relu, TWICE=twice, KEEP=keep, STAGES=STAGES, **sizes,
        )  # fmt: skip
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        writing, sizes = _programs(x, WRITING)
        _gradient[writing](
            x, dz, dx, partial, weight, bias, mean, rstd, dweight, dbias, rows, PARTS=parts,
            MASK=ctx.relu and not keep, **sizes,
        )  # fmt: skip
        return dx, dz if ctx.added else None, dweight, dbias, None, None


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, *, relu: bool) -> tuple[Tensor, Tensor]:
    """relu(norm(x) + residual), twice: by the batch's statistics in training, else by the running ones, without a
    gradient."""
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    if norm.training:
        both: tuple[Tensor, Tensor] = _Training.apply(x, residual, norm.weight, norm.bias, norm, relu)
        return both
    y = torch.empty_like(x)
    programs, sizes = _programs(x, WRITING)
    _apply[programs](
        x, residual, y, norm.weight, norm.bias, norm.running_mean, norm.running_var, x.numel() // x.shape[1], norm.eps,
        RESIDUAL=residual is not None, RELU=relu, **sizes,
    )  # fmt: skip
    return y, y


def _folded_weights(conv: nn.Conv2d, norm: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """-> the convolution's weights and bias with the norm in them; those of a network that is held are kept."""
    both: tuple[Tensor, Tensor] | None = norm.folded
    if both is None or both[0].dtype != dtype:
        both = torch.empty_like(conv.weight, dtype=dtype), torch.empty_like(norm.bias, dtype=dtype)
        norm.folded = both if norm.held else None
    elif not norm.stale:
        return both
    weight, offset = both
    size = weight[0].numel()
    _fold[(len(weight), triton.cdiv(size, 1024))](
        conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, weight, offset, norm.eps, size,
        BLOCK=1024,
    )  # fmt: skip
    norm.stale = False
    return both


def folded(conv: nn.Conv2d, norm: Any, x: Tensor, residual: Tensor | None, *, relu: bool, dtype: torch.dtype) -> Tensor:
    """relu(norm(conv(x)) + residual) by the running statistics, without a gradient: one convolution does it all."""
    x = x.to(dtype).contiguous(memory_format=torch.channels_last)
    weight, offset = _folded_weights(conv, norm, dtype)
    how: Any = conv.stride, conv.padding, conv.dilation, conv.groups
    if not relu:
        y = nn.functional.conv2d(x, weight, offset, *how)
        return y if residual is None else y + residual
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, offset, *how)
    residual = residual.to(dtype).contiguous(memory_format=torch.channels_last)
    return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, offset, *how)
