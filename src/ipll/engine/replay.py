"""Ways to take steps: one after another, or captured once as a CUDA graph and replayed.

A step of a small network is a few hundred short kernels. Python takes longer to launch them than the GPU to run them;
a graph launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch

from ipll.component import Draw
from ipll.errors import RunError

Step = Callable[[Draw], None]
WARM_UP = 3  # plain steps before a capture: they compile, pick convolution algorithms and make every buffer


class Plain:
    """Takes each step as it comes."""

    def begin(self, step: Step) -> None:
        """A phase begins: its steps are taken by `step`."""
        self.step = step

    def __call__(self, draw: Draw, stage: Hashable) -> None:
        self.step(draw)


class Replay(Plain):
    """Takes the first steps of a stage as they come, captures the next one, and replays it from then on.

    Capturing records a step without running it, so every step is taken exactly once and counts.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, step: Step) -> None:
        super().begin(step)
        self.key: Hashable = None
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, draw: Draw, stage: Hashable) -> None:
        key = (stage, tuple((name, tensor.shape) for name, tensor in _tensors(draw).items()))
        if key != self.key:
            self.begin(self.step)
            self.key = key
        if self.taken < WARM_UP:
            with self._aside():
                self.step(draw)
            self.taken += 1
            return
        if self.graph is None:
            self._capture(draw)
        for name, tensor in _tensors(draw).items():
            self.inputs[name].copy_(tensor)
        assert self.graph is not None
        self.graph.replay()

    def _capture(self, draw: Draw) -> None:
        copy = Draw(
            draw.rows.clone(),
            {name: view.clone() for name, view in draw.views.items()},
            {name: tensor.clone() for name, tensor in draw.extra.items()},
        )
        self.inputs = _tensors(copy)
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

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream of the capture: autograd remembers where a parameter's gradient was first accumulated."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


def _tensors(draw: Draw) -> dict[str, torch.Tensor]:
    views = {f"view {name}": view for name, view in draw.views.items()}
    return {"rows": draw.rows} | views | {f"extra {name}": tensor for name, tensor in draw.extra.items()}
