"""How ATen calls are written in the call sequence.

Place in the pipeline: used by `emit.py`. Matrix products are calls of C functions
(`runtime/tensor_calls.py`), others of torch's bindings if possible (`bindings.py`). Results whose
strides ATen may choose are converted to the promised ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import torch

from weft.codegen.calls.bindings import binding_of
from weft.codegen.calls.call_sequence import (
    CallSequence,
    is_whole,
    layout_of,
    plain_strides,
    shape_text,
)
from weft.codegen.calls.convolution_calls import spell_convolution
from weft.codegen.calls.gemm_calls import spell_gemm
from weft.codegen.values import Buffer, ExternCall, Value
from weft.runtime import tensor_calls
from weft.runtime.strided_views import CALLS, with_strides
from weft.runtime.writes import WRITERS
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.floats import SYMBOLIC_FLOATS, text
from weft.shapes.algebra.printing import python_text
from weft.shapes.guard import python_text as condition_text
from weft.shapes.symnode import condition_of

aten = torch.ops.aten

FAST_BINDINGS: Final[dict[Any, Any]] = {
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.bernoulli.p: torch.bernoulli,
}

NEW_MEMORY: Final = frozenset({
    aten.empty_like.default, aten.empty.memory_format, aten.empty_strided.default,
    aten.new_empty.default, aten.new_empty_strided.default,
})
"""Operators whose result is memory of the promised layout, as a buffer of a kernel is."""

EXACT_STRIDES: Final = frozenset({*FAST_BINDINGS, *NEW_MEMORY}) - {aten.bernoulli.p}
"""Operators that always return row-major results."""


def spell_call(sequence: CallSequence, call: ExternCall) -> None:
    """Append the lines of one ATen call."""
    # a result that nobody reads has a name until its sizes are read
    targets = [b.name if b is not None else f"unread{i}" for i, b in enumerate(call.outputs)]
    left = f"{', '.join(targets)}{',' if call.is_tuple and len(targets) == 1 else ''} = "
    text = (
        spell_gemm(sequence, call) or _spell_product(sequence, call)
        or spell_convolution(sequence, call) or _spell_new_memory(sequence, call)
        or _spell_aten(sequence, call)
    )
    numbers = [b.name for b in call.binds if b.dim is None]
    left = f"{', '.join(numbers)} = " if numbers else left if targets else ""
    sequence.lines.append(left + text + _origin(call))
    if call.binds:
        _bind(sequence, call, targets)
    unread = [name for name, b in zip(targets, call.outputs, strict=True) if b is None]
    if unread and not numbers:
        sequence.lines.append(f"del {', '.join(unread)}")  # free it
    if call.op not in EXACT_STRIDES:
        for buffer in call.outputs:
            if buffer is not None:
                _resolve_conjugate(sequence, call, buffer)
                _check_strides(sequence, buffer, optional=call.is_tuple)


def spell_write(sequence: CallSequence, call: ExternCall, target: str) -> None:
    """Append the call as one that writes into `target` instead of a copy of its first operand."""
    sequence.lines.append(_spell(sequence, call, WRITERS[call.op], [target]) + _origin(call))


def _origin(call: ExternCall) -> str:
    return f"  # {'; '.join(map(str, call.origins))}" if call.origins else ""


def _bind(sequence: CallSequence, call: ExternCall, targets: list[str]) -> None:
    """Name the data-dependent sizes of the results, and check the assumptions about them."""
    for binding in call.binds:
        if binding.dim is not None:
            result = targets[binding.path[0] if binding.path else 0]
            sequence.lines.append(f"{binding.name} = {result}.size({binding.dim})")
    sequence.bound.update((b.name, len(sequence.lines)) for b in call.binds)
    sequence.lines.extend(sequence.asserts.bound(b.name for b in call.binds))


PRODUCTS: Final = {
    aten.mm.default: "mm",
    aten.addmm.default: "addmm",
    aten.bmm.default: "bmm",
}


def _spell_product(sequence: CallSequence, call: ExternCall) -> str | None:
    """A matrix product as one C call, which also makes the views."""
    kind, result = PRODUCTS.get(call.op), call.outputs[0] if call.outputs else None
    if kind is None or result is None or call.keywords or call.epilogue:
        return None
    if not all(isinstance(a, Value) for a in call.arguments):
        return None
    values = [a.realize() for a in call.arguments]
    views = [
        (None, []) if is_whole(v)
        else layout_of(v.shape, plain_strides(v.shape, v.strides), v.offset)
        for v in values
    ]
    layout, unknown = layout_of(result.shape, result.strides, 0)
    function = tensor_calls.product(
        kind, tuple(view for view, _ in views), layout, result.dtype, result.device
    )
    sizes = " @ ".join(shape_text(v.shape) for v in values[-2:])
    numbers = [*chain.from_iterable(numbers for _, numbers in views), *unknown]
    arguments = ", ".join([*(v.buffer.name for v in values), *numbers])
    return f"{sequence.name(kind, function)}({arguments})  # {sizes}"


def _spell_new_memory(sequence: CallSequence, call: ExternCall) -> str | None:
    """Memory without values, as a kernel's."""
    result = call.outputs[0] if call.outputs else None
    if call.op not in NEW_MEMORY or result is None or call.keywords.get("pin_memory"):
        return None
    return sequence.empty(result)


def _spell_aten(sequence: CallSequence, call: ExternCall) -> str:
    function = FAST_BINDINGS.get(call.op) or CALLS.get(call.op) or binding_of(call.op)
    return _spell(sequence, call, function or call.op)


def _spell(
    sequence: CallSequence, call: ExternCall, function: object, first: Sequence[str] = ()
) -> str:
    """A call with the arguments of `call`, the first of them replaced by `first`."""
    name = sequence.name(_short_name(function), function)
    arguments = [*first, *(spell(sequence, a) for a in call.arguments[len(first) :])]
    arguments += [f"{k}={spell(sequence, v)}" for k, v in call.keywords.items()]
    return f"{name}({', '.join(arguments)})"


def _short_name(op: object) -> str:
    return str(getattr(op, "__name__", op)).replace(".", "_").removesuffix("_default")


def _resolve_conjugate(sequence: CallSequence, call: ExternCall, buffer: Buffer) -> None:
    """Resolve a conjugate flag that the fakes do not have (a singular vector's on a GPU): kernels
    read memory as it is."""
    if buffer.dtype.is_complex and not call.may_alias():
        unless_none = f" if {buffer.name} is not None else None" if call.is_tuple else ""
        sequence.lines.append(f"{buffer.name} = {buffer.name}.resolve_conj(){unless_none}")


def _check_strides(sequence: CallSequence, buffer: Buffer, *, optional: bool) -> None:
    """Restore the promised strides, by which kernels index memory, if ATen chose others.

    optional: one of several results, which ATen may return as None though its fake is a tensor.
    """
    sequence.scope["with_strides"] = with_strides
    want = shape_text(buffer.strides)
    unless_none = f"{buffer.name} is not None and " if optional else ""
    restored = f"{buffer.name} = with_strides({buffer.name}, {want})"
    sequence.lines.append(f"if {unless_none}{buffer.name}.stride() != {want}: {restored}")


def spell(sequence: CallSequence, item: object) -> str:
    """An argument as Python source."""
    if isinstance(item, Value):
        return sequence.tensor(item.realize())
    if isinstance(item, Expr):
        return python_text(item)
    if isinstance(item, SYMBOLIC_FLOATS):
        sequence.scope["math"] = math
        return text(item)
    if isinstance(item, torch.SymBool):
        sequence.scope["math"] = math
        return f"({condition_text(condition_of(item))})"
    if isinstance(item, (list, tuple)):
        inside = ", ".join(spell(sequence, i) for i in item)
        if isinstance(item, tuple):
            return f"({inside}{',' if len(item) == 1 else ''})"
        return f"[{inside}]"
    if item is None or isinstance(item, (bool, int, str)):
        return repr(item)
    if isinstance(item, float) and math.isfinite(item):
        return repr(item)
    return sequence.name("constant", item)
