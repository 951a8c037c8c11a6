"""What PyTorch's CPU allocator gives out while a function runs, block by block.

The profiler's own sums mislead: it remembers sizes of blocks from earlier profiles, so that the end
of an unrelated block at the same address counts as theirs. Here only blocks that began within the
profile count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

MEASURED = "measured"


def _in_order(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _in_order(event.children)


def peak_of(call: Callable[[], object], before: int = 1, measured: int = 1) -> int:
    """Bytes that `measured` calls need at most beyond what the `before` calls have left."""
    with profile(  # (else PyTorch 2.11 warns)
            activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        for _ in range(before):
            call()
        with record_function(MEASURED):
            pass
        for _ in range(measured):
            call()
    assert found.profiler is not None
    tree = found.profiler.kineto_results.experimental_event_tree()
    held: dict[int, int] = {}
    used = start = most = 0
    for event in sorted(_in_order(tree), key=lambda event: event.start_time_ns):
        if event.tag == _EventType.Allocation:
            block = event.extra_fields
            if block.alloc_size > 0:
                held[block.ptr] = block.alloc_size
                used += block.alloc_size
            else:
                used -= held.pop(block.ptr, 0)
            most = max(most, used)
        elif event.name == MEASURED:
            start = most = used
    return most - start
