"""Operators that write to arguments which share memory: recorded as one write to that memory.

Place in the pipeline: `record.py` asks `share_written_memory` about each operator that writes. The
usual functional form takes the arguments' values and returns new ones, one after the other; of
arguments that overlap, the last would win. Here the operator gets the memory, and makes the views
of it as eager does (`functional_form.form_on_memory`)::

    bump2(b[0, :2], b[0, 1:])   # b := bump2_on_memory([b], …), which makes both views of a copy
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.aot.functional_form import form_on_memory, is_of_torch
from weft.aot.operators import OpFacts
from weft.aot.tracing.functionalize import Base
from weft.aot.views import Unsupported, contiguous, permute
from weft.shapes.algebra.views import Permute
from weft.shapes.fakes.schemas import schema_arguments
from weft.shapes.symnode import certainly_equal
from weft.shapes.tensor_layouts import is_dense, memory_order, span

if TYPE_CHECKING:
    from weft.aot.tracing.record import Recorder

aten = torch.ops.aten


@final
@dataclass(frozen=True, slots=True)
class _Leaf:
    """A tensor among the arguments."""

    live: torch.Tensor
    base: Base
    name: str
    position: int
    """Its place in a list, or 0."""
    written: bool


# -- which calls -----------------------------------------------------------------------------------


def share_written_memory(
    rec: Recorder, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
) -> bool:
    """Whether what the operator writes may lie on other arguments of it.

    Raises Unsupported where torch's own operators refuse that, or say nothing about the order.
    """
    leaves = list(_leaves(rec, known, schema_arguments(known.op, args, kwargs)))
    written = [leaf for leaf in leaves if leaf.written]
    shared = [
        (leaf, other) for leaf in written for other in leaves
        if other is not leaf and other.base is leaf.base and not _harmless(known.op, leaf, other)
    ]
    if shared and is_of_torch(known.op) and not _writes_lists(known):
        raise Unsupported(f"{known.op} writes to memory that it reads")
    return bool(shared)


def _leaves(rec: Recorder, known: OpFacts, values: Mapping[str, object]) -> Iterator[_Leaf]:
    names = {name for _, name in known.mutated}
    for name, value in values.items():
        items = value if isinstance(value, (list, tuple)) else (value,)
        for position, item in enumerate(items):
            if isinstance(item, torch.Tensor):
                live = rec.live(item)
                base = rec.tensors.alias(live).base
                yield _Leaf(live, base, name, position, name in names)


def _harmless(op: OpOverload, leaf: _Leaf, other: _Leaf) -> bool:
    """Whether a write to one cannot be seen in the other, or each element is read before it is
    written."""
    if is_of_torch(op) and not other.written and leaf.position == other.position and (
            torch.Tag.pointwise in op.tags or op.name().startswith(_ITEM_BY_ITEM)):
        return _is_same(leaf.live, other.live) or are_apart(leaf.live, other.live)
    return are_apart(leaf.live, other.live)


_ITEM_BY_ITEM: Final = ("aten::copy_", "aten::_foreach_")
"""Operators that read an element before they write it, besides those tagged as pointwise."""


def _writes_lists(known: OpFacts) -> bool:
    types = {a.name: str(a.type) for a in known.op._schema.arguments}
    return any(types[name] == "List[Tensor]" for _, name in known.mutated)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype == b.dtype and certainly_equal(a.storage_offset(), b.storage_offset())
            and certainly_equal(a.size(), b.size()) and certainly_equal(a.stride(), b.stride()))


def are_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one memory certainly have no element in common."""
    if any(certainly_equal(n, 0) for t in (a, b) for n in t.size()):
        return True
    if a.dtype != b.dtype:
        return False
    first, last = sorted((a, b), key=lambda t: t.storage_offset())
    if first.storage_offset() + span(first.size(), first.stride()) <= last.storage_offset():
        return True
    a_extent, b_extent = (_extent(t, first.storage_offset()) for t in (a, b))
    return a_extent is not None and b_extent is not None and _differ_in_a_digit(a_extent, b_extent)


@final
@dataclass(frozen=True, slots=True)
class _Extent:
    """Where a view of plain sizes lies: its first element, and steps for each stride."""

    start: int
    counts: dict[int, int]


def _extent(view: torch.Tensor, start: Any) -> _Extent | None:
    counts: dict[int, int] = {}
    for size, stride in zip(view.size(), view.stride(), strict=True):
        if type(size) is not int or type(stride) is not int:
            return None
        if size > 1 and stride:
            counts[stride] = counts.get(stride, 0) + size - 1
    offset = view.storage_offset() - start
    return _Extent(offset, counts) if type(offset) is int else None


def _differ_in_a_digit(a: _Extent, b: _Extent) -> bool:
    """Whether positions in the two, written with the strides as units, differ in one digit."""
    units = sorted({1, *a.counts, *b.counts}, reverse=True)
    a_digits, b_digits = (_digits(extent, units) for extent in (a, b))
    return any(high_a < low_b or high_b < low_a  # none where digits may carry
               for (low_a, high_a), (low_b, high_b) in zip(a_digits, b_digits, strict=False))


def _digits(extent: _Extent, units: list[int]) -> list[tuple[int, int]]:
    """The least and the greatest digit of each unit; nothing if digits may carry."""
    digits, rest = [], extent.start
    for unit in units:
        low, rest = divmod(rest, unit)
        digits.append((low, low + extent.counts.get(unit, 0)))
    reach = 0
    for unit, (_, high) in zip(reversed(units), reversed(digits), strict=True):
        if reach >= unit:
            return []
        reach += high * unit
    return digits


# -- how they are recorded -------------------------------------------------------------------------


def write_memory(
    rec: Recorder, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[Node], list[object]]:
    """Record the operator on the memory of its arguments; returns the nodes of its fresh results,
    and the arguments that it wrote to."""
    values = schema_arguments(known.op, args, kwargs)
    leaves = list(_leaves(rec, known, values))
    bases = list({id(leaf.base): leaf.base for leaf in leaves if leaf.written}.values())
    numbers = {id(base): i for i, base in enumerate(bases)}
    taken = {leaf.name for leaf in leaves if id(leaf.base) in numbers}
    for leaf in leaves:
        if leaf.name in taken and id(leaf.base) not in numbers:  # beside others in a list
            numbers[id(leaf.base)] = len(bases)
            bases.append(leaf.base)
    places = {name: _places(rec, values[name], numbers) for name in taken}
    form = form_on_memory(known.op, places, len(bases))
    layouts = [n for leaf in leaves if leaf.name in taken for n in _layout(leaf)]
    rest = {name: rec.nodes(value) for name, value in values.items() if name not in taken}
    memory = [_row_major(rec, base) for base in bases]
    node, _ = rec.tensors.append(form, (memory, layouts), rest)
    results = rec.items(node) if isinstance(node.meta["val"], (tuple, list)) else [node]
    fresh = len(results) - len(bases)
    for base, new in zip(bases, results[fresh:], strict=True):
        rec.tensors.replace(base, _as_it_was(rec, base, new))
    return results[:fresh], [values.get(name) for _, name in known.mutated]


def _places(rec: Recorder, value: Any, numbers: dict[int, int]) -> object:
    """An argument with (number of the memory, rank) for each tensor."""
    if isinstance(value, (list, tuple)):
        return tuple(_places(rec, v, numbers) for v in value)
    if value is None:
        return None
    live = rec.live(value)
    return numbers[id(rec.tensors.alias(live).base)], live.dim()


def _layout(leaf: _Leaf) -> list[Any]:
    """Sizes, strides and the first element, counted from that of the memory."""
    live, base = leaf.live, leaf.base
    if live.dtype != base.live.dtype or live.is_conj() or live.is_neg():
        raise Unsupported("a write to a tensor seen as another type, beside another argument")
    return [*live.size(), *live.stride(), live.storage_offset() - base.start]


def _order(base: Base) -> Permute:
    if not is_dense(base.live):
        raise Unsupported("a write to a tensor with gaps, beside another argument")
    return memory_order(base.live.stride())


def _row_major(rec: Recorder, base: Base) -> Node:
    """The content of a memory in its order."""
    order = _order(base)
    node = base.node
    if not order.is_identity:
        node = permute(rec.emit, node, order)
    return contiguous(rec.emit, node)


def _as_it_was(rec: Recorder, base: Base, new: Node) -> Node:
    """New content of a memory with the dimensions of its first tensor."""
    order = _order(base)
    return new if order.is_identity else permute(rec.emit, new, order.inverse())
