"""Loads Python source that weft generated: call sequences and wrappers.

Place in the pipeline: the last step of each writer. An undefined name (a size's symbol, say) would
raise at the first call, far from its cause; here it raises at once::

    call = load("def call(args):\\n    return [s0]", "<weft calls>", {})     # InternalError: s0
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from weft.errors import InternalError


def load(source: str, file: str, scope: dict[str, Any], name: str = "call") -> Callable[..., Any]:
    """The function of that name in the source, with `scope` as its globals."""
    exec(compile(source, file, "exec"), scope)
    function: Callable[..., Any] = scope[name]
    names = function.__code__.co_names  # attribute names too; those have no digits
    missing = [n for n in names if _NUMBERED.fullmatch(n) and n not in scope]
    if missing:
        raise InternalError(f"nothing defines {', '.join(missing)} in {file}:\n{source}")
    return function


_NUMBERED: Final = re.compile(r"(?:[a-z]|buf|in)\d+")
"""Names of symbols and buffers (not those of `math.log2`)."""
