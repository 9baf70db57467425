"""Ways to take steps: one after another, or captured once as a CUDA graph and replayed.

A step of a small network is a few hundred short kernels. Python takes longer to launch them than the GPU to run them;
a graph launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ipll.errors import RunError

WARM_UP = 3  # plain steps before a capture: they compile, pick convolution algorithms and make every buffer


class Inputs(Protocol):
    """What is drawn for a step, tensors that differ from step to step."""

    def tensors(self) -> dict[str, Tensor]: ...

    def clone(self) -> Self: ...


D = TypeVar("D", bound=Inputs)


class Plain(Generic[D]):
    """Takes each step as it comes."""

    def begin(self, step: Callable[[D], None]) -> None:
        """A phase begins: its steps are taken by `step`."""
        self.step = step

    def __call__(self, draw: D, stage: Hashable) -> None:
        self.step(draw)

    def side_stream(self) -> AbstractContextManager[None]:
        """For a part of a step that can run beside the rest, until `join`."""
        return nullcontext()

    def join(self) -> None:
        """What ran beside is finished."""

    def forget(self) -> None:
        """No step will be taken any more. NCCL waits at the end until no graph is left that has captured its work."""


class Replay(Plain[D]):
    """Takes the first steps of a stage as they come, captures the next one, and replays it from then on.

    Capturing records a step without running it, so every step is taken exactly once and counts.
    """

    graph: torch.cuda.CUDAGraph | None = None

    def __init__(self, device: torch.device) -> None:
        self.stream, self.second = _streams(device, 2)

    def begin(self, step: Callable[[D], None]) -> None:
        super().begin(step)
        self.key: Hashable = None
        self.taken = 0
        self.graph = None

    def __call__(self, draw: D, stage: Hashable) -> None:
        key = (stage, tuple((name, tensor.shape) for name, tensor in draw.tensors().items()))
        if key != self.key:
            self.begin(self.step)
            self.key = key
        if self.taken < WARM_UP:
            with _aside(self.stream):
                self.step(draw)
            self.taken += 1
            return
        if self.graph is None:
            self._capture(draw)
        for name, tensor in draw.tensors().items():
            self.inputs[name].copy_(tensor)
        assert self.graph is not None
        self.graph.replay()

    def _capture(self, draw: D) -> None:
        copy = draw.clone()
        self.inputs = copy.tensors()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.step(copy)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise RunError(
                f"a step of this method cannot be captured as a CUDA graph ({str(error).splitlines()[0]}). A part of "
                "it waits for the device or copies from the host within a step. Use --set train.graphs=off."
            ) from error
        self.graph = graph

    def side_stream(self) -> AbstractContextManager[None]:
        return _fork(self.second)

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.second)

    def forget(self) -> None:
        self.graph = None


class Replayed:
    """A pure function of tensors whose shapes never change, captured after a few calls. The result is overwritten by
    the next call."""

    def __init__(self, function: Callable[..., Tensor], device: torch.device) -> None:
        self.function, self.calls = function, 0
        (self.stream,) = _streams(device, 1)

    def __call__(self, *tensors: Tensor) -> Tensor:
        self.calls += 1
        if self.calls <= WARM_UP:
            with _aside(self.stream):
                return self.function(*tensors)
        if self.calls == WARM_UP + 1:
            self.inputs = [tensor.clone() for tensor in tensors]
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.result = self.function(*self.inputs)
        for own, tensor in zip(self.inputs, tensors, strict=True):
            own.copy_(tensor)
        self.graph.replay()
        return self.result


def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]


@contextmanager
def _fork(stream: torch.cuda.Stream) -> Iterator[None]:
    """On another stream, after all that the current one has been given so far."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


@contextmanager
def _aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """On the stream of a capture, before it: autograd remembers where a parameter's gradient was first accumulated."""
    with _fork(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
