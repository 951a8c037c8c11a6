"""Functional writes, and operators that do the same in the tensor itself.

Place in the pipeline: `codegen/calls/memory.py` decides where a call may overwrite its first
operand, because nothing reads it afterwards: a cache that grows by a row is not copied for it::

    WRITERS[aten.index_copy.default](x, 0, positions, rows)      # x itself is written
    written_part(x, [("select", 0, 3)], "copy.", row)            # a copy of x, with x[3] = row
    WRITERS[written_part](x, [("select", 0, 3)], "copy.", row)   # x[3] = row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten

VIEWS: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "slice": aten.slice.Tensor, "select": aten.select.int, "view": aten.view.default,
    "transpose": aten.transpose.int, "t": aten.t.default, "permute": aten.permute.default,
}
"""Views that lead to a part, by the names that a path has for them."""

def _slice(
    x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    return x[(*(slice(None),) * (dim % x.dim()), slice(start, end, step))]


_BINDINGS: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "slice": _slice, "select": torch.select, "view": torch.Tensor.view,
    "transpose": torch.transpose, "t": torch.t, "permute": torch.permute,
}
"""The same views by torch's bindings, which read arguments in a third of the time."""

_OVERLOADS: Final = (
    "index_put.", "index_copy.", "index_add.", "index_reduce.", "index_fill.int_Scalar",
    "index_fill.int_Tensor", "scatter.src", "scatter.value", "scatter.reduce",
    "scatter.value_reduce", "scatter_add.", "scatter_reduce.two", "masked_scatter.", "put.",
    "copy.",
)


def _overload(text: str, suffix: str = "") -> Any:
    name, overload = text.split(".")
    return getattr(getattr(aten, name + suffix), overload or "default")


_BY_NAME: Final[dict[str, Callable[..., torch.Tensor]]] = {
    text: _overload(text, "_") for text in _OVERLOADS
}
NAMES: Final[dict[Any, str]] = {_overload(text): text for text in _OVERLOADS}
"""Functional writes of a whole tensor, and how a call of `written_part` names them."""


def _write_part(
    x: torch.Tensor, path: Sequence[tuple[Any, ...]], write: str, *args: object, **keywords: object
) -> torch.Tensor:
    part = x
    for view, *where in path:
        part = _BINDINGS[view](part, *where)
    if write == "copy.":
        part.copy_(*args, **keywords)  # type: ignore[arg-type]
    else:
        _BY_NAME[write](part, *args, **keywords)
    return x


def written_part(
    x: torch.Tensor, path: Sequence[tuple[object, ...]], write: str, *args: object,
    **keywords: object
) -> torch.Tensor:
    """A copy of `x` with a part written: the views of `path` lead to the part, and `write` (one of
    `NAMES`) says what is done with it and the arguments."""
    copy = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
    return _write_part(copy.copy_(x), path, write, *args, **keywords)


WRITERS: Final[dict[Any, Callable[..., torch.Tensor]]] = {
    written_part: _write_part,
    aten._unsafe_index_put.default: aten.index_put_.default,
    **{op: _BY_NAME[text] for op, text in NAMES.items() if text != "copy."},
}
"""Functional writes, and the operators that write the first operand instead of a copy."""
