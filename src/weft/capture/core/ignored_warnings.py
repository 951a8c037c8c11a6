"""Warnings of operators, where the program's own filters ignore them.

Place in the pipeline: filled by `library/standard/warnings_rules`. The captured operators run, on
fakes and in the replacement, with the program's "ignore" filters::

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
    """Put these filters before the others; with none, do nothing."""
    if not entries:
        yield
        return
    with warnings.catch_warnings():
        listed: Any = warnings.filters
        listed[:0] = entries
        filters_mutated()
        yield
