"""The call sequence under construction, and how tensors are made and written in it.

Place in the pipeline: filled by `emit.py`, `library_calls.py` and `gemm_calls.py`. The C
callables of `runtime/tensor_calls.py`, one for each distinct layout, make and view tensors; unknown
sizes are passed at the call::

    buf0 = empty2(s0)                    # (s0, 768) float32
    buf1 = mm4(buf0, in1)                # (s0, 768) @ (768, 64)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from weft.codegen.values import Buffer, ExternCall, Strided
from weft.graph_call import Packing
from weft.runtime import tensor_calls
from weft.runtime.tensor_calls import Layout
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.printing import python_text
from weft.shapes.algebra.views import Shape
from weft.shapes.asserts import Asserts


@final
@dataclass
class CallSequence:
    """Source of `call(args)` and the objects that it refers to."""

    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    asserts: Asserts = field(default_factory=lambda: Asserts((), ()))
    bound: dict[str, int] = field(default_factory=dict)
    """The symbols whose values lines give, each with the number of lines up to there."""
    weights: dict[str, list[tuple[ExternCall, Packing]]] = field(default_factory=dict)
    """The products that take a whole buffer as oneDNN's weight, and how it is packed."""
    _names: dict[tuple[str, int], str] = field(default_factory=dict)

    def text(self) -> str:
        """The whole function."""
        return "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)

    def name(self, prefix: str, item: object) -> str:
        """A global name for an object (the same name for the same object)."""
        key = prefix, id(item)  # the scope keeps the object
        if key not in self._names:
            self._names[key] = global_name = f"{prefix}{len(self.scope)}"
            self.scope[global_name] = item
        return self._names[key]

    def empty(self, buffer: Buffer) -> str:
        """New memory for a buffer."""
        layout, numbers = layout_of(buffer.shape, buffer.strides, 0)
        name = self.name("empty", tensor_calls.empty(layout, buffer.dtype, buffer.device))
        about = f"{shape_text(buffer.shape)} {str(buffer.dtype).removeprefix('torch.')}"
        return f"{name}({', '.join(numbers)})  # {about}"

    def view(self, tensor: str, shape: Shape, strides: Shape, offset: IntExpr = 0) -> str:
        """A tensor's memory in another layout; the offset counts from its first element."""
        layout, numbers = layout_of(shape, strides, offset)
        name = self.name("view", tensor_calls.view(layout))
        return f"{name}({', '.join([tensor, *numbers])})"

    def tensor(self, value: Strided, *, exact: bool = False) -> str:
        """The expression of a strided value: its buffer, or a view of it.

        exact: strides of dimensions of size 1 must be right too.
        """
        if is_whole(value, exact=exact):
            return value.buffer.name
        strides = value.strides if exact else plain_strides(value.shape, value.strides)
        return self.view(value.buffer.name, value.shape, strides, value.offset)


def layout_of(shape: Shape, strides: Shape, offset: IntExpr) -> tuple[Layout, list[str]]:
    """A layout, and the expressions of its unknown numbers.

    Row-major strides that would have to be computed are left to the call.
    """
    follow = strides == row_major(shape) and not all(isinstance(n, int) for n in strides)
    steps = () if follow else strides
    unknown = [python_text(n) for n in (*shape, *steps, offset) if not isinstance(n, int)]
    start = offset if isinstance(offset, int) else None
    return (_known_extents(shape), None if follow else _known_extents(steps), start), unknown


def _known_extents(numbers: Shape) -> tuple[int | None, ...]:
    return tuple(n if isinstance(n, int) else None for n in numbers)


def is_whole(value: Strided, *, exact: bool = False) -> bool:
    """Whether the value is all of its buffer, with the buffer's strides."""
    buffer = value.buffer
    if value.shape != buffer.shape or not isinstance(value.offset, int) or value.offset != 0:
        return False
    if exact:
        return value.strides == buffer.strides
    return _same(value.strides, buffer.strides, buffer.shape)


def shape_text(sizes: Sequence[IntExpr]) -> str:
    """A shape as a tuple display."""
    inside = ", ".join(python_text(n) for n in sizes)
    return f"({inside},)" if len(sizes) == 1 else f"({inside})"


def plain_strides(shape: Shape, strides: Shape) -> Shape:
    """The strides, with those of dimensions of size 1 as in a row-major view.

    They have no meaning, but libraries look at them: attention kernels refuse strides that are not
    multiples of four.
    """
    plain: list[IntExpr] = []
    step: IntExpr = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        plain.append(step if size == 1 else stride)
        step = plain[-1] * size
    return tuple(reversed(plain))


def _same(left: Shape, right: Shape, shape: Shape) -> bool:
    return all(a == b for a, b, n in zip(left, right, shape, strict=True) if n != 1)
