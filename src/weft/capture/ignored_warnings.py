"""Operators' own warnings, where the program has filters of its own around them.

Place in the pipeline: filled by `handlers/warnings_library`; the captured operators run (on fakes,
and in the replacement) under what the program's filters ignore::

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.range(0, 3)              # with ignoring(entries): out0, = graph(...)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

filters_mutated: Final[Any] = vars(warnings)["_filters_mutated"]


@contextmanager
def ignoring(entries: Sequence[Any]) -> Iterator[None]:
    """A region with more filters, ahead of the others; as it was, if there are none."""
    if not entries:
        yield
        return
    with warnings.catch_warnings():
        listed: Any = warnings.filters
        listed[:0] = entries
        filters_mutated()
        yield
