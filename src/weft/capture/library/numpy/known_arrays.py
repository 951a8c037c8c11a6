"""Arrays whose contents capture knows: those that follow from constants.

Place in the pipeline: below `numpy_arrays`. NumPy itself evaluates calls on such arrays while
capturing, writes included, so Python code may look at their items. The replacement makes copies,
and the graph takes their contents as constants. Once a value of unknown content is written to one
(or a tensor shares its memory), the memory belongs to the graph::

    bins = np.floor(np.linspace(0, 9, 4)).astype(int)    # evaluated
    for at in range(bins[0], bins[2]): ...               # a loop over numbers
    table = np.zeros((4, 9)); table[0, :] = 1            # evaluated
    table[1] = x                                         # torch.full, copy_ in the graph
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy
import torch

from weft._torch import without_functorch_levels
from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import constant, evaluate, known_arguments
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numpy.calls import tensor_of
from weft.capture.library.numpy.models import instances
from weft.capture.library.standard.remade import RemadeValue
from weft.capture.library.tensors.tensor import TensorValue, record

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_LARGEST: Final = 1 << 18
"""Larger results, in elements, are computed by the graph."""


@final
class Memory(SymbolicValue):
    """What several arrays may be views of."""

    __slots__ = ("__weakref__", "base", "shared", "views")

    def __init__(self, base: numpy.ndarray[Any, Any]) -> None:
        super().__init__()
        self.base = base
        self.shared: TensorValue | None = None
        """The graph's tensor, if the contents are not known any more."""
        self.views: weakref.WeakSet[Any] = weakref.WeakSet()

    def share(self, tx: Interpreter) -> None:
        """Hand the memory over to the graph: each array becomes a view of one tensor."""
        tensor = contents(tx, self.base)
        if tensor.source is not None:  # the same in each call
            clone = record(tx, "clone", [tensor])
            assert isinstance(clone, TensorValue)
            tensor = clone
        self.shared = tensor
        for array in self.views:
            array.set_tensor(self._view(tx, tensor, array.known))

    def _view(self, tx: Interpreter, tensor: TensorValue, array: Any) -> TensorValue | None:
        if _layout(array) == _layout(self.base):
            return tensor
        size = self.base.itemsize
        start = _layout(array)[0] - _layout(self.base)[0]
        steps = [step // size for step in array.strides]
        if array.dtype != self.base.dtype or min([start, *steps]) < 0:
            return None
        sizes = [tx.wrap_new((*numbers,)) for numbers in (array.shape, steps)]
        view = record(tx, torch.as_strided, [tensor, *sizes, constant(start // size)])
        assert isinstance(view, TensorValue)
        return view

    def rebuild(self, emit: Emitter) -> str:
        name = emit.bind(self, f"{emit.constant(self.base)}.copy('K')")
        if not self.base.flags.writeable:
            emit.line(f"{name}.setflags(write=False)")
        return name


def _layout(array: Any) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def memory_of(tx: Interpreter, array: numpy.ndarray[Any, Any]) -> Memory:
    """The memory that an array, made while capturing, is a view of."""
    base = _base_of(array)
    if type(base) is not numpy.ndarray or base.dtype.hasobject:
        raise graph_break("unknown-value", f"an array of {array.dtype} in a {type(base).__name__}")
    memory: Memory = tx.data.memories.setdefault(id(base), Memory(base))
    return memory


def rebuilt(emit: Emitter, memory: Memory, array: numpy.ndarray[Any, Any], value: Any) -> str:
    """The expression for a new array with the contents that this one has."""
    text = emit.value(memory)
    if array is memory.base:
        return text
    start = _layout(array)[0] - _layout(memory.base)[0]
    layout = f"{array.shape}, {emit.constant(array.dtype)}, {text}, {start}, {array.strides}"
    name = emit.bind(value, f"{emit.constant(numpy.ndarray)}({layout})")
    if not array.flags.writeable:
        emit.line(f"{name}.setflags(write=False)")
    return name


def contents(tx: Interpreter, array: numpy.ndarray[Any, Any]) -> TensorValue:
    """A tensor with the array's present contents, which nothing may write to if it has a source."""
    if array.size > 1 and array.flags.c_contiguous and _is_uniform(array):
        options: Kwargs = {"device": constant(torch.device("cpu"))}
        copy = tensor_of(array[:0].copy() if array.ndim else array.copy())
        if copy is not None:
            options["dtype"] = constant(copy.dtype)
            number = constant(array.flat[0].item())
            filled = record(tx, torch.full, [tx.wrap_new(array.shape), number], options)
            assert isinstance(filled, TensorValue)
            return filled
    with without_functorch_levels():
        tensor = tensor_of(array.copy("K"))
    if tensor is None:
        raise graph_break("unknown-value", f"an array of {array.dtype} as a tensor")
    source = tx.tree.object(tensor, "array")
    tx.data.relied_on.add(source)
    return TensorValue(tx.fakes.fake(tensor), None, source, tensor)


def _is_uniform(array: numpy.ndarray[Any, Any]) -> bool:
    first = array.flat[0]
    return bool((array == first).all()) and (first != 0 or array.tobytes().count(0) == array.nbytes)


# -- evaluation -----------------------------------------------------------------------------------


def evaluated(tx: Interpreter, function: Callable[..., object], args: Args, kwargs: Kwargs
              ) -> SymbolicValue | None:
    """The result of a call of NumPy if everything that it reads is known, else None."""
    if not all(_may_be_known(tx, value) for value in (*args, *kwargs.values())):
        return None
    known = known_arguments(tx, args, kwargs)
    if known is None:
        return None
    objects, named = known
    borrowed = [a for a in instances(numpy.ndarray, [objects, named]) if not _is_owned(tx, a)]
    before = [a.tobytes() for a in borrowed]
    result = evaluate(tx, lambda: _call_quietly(function, objects, named))
    if [a.tobytes() for a in borrowed] != before:
        return None
    for value, obj in zip((*args, *kwargs.values()), (*objects, *named.values()), strict=True):
        if obj is result and type(obj) is numpy.ndarray and not _is_among(obj, borrowed):
            return tx.force(value)
    if hasattr(type(result), "__next__"):
        raise graph_break("unknown-value", f"a {type(result).__name__}")
    arrays = list(instances(numpy.ndarray, result))
    shares = any(numpy.may_share_memory(a, b) for a in arrays for b in borrowed)
    if shares or sum(a.size for a in arrays) > _LARGEST:
        return None
    return tx.wrap_new(result)


def _may_be_known(tx: Interpreter, value: SymbolicValue) -> bool:
    """False for tensors and numbers that depend on data, and for sequences of them; for buffers,
    whose memory arrays share."""
    value = tx.force(value)
    if isinstance(value, RemadeValue):
        return False
    if isinstance(value, (ListValue, TupleValue)):
        return all(_may_be_known(tx, item) for item in value.items)
    unknown = isinstance(value, SymbolicNumberValue) and (
        value.python_type() is float or value.in_this_call() is MISSING)
    return not unknown and not isinstance(value, TensorValue)


def _call_quietly(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = function(*args, **kwargs)
    if heard:  # the program must hear it in each call
        raise graph_break("unknown-c-function", f"a NumPy call that warns: {heard[0].message}")
    return result


def _is_among(array: object, others: Sequence[object]) -> bool:
    return any(array is other for other in others)


def _is_owned(tx: Interpreter, array: object) -> bool:
    """Whether the array is one that capture keeps, not a copy of one from outside."""
    return id(_base_of(array)) in tx.data.memories


def _base_of(array: Any) -> object:
    """What owns the memory of an array."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array
