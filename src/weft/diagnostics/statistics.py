"""The numbers of `weft.stats()`.

Place in the pipeline: a view of `events`; nothing is computed until someone asks::

    weft.stats()["compile_seconds"]["capture"]
"""

from __future__ import annotations

from typing import Any, Final

from weft.diagnostics import events

COUNTERS: Final[dict[str, str]] = {
    "graphs": "graphs captured",
    "graph_breaks": "places where capture stopped and went on after plain Python",
    "recompiles": "variants compiled because a guard of an earlier one failed",
    "unfit_guards": "variants whose guards did not hold for the very call they were made from",
    "kernels": "kernels generated (equal ones of a graph are counted each, compiled once)",
    "extern_calls": "operators left to ATen",
    "uncompiled_graphs": "graphs that run operator by operator, as captured",
    "fallbacks": "failures inside weft that ended in an eager run",
    "disk_cache_hits": "kernels found compiled on disk",
    "disk_cache_misses": "kernels compiled",
}
"""Counters that are always in the result; others appear once counted."""

HELD: Final[dict[str, int]] = {"kept_form_bytes": 0}
"""What the process holds now, whatever `reset` forgets: bytes of the forms of parameters that are
kept between calls (`runtime/kept_forms.py`)."""


def snapshot(*, cache_entries: int) -> dict[str, Any]:
    """All counters, `cache_entries` (compiled variants alive), `HELD`, and seconds by stage.

    `compile_seconds` are wall seconds without inner stages, so they add up to ``"total"``.
    """
    seconds = dict(sorted(events.stage_self_seconds().items()))
    return {
        **dict.fromkeys(COUNTERS, 0),
        **events.counters(),
        "cache_entries": cache_entries,
        **HELD,
        "compile_seconds": {**seconds, "total": sum(seconds.values())},
    }
