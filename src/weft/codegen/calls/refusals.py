"""Steps of a call sequence that may raise because of data, and checks that spare them.

Place in the pipeline: asked by `memory.py`. If a step raises, the program runs eagerly from its
start, so no input may have been overwritten by then. Indices are therefore tested as soon as they
are computed: behind the tests, a cache can be written in place, layer by layer::

    in0, in1, in2 = args
    check_places(in1, 128, False)      # raises CheckFailed, and eager raises its own error
    written_part(in0, …, in1, …)       # in place: no later step can raise
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch

from weft._torch import OpOverload
from weft.codegen.ir.loop_ir import Indirect, Kernel, Load, Op
from weft.codegen.lowering import GraphLowering
from weft.codegen.scheduling.dependencies import Step
from weft.codegen.scheduling.groups import Group, is_on_gpu
from weft.codegen.scheduling.schedule import Schedule
from weft.codegen.values import Buffer, ExternCall, Value
from weft.runtime.writes import VIEWS, written_part
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.fakes.data_errors import may_refuse

aten = torch.ops.aten

_ALONG_A_DIMENSION: Final = (
    "index_copy", "index_add", "index_fill", "index_reduce", "index_select", "gather", "scatter",
    "scatter_add", "scatter_reduce",
)
"""Operators `(x, dim, places, …)` whose places lie in that dimension."""

_BY_ALL_INDICES: Final = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
"""Operators `(x, indices, …)`; a negative index counts from the end."""


@final
@dataclass(frozen=True, slots=True)
class PlaceCheck:
    """The test that all integers in a buffer lie below a size; negative ones may count from the
    end."""

    buffer: str
    size: IntExpr
    wraps: bool


@final
@dataclass
class Refusals:
    """`last`: the last step that may raise (-1: none) if all checks pass. `checks`: the tests to
    run behind each step (-1: before the first one)."""

    last: int = -1
    checks: dict[int, list[PlaceCheck]] = field(default_factory=lambda: defaultdict(list))


def find_refusals(
    schedule: Schedule, lowered: GraphLowering, kernels: Mapping[int, Kernel]
) -> Refusals:
    """The steps that may raise; nothing is tested if no input could be overwritten."""
    refusals = Refusals()
    if not lowered.written:
        return refusals
    known = {item.name: -1 for item in lowered.inputs if isinstance(item, Buffer)}
    for position, step in enumerate(schedule.steps):
        for check in _checks_of(step, kernels):
            if check is None or check.buffer not in known:
                refusals.last = position
                continue
            at = known[check.buffer]
            refusals.last = max(refusals.last, at)
            if check not in refusals.checks[at]:
                refusals.checks[at].append(check)
        if isinstance(step, ExternCall):
            known.update((b.name, position) for b in step.outputs if b is not None)
        else:
            known.update((m.access.definition.buffer.name, position) for m in step.members
                         if m.access.definition.buffer.name in schedule.needed)
    return refusals


def _checks_of(step: Step, kernels: Mapping[int, Kernel]) -> Iterator[PlaceCheck | None]:
    """The tests without which the step may raise; None: it may in any case."""
    if isinstance(step, ExternCall):
        yield from _checks_of_call(step)
        return
    assert isinstance(step, Group)
    if is_on_gpu(step):
        return
    for node in kernels[step.id].nodes:
        if isinstance(node, Op) and node.name == "divisor":  # may be 0
            yield None
        if isinstance(node, Indirect) and node.check:
            read = node.value
            plain = isinstance(read, Load) and read.mask is None and node.mask is None
            yield PlaceCheck(read.buffer, node.size, node.wrap) if (
                plain and isinstance(read, Load)) else None


def _checks_of_call(call: ExternCall) -> Iterator[PlaceCheck | None]:
    op, arguments = call.op, call.arguments
    shape = arguments[0].shape if arguments and isinstance(arguments[0], Value) else None
    if op is written_part:
        _, path, name, *rest = arguments
        if name == "copy.":
            return
        shape = _shape_of_part(shape, path)
        op, _, overload = name.partition(".")
        op = getattr(getattr(aten, op), overload or "default")
        arguments = (arguments[0], *rest)
    if not isinstance(op, OpOverload) or not may_refuse(op, arguments, call.keywords, Value):
        return
    yield from _checks_of_places(op, arguments, shape)


def _shape_of_part(shape: Any, path: Any) -> Any:
    """The sizes of the part that views lead to; None if they are not known."""
    numbers = [*shape, *(n for _, *where in path for n in where)]
    if not all(isinstance(n, (int, list, tuple)) for n in numbers):
        return None
    part = torch.empty(shape, device="meta")
    for view, *where in path:
        part = VIEWS[view](part, *where)
    return tuple(part.shape)


def _checks_of_places(op: OpOverload, arguments: Any, shape: Any) -> Iterator[PlaceCheck | None]:
    name = op._schema.name.removeprefix("aten::")
    if shape is not None and name in _ALONG_A_DIMENSION and shape:
        yield _check(arguments[2], shape[arguments[1]], wraps=False)
    elif shape is not None and name in _BY_ALL_INDICES:
        for dim, places in enumerate(arguments[1]):
            if places is not None:
                yield _check(places, shape[dim], wraps=True)
    elif name == "embedding":
        yield _check(arguments[1], arguments[0].shape[0], wraps=False)
    else:
        yield None


def _check(places: object, size: IntExpr, *, wraps: bool) -> PlaceCheck | None:
    if not isinstance(places, Value) or places.dtype not in (torch.int64, torch.int32):
        return None
    return PlaceCheck(places.realize().buffer.name, size, wraps)
