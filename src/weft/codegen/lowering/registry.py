"""The table of lowerings, and the context that a lowering function works with.

Place in the pipeline: part of `lowering/`. A lowering is a function from a context and the node's
arguments (tensors as `Value`s, symbolic sizes as `IntExpr`s, the rest as in the graph) to the
node's `Value`, or a list of them for several results. It may raise `NotLowered`: ATen is then
called instead::

    @lowering(aten.relu.default)
    def relu(cx, x):
        return cx.pointwise(lambda v: maximum(v, 0), x)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, final

import torch

from weft.codegen.ir.dtypes import compute_type, from_torch
from weft.codegen.ir.loop_ir import Node, Scalar
from weft.codegen.lowering.terms import Term
from weft.codegen.values import Buffer, Emitter, Lazy, Origin, Strided, Value
from weft.shapes.algebra.bounds import is_nonnegative
from weft.shapes.algebra.expr import Expr, IntExpr, maximum, minimum
from weft.shapes.algebra.facts import Facts
from weft.shapes.algebra.floats import SYMBOLIC_FLOATS
from weft.shapes.algebra.layout import channels_last
from weft.shapes.algebra.relation import ge
from weft.shapes.algebra.views import Index, Shape

Lowering: TypeAlias = Callable[..., Any]
"""Returns a `Value`, or a list of them for operators with several results."""
Body: TypeAlias = Callable[..., Term]
"""A scalar formula of one term per operand."""

LOWERINGS: Final[dict[Any, Lowering]] = {}

NUMBER_OPERATORS: Final[set[Any]] = set()
"""Operators whose formulas take symbolic floats as operands."""


class NotLowered(Exception):
    """This call has no formula (its dtype, arguments or layout): ATen is called."""


F = TypeVar("F", bound=Lowering)


def lowering(*operators: object) -> Callable[[F], F]:
    """Register a lowering for operators."""

    def register(function: F) -> F:
        for operator in operators:
            LOWERINGS[operator] = function
        return function

    return register


def in_channels_last(value: Value) -> bool:
    """Whether an NCHW value has (or will have) NHWC memory."""
    return is_channels_last(value.shape, _layout(value))


def _layout(value: Value) -> Shape | None:
    return value.impl.strides if isinstance(value.impl, Strided) else value.layout


def is_channels_last(shape: Shape, strides: Shape | None) -> bool:
    """Whether these are the strides of an NCHW tensor with NHWC memory."""
    if strides is None or len(shape) != 4:
        return False
    pairs = zip(shape, strides, channels_last(shape), strict=True)
    return all(n == 1 or have == wanted for n, have, wanted in pairs)


def _layout_of_images(operands: Sequence[object], shape: Shape) -> Shape | None:
    """Channels-last strides if an operand of the result's shape has that layout, else None."""
    for value in operands:
        if isinstance(value, Value) and value.shape == shape and in_channels_last(value):
            return _layout(value)
    return None


@final
@dataclass(slots=True)
class LoweringContext:
    """The node being lowered: its target, and the metadata of its results.

    `shapes`, `dtypes`, `layouts` (strides) have one entry per tensor result; `shape`, `dtype` are
    the first's.
    """

    graph: Any
    target: Any
    shapes: list[Shape]
    dtypes: list[torch.dtype]
    layouts: list[Shape | None]
    device: torch.device
    origins: tuple[Origin, ...]
    is_result: bool = False
    """Whether the graph returns the result and nothing else reads it."""

    def is_lone(self, *operands: Value) -> bool:
        """Whether there is nothing to fuse with on a CPU: operands in memory, a result for the
        caller."""
        placed = all(isinstance(v.impl, Strided) for v in operands)
        return self.is_result and placed and self.device.type == "cpu"

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[0]

    def lazy(
        self, shape: Shape, dtype: torch.dtype, formula: Any, cost: int = 0, reads: int = 0,
        layout: Shape | None = None,
    ) -> Value:
        """A value defined by a formula."""
        impl = Lazy(formula, cost, reads)
        return Value(shape, dtype, impl, self.device, self.graph, layout, self.origins)

    def pointwise(
        self, body: Body, *operands: Value | Scalar | IntExpr, dtype: torch.dtype | None = None,
        compute: torch.dtype | None = None, shape: Shape | None = None, cost: int = 1,
    ) -> Value:
        """`body` over operands broadcast to `shape` (default: the node's).

        Operands are converted to `compute` first (default: the result's `dtype`), the result to
        `dtype`.
        """
        shape = self.shape if shape is None else shape
        dtype = self.dtype if dtype is None else dtype
        scalar = compute_type(from_torch(compute or dtype))
        result = compute_type(from_torch(dtype))
        operands = tuple([number_value(self, o) for o in operands])
        reads = [_reader(operand, scalar, shape) for operand in operands]

        def formula(em: Emitter, index: Index) -> Node:
            return em.cast(body(*[Term(em, read(em, index)) for read in reads]).node, result)

        total, loads = cost_of(*operands)
        layout = self.layouts[0] if shape == self.shape else None
        if self.graph.channels_last and len(shape) == 4:
            layout = _layout_of_images(operands, shape) or layout
        value = self.lazy(shape, dtype, formula, total + cost, loads, layout)
        value.origins = _joint_origins(operands, self.origins)
        return value

    def copy(self, x: Value) -> Value:
        """The same elements as a new tensor (never an alias), with the node's layout."""
        return self.lazy(x.shape, x.dtype, x.at, *cost_of(x), self.layouts[0])

    def share(self, x: Value) -> Value:
        """Realise a value that a composite lowering uses several times, unless it is cheap."""
        if isinstance(x.impl, Lazy) and x.impl.cost + x.impl.reads > 3:
            x.realize()
        return x

    def clamp_start(self, start: IntExpr | None, size: IntExpr) -> IntExpr:
        """The first element of a slice, by Python's rules."""
        if start is None:
            return 0
        if not self._is_nonnegative(start):
            start = maximum(start + size, 0)
        if isinstance(start, int) and isinstance(size, int):
            return min(start, size)
        return 0 if start == 0 else minimum(start, size)

    def wrap_index(self, position: IntExpr, size: IntExpr) -> IntExpr:
        """A non-negative position."""
        return position if self._is_nonnegative(position) else position + size

    def _is_nonnegative(self, position: IntExpr) -> bool:
        """Whether an index counts from the front."""
        if isinstance(position, int) or is_nonnegative(position):
            return not isinstance(position, int) or position >= 0
        facts: Facts | None = self.graph.facts
        known = None if facts is None else facts.decide(ge(position, 0))
        if known is None:
            raise NotLowered("position of unknown sign")
        return known


def number_value(cx: LoweringContext, operand: object) -> Any:
    """A symbolic float as a double in memory, made once per graph; other operands as they are."""
    if not isinstance(operand, SYMBOLIC_FLOATS):
        return operand
    numbers = cx.graph.numbers
    if operand not in numbers:
        numbers[operand] = cx.graph.scalar(cx, operand)
    return numbers[operand]


def _joint_origins(operands: Sequence[object], own: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """The origins of a formula: its operands' formulas, then itself; the latest eight."""
    origins: dict[Origin, None] = {}
    for operand in operands:
        if isinstance(operand, Value) and isinstance(operand.impl, Lazy):
            origins.update(dict.fromkeys(operand.origins))
    origins.update(dict.fromkeys(own))
    return tuple(origins)[-8:]


def cost_of(*operands: object) -> tuple[int, int]:
    """The operators and the loads of the values among the operands."""
    cost = reads = 0
    for operand in operands:
        if isinstance(operand, Value):
            impl = operand.impl
            if isinstance(impl, Strided):
                reads += 1
            else:
                cost, reads = cost + impl.cost, reads + impl.reads
    return cost, reads


def _reader(operand: object, scalar: str, shape: Shape) -> Callable[[Emitter, Index], Node]:
    """A function that returns an operand's node, converted to the compute type `scalar`."""
    if isinstance(operand, Value):
        return _value_reader(operand, scalar, len(shape))
    if isinstance(operand, (int, float, bool, Expr)):
        return lambda em, index: em.number(operand, scalar)
    raise NotLowered(f"operand {operand!r}")


def _value_reader(value: Value, scalar: str, rank: int) -> Callable[[Emitter, Index], Node]:
    skip = rank - len(value.shape)
    ones = tuple(n == 1 for n in value.shape)
    if not any(ones):
        return lambda em, index: em.cast(value.at(em, index[skip:]), scalar)

    def read(em: Emitter, index: Index) -> Node:
        own = [0 if is_one else i for is_one, i in zip(ones, index[skip:], strict=True)]
        return em.cast(value.at(em, own), scalar)

    return read


def strided_of(buffer: Buffer) -> Strided:
    """All of a buffer."""
    return Strided(buffer, buffer.shape, buffer.strides, 0)
