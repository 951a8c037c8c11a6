"""The growing source of a graph's call sequence, and how tensors and shapes are spelled in it.

Place in the pipeline: filled by `wrapper.py` and `library_calls.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from weft.codegen.values import Computed, Shape, Strided
from weft.shapes.asserts import Asserts
from weft.shapes.expr import IntExpr
from weft.shapes.printing import python_text


@final
@dataclass
class CallSequence:
    """Source of `call(args)` and the objects that it names."""

    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, str] = field(default_factory=dict)
    asserts: Asserts = field(default_factory=lambda: Asserts((), ()))

    def text(self) -> str:
        """The whole function."""
        return "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)

    def name(self, prefix: str, item: Any) -> str:
        """A global name for an object (the same name for the same object)."""
        for known, value in self.scope.items():
            if value is item and known.startswith(prefix):
                return known
        made = f"{prefix}{len(self.scope)}"
        self.scope[made] = item
        return made


def shape_text(sizes: Sequence[IntExpr]) -> str:
    """A shape as a tuple display."""
    inside = ", ".join(python_text(n) for n in sizes)
    return f"({inside},)" if len(sizes) == 1 else f"({inside})"


def tensor_text(value: Strided, *, exact: bool = False) -> str:
    """A strided value: its buffer, or a view of it.

    exact: strides of dimensions of size 1 must be right too.
    """
    buffer = value.buffer
    offset = value.offset
    whole = value.shape == buffer.shape and (
        value.strides == buffer.strides if exact
        else _same(value.strides, buffer.strides, buffer.shape)
    )  # fmt: skip
    if whole and isinstance(offset, int) and offset == 0:
        return buffer.name
    strides = value.strides if exact else plain_strides(value.shape, value.strides)
    form = f"{shape_text(value.shape)}, {shape_text(strides)}"
    if isinstance(offset, int) and offset == 0:
        return f"as_strided({buffer.name}, {form})"
    start = python_text(offset)  # as_strided counts from the start of the storage
    if not isinstance(buffer.definition, Computed):
        start = f"{buffer.name}.storage_offset() + {start}"
    return f"as_strided({buffer.name}, {form}, {start})"


def plain_strides(shape: Shape, strides: Shape) -> Shape:
    """The strides, with those of dimensions of size 1 as a row-major view would have them.

    They have no meaning, but libraries look at them: attention kernels refuse strides that are no
    multiple of four.
    """
    made: list[IntExpr] = []
    step: IntExpr = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        made.append(step if isinstance(size, int) and size == 1 else stride)
        step = made[-1] * size
    return tuple(reversed(made))


def _same(left: Shape, right: Shape, shape: Shape) -> bool:
    return all(a == b for a, b, n in zip(left, right, shape, strict=True) if n != 1)
