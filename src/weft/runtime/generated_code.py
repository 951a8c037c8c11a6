"""Loads Python source that weft generated: call sequences and wrappers.

Place in the pipeline: the last step of each writer. An undefined name (a size's symbol, say) would
raise at the first call, far from its cause; here it raises at once::

    call = load("def call(args):\\n    return [s0]", "<weft calls>", {})     # InternalError: s0
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, final

from weft.errors import InternalError


@final
@dataclass(frozen=True, slots=True)
class GeneratedSource:
    """The text of a generated function, its file's name, and its name in the text."""

    text: str
    file: str
    name: str


_SOURCE: Final = "__weft_source__"
"""The global variable of a generated function that has its source."""


def generated_source(function: FunctionType) -> GeneratedSource | None:
    """What a function was loaded from; None if `load` has not made it."""
    source = function.__globals__.get(_SOURCE)
    is_loaded = isinstance(source, GeneratedSource) and source.name == function.__name__
    return source if is_loaded else None


def load(source: str, file: str, scope: dict[str, Any], name: str = "call") -> Callable[..., Any]:
    """The function of that name in the source, with `scope` as its globals."""
    exec(compile(source, file, "exec"), scope)
    function: Callable[..., Any] = scope[name]
    scope[_SOURCE] = GeneratedSource(source, file, name)
    names = function.__code__.co_names  # attribute names too; those have no digits
    missing = [n for n in names if _NUMBERED.fullmatch(n) and n not in scope]
    if missing:
        raise InternalError(f"nothing defines {', '.join(missing)} in {file}:\n{source}")
    return function


_NUMBERED: Final = re.compile(r"(?:[a-z]|buf|in)\d+")
"""Names of symbols and buffers (not those of `math.log2`)."""
