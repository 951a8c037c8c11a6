"""NumPy's functions on sizes: the result stays symbolic.

Place in the pipeline: called by the rules of `rules` if no array is involved.
These are functions that NumPy computes exactly as Python does (`np.exp` of a number is not
`math.exp`); others are evaluated on the sizes of the call, which guards then fix::

    np.sqrt(x.shape[-1])            # the NumPy float math.sqrt(s1)
    np.prod(x.shape[1:])            # the NumPy int s1*s2
    int(np.ceil(x.shape[1] / 2))    # (s1 + 1) // 2
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.constant import ConstantValue, evaluate
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import NUMPY_KINDS, SymbolicNumberValue, operand
from weft.shapes.algebra.floats import is_nonnegative
from weft.shapes.symnode import float_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def of_numbers(
    tx: Interpreter, function: object, args: Args, kwargs: Kwargs
) -> SymbolicValue | None:
    """The result if an argument is a symbolic number and the function is supported, else None."""
    compute = _FUNCTIONS.get(function)
    if compute is None or kwargs or not args:
        return None
    operands = [_numbers(tx, tx.force(arg)) for arg in args]
    flat = [n for part in operands for n in (part if isinstance(part, list) else [part])]
    if None in flat or not any(isinstance(n, torch.SymInt | torch.SymFloat) for n in flat):
        return None
    result = evaluate(tx, lambda: compute(*operands))
    return None if result is None else _of_numpy(tx, result)


def _numbers(tx: Interpreter, value: SymbolicValue) -> object:
    if isinstance(value, (TupleValue, ListValue)):
        return [operand(tx.force(item)) for item in value.items]
    return operand(value)


def _of_numpy(tx: Interpreter, number: object) -> SymbolicValue:
    value = tx.wrap_new(number)
    kind = NUMPY_KINDS[value.python_type()]
    if isinstance(value, SymbolicNumberValue):
        return SymbolicNumberValue(tx, value.example, kind=kind)
    return ConstantValue(kind(value.constant()))


def _root(number: object) -> object:
    certain = not isinstance(number, torch.SymFloat) or is_nonnegative(float_of(number))
    return torch.sym_sqrt(number) if certain else None


def _rounding(how: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda number: torch.sym_float(how(number))


def _fold(function: Callable[[Any, Any], object]) -> Callable[[Any], Any]:
    """A function of the numbers in a sequence, none of them a float (NumPy adds floats in another
    order)."""

    def compute(numbers: object) -> object:
        numbers = numbers if isinstance(numbers, list) else [numbers]
        if any(isinstance(n, float | torch.SymFloat) for n in numbers):
            return None
        return functools.reduce(function, numbers)

    return compute


def _of_two_ints(function: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    def compute(left: object, right: object) -> object:
        ints = all(type(n) is int or isinstance(n, torch.SymInt) for n in (left, right))
        return function(left, right) if ints else None

    return compute


def _between(number: object, low: object, high: object) -> object:
    above = _of_two_ints(torch.sym_max)(number, low)
    return None if above is None else _of_two_ints(torch.sym_min)(above, high)


_FUNCTIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    numpy.sqrt: _root,
    numpy.floor: _rounding(math.floor),
    numpy.ceil: _rounding(math.ceil),
    numpy.trunc: _rounding(torch.sym_int),
    numpy.abs: abs,
    numpy.negative: operator.neg,
    numpy.prod: _fold(operator.mul),
    numpy.sum: _fold(operator.add),
    numpy.max: _fold(torch.sym_max),
    numpy.min: _fold(torch.sym_min),
    numpy.maximum: _of_two_ints(torch.sym_max),
    numpy.minimum: _of_two_ints(torch.sym_min),
    numpy.clip: _between,
    numpy.add: _of_two_ints(operator.add),
    numpy.subtract: _of_two_ints(operator.sub),
    numpy.multiply: _of_two_ints(operator.mul),
    numpy.int64: lambda number: number if type(number) is int else torch.sym_int(number),
    numpy.float64: torch.sym_float,
}


_SHAPED: Final[frozenset[Any]] = frozenset({
    numpy.zeros, numpy.ones, numpy.full, numpy.empty, numpy.arange, numpy.eye, numpy.identity,
})
"""Functions whose arguments are the sizes of their results."""


def makes_array_of_size(tx: Interpreter, function: object, args: Args) -> bool:
    """Whether the function makes an array of a symbolic size."""
    if function not in _SHAPED:
        return False
    operands = [_numbers(tx, tx.force(arg)) for arg in args]
    flat = [n for part in operands for n in (part if isinstance(part, list) else [part])]
    return any(isinstance(n, torch.SymInt) for n in flat)
