"""Rules for `x[key]` and `x[key] = value` of tensors: keys with symbolic numbers.

Place in the pipeline: see `weft.capture.library`. PyTorch's indexing takes plain ints and symbolic
slices. A symbolic int becomes a `select`; a tensor that bounds a slice is read first::

    x[0, n]         # y = x[0, :]; torch.select(y, 0, n)
    x[[0, n]]       # x[torch.tensor([0, n])]
    x[:t]           # n = t.item(); x[:n]
    x[t]            # the same if t is one integer: a view, as eager's
    x[t]            # within vmap, t an integer for each example: aten.index(x, [t])
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from weft._torch import is_functorch_wrapped_tensor
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, ConstantValue, constant, is_none
from weft.capture.library.containers.sequences import ListValue, SliceValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.tensors.tensor import TensorValue, record, tensor_method

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})  # uint8: a mask
_BASIC = (SliceValue, SymbolicNumberValue, ConstantValue)


@tensor_method("__getitem__")
def _getitem(tx: Interpreter, tensor: TensorValue, key: SymbolicValue, /) -> SymbolicValue:
    key = tx.force(key)
    batched = _index_many(tx, tensor, key)
    if batched is not None:
        return batched
    key = _with_numbers(tx, key)
    selected = _select(tx, tensor, key)
    return record(tx, operator.getitem, [tensor, key]) if selected is None else selected


@tensor_method("__setitem__")
def _setitem(tx: Interpreter, tensor: TensorValue, key: SymbolicValue, value: SymbolicValue, /
             ) -> SymbolicValue:
    key, value = _with_numbers(tx, tx.force(key)), tx.force(value)
    part = _select(tx, tensor, key)
    if part is None:
        record(tx, operator.setitem, [tensor, key, value])
    else:  # all of the part: PyTorch's own conversions and broadcasts
        record(tx, operator.setitem, [part, constant(Ellipsis), value])
    return NONE


def _with_numbers(tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
    """The key with tensors that bound slices replaced by numbers, and lists of symbolic ints by
    tensors."""
    if _is_list_of_ints(tx, key):
        return tx.call(tx.wrap_fixed(torch.tensor, "torch.tensor"), [key])
    if isinstance(key, TupleValue):
        items = [tx.force(item) for item in key.all(tx)]
        if any(_is_list_of_ints(tx, item) for item in items):
            return TupleValue([_with_numbers(tx, item) for item in items])
        if any(isinstance(item, SliceValue) and not item.is_constant for item in items) or (
                all(isinstance(item, _BASIC) or _is_one_integer(tx, item) for item in items)):
            return TupleValue([_with_numbers(tx, item) for item in items])
    if _is_one_integer(tx, key):
        return key.method(tx, "item", [], {})
    if not isinstance(key, SliceValue) or key.is_constant:
        return key
    parts = [tx.force(part) for part in key.parts]
    if not any(isinstance(part, TensorValue) for part in parts):
        return key
    return SliceValue([
        part.method(tx, "__index__", [], {}) if isinstance(part, TensorValue) else part
        for part in parts
    ])


def _is_list_of_ints(tx: Interpreter, key: SymbolicValue) -> bool:
    items = [tx.force(item) for item in key.all(tx)] if isinstance(key, ListValue) else []
    return any(map(_is_symbolic_int, items)) and all(i.python_type() is int for i in items)


def _is_one_integer(tx: Interpreter, key: SymbolicValue) -> bool:
    if not isinstance(key, TensorValue) or not tx.shapes.data_dependent:
        return False
    fake = key.example
    return fake.dim() == 0 and fake.dtype in _INTEGERS and not is_functorch_wrapped_tensor(fake)


def _index_many(tx: Interpreter, tensor: SymbolicValue, key: SymbolicValue) -> SymbolicValue | None:
    """`tensor[key]` inside `vmap`, where an index is an integer for each example and so no
    number."""
    items = [tx.force(i) for i in key.all(tx)] if isinstance(key, TupleValue) else [key]
    if not any(map(_is_batched_integer, items)):
        return None
    indices: list[SymbolicValue] = []
    for item in items:
        is_full = isinstance(item, SliceValue) and all(map(is_none, item.parts))
        if isinstance(item, ConstantValue) and type(item.value) is int:
            at = [tensor, constant(len(indices)), item]
            tensor = record(tx, torch.select, at)
        elif is_full or isinstance(item, TensorValue):
            indices.append(NONE if is_full else item)
        else:
            return None
    return record(tx, torch.ops.aten.index.Tensor, [tensor, ListValue(indices)])


def _is_batched_integer(item: SymbolicValue) -> bool:
    return (isinstance(item, TensorValue) and is_functorch_wrapped_tensor(item.example)
            and item.example.dim() == 0 and item.example.dtype in _INTEGERS)


def _select(tx: Interpreter, tensor: TensorValue, key: SymbolicValue) -> SymbolicValue | None:
    """`tensor[key]` for basic indices with symbolic ints; None for other keys."""
    items = [tx.force(i) for i in key.all(tx)] if isinstance(key, TupleValue) else [key]
    if not any(map(_is_symbolic_int, items)):
        return None
    if not all(isinstance(item, _BASIC) and _is_basic(item) for item in items):
        raise graph_break("unknown-operation", "a symbolic int beside indices that are tensors")
    rest = TupleValue([_full_slice() if _is_symbolic_int(item) else item for item in items])
    part = record(tx, operator.getitem, [tensor, rest])
    for dim, index in reversed(_places(items, tensor.example.dim())):
        part = record(tx, torch.select, [part, constant(dim), index])
    return part


def _places(items: list[SymbolicValue], rank: int) -> list[tuple[int, SymbolicValue]]:
    """The dimensions that the symbolic ints select from, after the rest of the key is applied."""
    plain = sum(not _is(item, None) and not _is(item, Ellipsis) for item in items)
    places: list[tuple[int, SymbolicValue]] = []
    dim = 0
    for item in items:
        if _is_symbolic_int(item):
            places.append((dim, item))
        if _is(item, Ellipsis):
            dim += rank - plain
        elif not isinstance(item, ConstantValue) or item.value is None:
            dim += 1
    return places


def _full_slice() -> SliceValue:
    return SliceValue([NONE, NONE, NONE])


def _is_symbolic_int(item: SymbolicValue) -> bool:
    return isinstance(item, SymbolicNumberValue) and item.python_type() is int


def _is(item: SymbolicValue, value: object) -> bool:
    return isinstance(item, ConstantValue) and item.value is value


def _is_basic(item: SymbolicValue) -> bool:
    """Whether the index makes a view; bools do not, they add a dimension."""
    if isinstance(item, ConstantValue):
        return item.value is None or item.value is Ellipsis or type(item.value) is int
    return not isinstance(item, SymbolicNumberValue) or item.python_type() is int
