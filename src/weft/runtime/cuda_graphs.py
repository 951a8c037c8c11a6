"""Replays an artifact's GPU work as one CUDA graph (mode "reduce-overhead"), safely.

Place in the pipeline: `backends/inductor.py` wraps an `Artifact` in `CudaGraphs` if the mode asks
for it. The wrapped callable has the artifact's convention: one list in, a list out::

    call 1      runs the artifact normally (libraries initialise, kernels load)
    call 2      captures it into a `Recording` and replays that
    later       copies the inputs that move into the recording's own buffers, replays

What makes it safe:

- Outputs are in the recording's memory. Before a replay, the storages' reference counts tell if
  the caller still holds (a view of) an earlier result. Then another recording is used (at most
  `MOST_RECORDINGS`); if all are held, the artifact runs without a graph.
- Each recording has its own memory pool: no two of them can overwrite each other's results.
- Inputs that had one address in all calls so far (parameters) are read in place. The address is
  checked at every call, and an input that moves after all is copied from then on.
- What cannot be captured (CPU tensors, synchronising operators) runs without a graph, with one
  message.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch

from weft._torch import storage_use_count
from weft.diagnostics import events

Artifact = Callable[[list[Any]], list[Any]]

MOST_RECORDINGS: Final = 2
MOST_CAPTURES: Final = 8
"""Captures of one artifact before its inputs are taken to move too often for graphs to pay."""


@final
class InputCopy:
    """The recording's own memory for an input that moves.

    It has the input's strides, for which kernels are compiled: elements that share memory share it
    here too.
    """

    def __init__(self, position: int, source: torch.Tensor) -> None:
        self.position = position
        steps = zip(source.shape, source.stride(), strict=True)
        self._repeated = [d for d, (n, step) in enumerate(steps) if step == 0 and n > 1]
        once = self._once(source)
        self._memory = torch.empty_strided(
            once.shape, once.stride(), dtype=source.dtype, device=source.device)
        self.tensor = self._memory.expand(source.shape)
        self.fill(source)

    def _once(self, tensor: torch.Tensor) -> torch.Tensor:
        for dim in self._repeated:
            tensor = tensor.narrow(dim, 0, 1)
        return tensor

    def fill(self, source: torch.Tensor) -> None:
        """Copy the input's current content."""
        self._memory.copy_(self._once(source), non_blocking=True)


@final
@dataclass(eq=False)
class Recording:
    """One captured graph: its input buffers, its outputs, and the number of owners of their
    storages when idle."""

    graph: torch.cuda.CUDAGraph
    sizes: tuple[Any, ...]
    addresses: list[int]
    copied: list[InputCopy]
    outputs: list[Any]
    idle_counts: list[int]

    def is_free(self) -> bool:
        """Whether no caller holds a result of the last replay."""
        return all(
            count == idle
            for count, idle in zip(_use_counts(self.outputs), self.idle_counts, strict=True)
        )

    def replay(self, inputs: list[Any]) -> list[object]:
        """Run with these inputs; the results are aliases of the recording's own outputs."""
        for copy in self.copied:
            copy.fill(inputs[copy.position])
        inputs.clear()
        self.graph.replay()
        return [o.detach() if isinstance(o, torch.Tensor) else o for o in self.outputs]


@final
class CudaGraphs:
    """A callable with the artifact's convention that replays CUDA graphs if that is safe."""

    def __init__(
        self, artifact: Artifact, device: torch.device, changing: tuple[int, ...] = ()
    ) -> None:
        """`changing`: positions of the inputs whose sizes may differ from call to call."""
        self.artifact, self.device, self.changing = artifact, device, changing
        self.recordings: list[Recording] = []
        self.last_addresses: list[int] | None = None
        self.moving: set[int] = set()
        self.captures = 0
        self.disabled: str | None = None

    def __call__(self, inputs: list[Any]) -> list[object]:
        """Replay a recording that fits and is free; capture one; or run the artifact as it is."""
        if self.disabled is not None or torch.cuda.is_current_stream_capturing():
            return self.artifact(inputs)
        addresses = [t.data_ptr() if isinstance(t, torch.Tensor) else 0 for t in inputs]
        sizes = self._sizes(inputs)
        recording = self._free_recording(addresses, sizes)
        if recording is not None:
            return recording.replay(inputs)
        if not self._should_capture(addresses, sizes):
            return self.artifact(inputs)
        return self._capture(inputs, addresses, sizes)

    def _sizes(self, inputs: list[Any]) -> tuple[object, ...]:
        """What a recording is specialised on: numbers among the inputs, sizes that may change."""
        numbers = [v for v in inputs if not isinstance(v, torch.Tensor)]
        return (*numbers, *((inputs[i].shape, inputs[i].stride()) for i in self.changing))

    def _free_recording(self, addresses: list[int], sizes: tuple[object, ...]) -> Recording | None:
        for recording in self.recordings:
            if recording.sizes == sizes and recording.is_free():
                copied = {c.position for c in recording.copied}
                moved = _differing(recording.addresses, addresses) - copied
                if not moved:
                    return recording
                self.moving |= moved
        return None

    def _should_capture(self, addresses: list[int], sizes: tuple[object, ...]) -> bool:
        """Whether to capture: after one plain call. Drops recordings that read an input in place
        which has moved since."""
        first = self.last_addresses is None
        if self.last_addresses is not None:
            self.moving |= _differing(self.last_addresses, addresses)
        self.last_addresses = addresses
        moving = self.moving
        self.recordings = [r for r in self.recordings if moving <= {c.position for c in r.copied}]
        same = [r for r in self.recordings if r.sizes == sizes]
        return not first and len(same) < MOST_RECORDINGS and self.captures < MOST_CAPTURES

    def _capture(
        self, inputs: list[Any], addresses: list[int], sizes: tuple[object, ...]
    ) -> list[object]:
        if any(isinstance(t, torch.Tensor) and t.device != self.device for t in inputs):
            return self._give_up("an input is not on the graph's device", inputs)
        self.captures += 1
        copied = [InputCopy(i, inputs[i]) for i in sorted(self.moving)]
        static = list(inputs)
        for copy in copied:
            static[copy.position] = copy.tensor
        try:
            graph, outputs = _record(self.artifact, static)
        except RuntimeError as error:
            torch.cuda.synchronize(self.device)
            return self._give_up(str(error).splitlines()[0], inputs)
        counts = _use_counts(outputs)
        recording = Recording(graph, sizes, addresses, copied, outputs, counts)
        self.recordings.append(recording)
        events.count("cuda_graphs")
        return recording.replay(inputs)

    def _give_up(self, reason: str, inputs: list[Any]) -> list[object]:
        self.disabled = reason
        self.recordings.clear()
        events.record("perf", text=f"no CUDA graph: {reason}")
        return self.artifact(inputs)


def _differing(before: list[int], now: list[int]) -> set[int]:
    """Positions at which two lists of addresses differ."""
    return {i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b}


def _use_counts(outputs: Sequence[object]) -> list[int]:
    return [storage_use_count(o) for o in outputs if isinstance(o, torch.Tensor)]


def _record(
    artifact: Artifact, inputs: Sequence[object]
) -> tuple[torch.cuda.CUDAGraph, list[object]]:
    """Capture one run of the artifact on a side stream, into a memory pool of its own."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = artifact(list(inputs))
            finally:
                _end_capture(graph)
    except RuntimeError:
        _leave_capture_mode()
        raise
    torch.cuda.current_stream().wait_stream(stream)
    return graph, list(outputs)


def _leave_capture_mode() -> None:
    """Take the generator out of capture mode, where a failed capture leaves it and every later
    random operator fails.

    A successful capture does that itself. (Another state of the generator would do too, but earlier
    graphs would go on drawing from the old one, whatever the program seeds.)
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        _end_capture(graph)


def _end_capture(graph: torch.cuda.CUDAGraph) -> None:
    """End the capture without PyTorch's warning about an empty graph: tensors without elements need
    no work."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        graph.capture_end()
