"""Lowered tensors: buffers in memory, and values that are still formulas.

Place in the pipeline: `lowering/` turns each ATen node into a `Value`; those that need memory
become `Buffer`s with a `Definition`; `scheduling/schedule.py` groups definitions into kernels.

A `Value` is either *strided* (elements of a buffer at affine positions, so any view of it costs
nothing) or *lazy* (a function from an index to a scalar node, computed again wherever it is used).
`realize()` turns the second into the first, for all users of the value::

    x = graph.input("x", …)                         # strided
    y = Value.lazy(x.shape, "f32", lambda em, i: em.op("exp", x.at(em, i)))
    y.realize()                                     # y is now a buffer; `y.at` loads from it
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import torch

from weft._torch import is_collective
from weft.codegen.ir.dtypes import DType, compute_type, from_torch
from weft.codegen.ir.loop_ir import KernelBuilder, Node, Scalar
from weft.errors import SourceLine
from weft.quoting import one_line
from weft.runtime.writes import WRITERS
from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import IntExpr, subs, symbols
from weft.shapes.algebra.functions import with_functions
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.views import Index, Layout, Shape, View
from weft.shapes.unbacked import Binding


@final
class Origin(NamedTuple):
    """The origin of a formula: an ATen operator and the user's line."""

    operator: str
    line: SourceLine | None

    def __str__(self) -> str:
        if self.line is None:
            return one_line(self.operator)
        return one_line(f"{self.operator}  {self.line.file.rsplit('/', 1)[-1]}:{self.line.line}")


def estimate(size: IntExpr) -> int:
    """A rough number for comparing costs: symbols, and functions that only Python computes, count
    as 64."""
    if isinstance(size, int):
        return size
    for guess in (64, 61, 2):  # the guess may make a divisor zero
        try:
            value = _guess(size, guess)
        except ZeroDivisionError:
            continue
        if isinstance(value, int):
            return value
    return 64


def _guess(size: IntExpr, guess: int) -> IntExpr:
    plain = with_functions(size, lambda function: guess)
    return subs(plain, dict.fromkeys(symbols(plain), guess))


@final
class Emitter(KernelBuilder):
    """A kernel builder that knows which buffers are computed at the same point of the same kernel.

    `forwards` maps (buffer, flat index) to the node that was just computed there, so that a
    consumer fused with its producer uses the node instead of memory. `evaluated` has the nodes of
    formulas at an index (under a mask): without it, `z = z * z + c`, repeated n times, would be
    evaluated 2**n times.
    """

    forwards: dict[tuple[str, IntExpr], Node]
    evaluated: dict[tuple[Any, ...], Node]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.forwards = {}
        self.evaluated = {}

    def read(self, buffer: Buffer, index: IntExpr) -> Node:
        """The element of `buffer` at a flat index: its producer's node, or a load."""
        forwarded = self.forwards.get((buffer.name, index))
        return self.load(buffer.name, buffer.scalar, index) if forwarded is None else forwarded

    def within(self, places: Iterable[tuple[IntExpr, IntExpr]]) -> Node | None:
        """Whether 0 <= position < size for each pair; None if that is known without a test."""
        tests: list[Node] = []
        for position, size in places:
            if lower_bound(position) < 0:
                tests.append(self.op("ge", self.index(position), self.const(0, "i64")))
            if upper_bound(position - size) >= 0:
                tests.append(self.op("lt", self.index(position), self.index(size)))
        return self.fold("and_", tests) if tests else None

    def fold(self, name: str, nodes: Iterable[Node]) -> Node:
        """The nodes joined by an operator, from the first to the last."""
        return functools.reduce(partial(self.op, name), nodes)

    def choose(
        self, condition: Node, chosen: Callable[[], Node], other: Callable[[], Node]
    ) -> Node:
        """`chosen()` where the condition holds, else `other()`; neither loads where it is not
        needed."""
        with self.masked(condition, 0):
            first = chosen()
        with self.masked(self.op("not_", condition), 0):
            second = other()
        return self.op("where", condition, first, second)


Formula: TypeAlias = Callable[[Emitter, Index], Node]
"""Returns the scalar node (of the value's compute type) at an index."""


@final
@dataclass(eq=False, slots=True)
class Buffer:
    """Memory for one tensor. `definition` is None for graph inputs."""

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    device: torch.device
    definition: Definition | None = None
    is_state: bool = False
    """An input that may be passed in a form that is kept between calls."""

    @property
    def scalar(self) -> DType:
        return from_torch(self.dtype)


def strided_index(index: Index, strides: Shape, start: IntExpr = 0) -> IntExpr:
    """The position of an element: start + sum(index * stride)."""
    for i, stride in zip(index, strides, strict=True):
        start = start + i * stride
    return start


@final
@dataclass(eq=False, slots=True)
class Strided:
    """Elements of `buffer` at offset + sum(index * stride)."""

    buffer: Buffer
    shape: Shape
    strides: Shape
    offset: IntExpr

    @property
    def layout(self) -> Layout:
        return Layout(self.shape, self.strides, self.offset)

    def at(self, em: Emitter, index: Index) -> Node:
        return em.read(self.buffer, strided_index(index, self.strides, self.offset))


@final
@dataclass(eq=False, slots=True)
class Lazy:
    """A formula; `cost` counts its operators, `reads` its loads (both upper bounds).

    `base` and `view` are set if the value is a view of another one: it is then realised by
    realising the base.
    """

    at: Formula
    cost: int = 0
    reads: int = 0
    base: Value | None = None
    view: View | None = None


@final
@dataclass(eq=False)
class Value:
    """A lowered tensor of `shape` and torch `dtype`.

    `layout` is the strides of its future buffer (None: row-major).
    """

    shape: Shape
    dtype: torch.dtype
    impl: Strided | Lazy
    device: torch.device
    owner: BufferFactory
    layout: Shape | None = None
    origins: tuple[Origin, ...] = ()

    @property
    def scalar(self) -> DType:
        """The compute type of its elements."""
        return compute_type(from_torch(self.dtype))

    def at(self, em: Emitter, index: Index) -> Node:
        """The scalar node at `index`."""
        impl = self.impl
        if isinstance(impl, Strided):
            return impl.at(em, index)
        key = (impl, *index, em.mask, em.other)
        node = em.evaluated.get(key)
        if node is None:
            node = em.evaluated[key] = impl.at(em, index)
        return node

    def at_or(self, em: Emitter, index: Index, inside: Node | None, otherwise: Scalar) -> Node:
        """The scalar node at `index`, or the number `otherwise` if it is not inside (None: it
        is)."""
        if inside is None:
            return self.at(em, index)
        with em.masked(inside, 0):
            node = self.at(em, index)
        return em.op("where", inside, node, em.number(otherwise, node.dtype))

    def realize(self) -> Strided:
        """The value in memory."""
        if isinstance(self.impl, Strided):
            return self.impl
        view = _realize_view(self.impl)
        self.impl = view if view is not None else self.owner.materialize(self)
        return self.impl

    def buffer(self) -> Buffer | None:
        """Its buffer, or None."""
        return self.impl.buffer if isinstance(self.impl, Strided) else None

    def view(self, shape: Shape, view: View, layout: Shape | None = None) -> Value:
        """A view of this value; free if it is strided and the view affine."""
        impl = self.impl
        if isinstance(impl, Strided):
            moved = view.strided(impl.layout)
            if moved is not None:
                strided: Strided | Lazy = Strided(impl.buffer, *moved)
                return Value(shape, self.dtype, strided, self.device, self.owner, layout)
        cost, reads = (impl.cost, impl.reads) if isinstance(impl, Lazy) else (0, 1)
        lazy = Lazy(lambda em, i: self.at(em, view.index(i)), cost, reads, self, view)
        return Value(shape, self.dtype, lazy, self.device, self.owner, layout, self.origins)


def _realize_view(lazy: Lazy) -> Strided | None:
    """A lazy view as strides over its base's memory, or None if it is not affine."""
    if lazy.base is None or lazy.view is None:
        return None
    if isinstance(lazy.base.impl, Strided):
        base: Strided = lazy.base.impl
    else:
        shape = lazy.base.shape
        if lazy.view.strided(Layout(shape, lazy.base.layout or row_major(shape))) is None:
            return None  # realising the base would not help
        base = lazy.base.realize()
    moved = lazy.view.strided(base.layout)
    return None if moved is None else Strided(base.buffer, *moved)


class BufferFactory(Protocol):
    """Turns values into memory (the graph being lowered)."""

    def materialize(self, value: Value) -> Strided:
        """A new buffer defined by the value's formula."""


def estimated_bytes(value: Buffer | Value) -> int:
    """The size in bytes, estimated if it is symbolic."""
    return estimate(math.prod(value.shape)) * value.dtype.itemsize


@final
@dataclass(eq=False, slots=True)
class Computed:
    """A definition by a formula over a domain.

    `dims` is the domain, in the order of the formula's index; `reduced[k]` says that dimension k
    is collapsed (by `reduction`, a kind of the IR, of the formula's value). The buffer's element
    for a point is at `store(point)`. `finish` maps the reduced node to the stored one (the
    division of a mean). `alone`: it must not share a kernel. `together`: the dimension along which
    neighbours read much the same, so that computing a few at a time saves loads.

    With `updates` the buffer takes over that one's memory, which has no other readers. Its content
    stays except at the places of `store`, which depend on data (several points may share one).
    Values are combined with the content by `mode`, one of `scalar_ops.COMBINING`, or replace it.
    """

    buffer: Buffer
    dims: Shape
    formula: Formula
    store: Callable[[Emitter, Index], IntExpr]
    reduction: str | None = None
    reduced: tuple[bool, ...] = ()
    finish: Callable[[Emitter, Node], Node] | None = None
    mode: str = "assign"
    origins: tuple[Origin, ...] = ()
    updates: Buffer | None = None
    alone: bool = False
    together: int | None = None


@final
@dataclass(eq=False, slots=True)
class ExternCall:
    """A definition by a call of an ATen operator (or another Python callable).

    `arguments` and `keywords` hold `Value`s (realised, strided), `IntExpr`s and constants, nested
    in lists. `outputs` has one entry per tensor result and None for other results; a single result
    has one. `epilogue` is an activation that the call applies to its result
    (`lowering/epilogues.py`). `binds` are the data-dependent symbols that the result binds.
    `must_run`: even if nothing reads the result, because the call may raise.
    """

    op: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: list[Buffer | None]
    is_tuple: bool
    origins: tuple[Origin, ...] = ()
    reads: list[Buffer] = field(default_factory=list)
    epilogue: tuple[str, str] | None = None
    binds: tuple[Binding, ...] = ()
    must_run: bool = False

    def may_alias(self) -> bool:
        """Whether a result may be a view of an argument, or memory that is written or read until
        `wait_tensor`."""
        if is_collective(self.op):
            return True
        returns = getattr(getattr(self.op, "_schema", None), "returns", ())
        return any(r.alias_info is not None for r in returns)

    def overwritten(self) -> Buffer | None:
        """The first operand, if the call could write into it instead of a copy."""
        result = self.outputs[0] if len(self.outputs) == 1 else None
        if result is None or self.op not in WRITERS:
            return None
        base: Strided = self.arguments[0].realize()
        buffer = base.buffer
        whole = (base.shape, base.strides, base.offset) == (buffer.shape, buffer.strides, 0)
        layout = (result.shape, result.strides, result.dtype)
        alike = layout == (base.shape, base.strides, buffer.dtype)
        once = sum(read is buffer for read in self.reads) == 1
        return buffer if whole and alike and once else None


Definition: TypeAlias = Computed | ExternCall
