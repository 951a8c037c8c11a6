"""How much memory calls need: the most that PyTorch's allocators give out at a time.

Place in the pipeline: independent; used by `weft.benchmark` and the benchmarks::

    peak_memory(lambda: model(x), "cpu")        # bytes beyond what is held between the calls

On CPUs it is what the profiler sees, block by block. The profiler's own sums mislead: it remembers
sizes of blocks from earlier profiles, so that the end of an unrelated block at the same address
counts as theirs. Here only blocks that began within the profile count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch.autograd.profiler import profile, record_function

from weft._torch import ProfilerEventType

_MEASURED: Final = "measured"


def peak_memory(call: Callable[[], object], device: str) -> int:
    """Bytes that calls need at most beyond what is held between them, of PyTorch's allocator."""
    if device.startswith("cuda"):
        return _peak_on_gpu(call)
    return peak_of(call, before=1, measured=2)


def _peak_on_gpu(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _in_order(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _in_order(event.children)


def peak_of(call: Callable[[], object], before: int = 1, measured: int = 1) -> int:
    """Bytes on the CPU that `measured` calls need at most beyond what the `before` calls have
    left."""
    # Not torch.profiler's, which imports torch._inductor. (Without `acc_events` 2.11 warns.)
    with profile(profile_memory=True, acc_events=True) as profiled:
        for _ in range(before):
            call()
        with record_function(_MEASURED):
            pass
        for _ in range(measured):
            call()
    assert profiled.kineto_results is not None
    tree = profiled.kineto_results.experimental_event_tree()
    held: dict[int, int] = {}
    used = start = most = 0
    for event in sorted(_in_order(tree), key=lambda event: event.start_time_ns):
        if event.tag == ProfilerEventType.Allocation:
            block = event.extra_fields
            if block.alloc_size > 0:
                held[block.ptr] = block.alloc_size
                used += block.alloc_size
            else:
                used -= held.pop(block.ptr, 0)
            most = max(most, used)
        elif event.name == _MEASURED:
            start = most = used
    return most - start
