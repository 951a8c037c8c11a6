"""Calls of ATen operators that have no formula: matmul, convolution, attention, sorting, …

Place in the pipeline: part of `lowering/`. Tensor arguments are realised; results become buffers
with the shapes and strides that the node's metadata promises (the call sequence checks strides if
ATen may choose others).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft._torch import is_collective
from weft.codegen.lowering.registry import LoweringContext, strided_of
from weft.codegen.values import Buffer, ExternCall, Value
from weft.shapes.unbacked import Binding


def call_aten(
    cx: LoweringContext, args: tuple[object, ...], keywords: Mapping[str, object],
    wanted: list[int | None],
    is_tuple: bool, binds: tuple[Binding, ...] = (), *, must_run: bool = False,
) -> list[Value | None]:
    """Record the call; returns one `Value` for each wanted result (`wanted`: its number among the
    tensors, or None)."""
    reads: list[Buffer] = []
    call = ExternCall(
        cx.target,
        map_values(args, lambda v: _realise(v, reads)),
        map_values(keywords, lambda v: _realise(v, reads)),
        [], is_tuple, cx.origins, reads, binds=binds, must_run=must_run,
    )
    if is_collective(cx.target):
        reads.extend(_read_meanwhile(cx, reads))
    results: list[Value | None] = []
    for position in wanted:
        if position is None:
            call.outputs.append(None)
            results.append(None)
            continue
        buffer = cx.graph.new_extern_buffer(cx, position, call)
        call.outputs.append(buffer)
        results.append(
            Value(buffer.shape, buffer.dtype, strided_of(buffer), buffer.device, cx.graph)
        )
    cx.graph.record(call)
    return results


def _read_meanwhile(cx: LoweringContext, reads: list[Buffer]) -> list[Buffer]:
    """What collectives that are waited for may still read."""
    return [buffer for call in cx.graph.definitions
            if isinstance(call, ExternCall) and is_collective(call.op)
            and any(output in reads for output in call.outputs)
            for buffer in call.reads]


def _realise(value: Value, reads: list[Buffer]) -> Value:
    reads.append(value.realize().buffer)
    return value


def map_values(item: object, function: Callable[[Value], object]) -> Any:
    """Apply `function` to the values inside nested lists, tuples and dicts."""
    if isinstance(item, Value):
        return function(item)
    if isinstance(item, (list, tuple)):
        return type(item)(map_values(i, function) for i in item)
    if isinstance(item, dict):
        return {k: map_values(v, function) for k, v in item.items()}
    return item
