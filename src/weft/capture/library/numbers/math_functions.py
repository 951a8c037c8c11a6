"""Functions of the module `math` on sizes and numbers that change between calls.

Place in the pipeline: beside `symbolic_numbers`; called by `builtins` for each call of a C
function::

    math.sqrt(x.shape[0])       # stays symbolic: the float math.sqrt(s0)
    math.gcd(h, w)              # an opaque symbolic int
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.constant import evaluate
from weft.capture.library.numbers.float_operations import float_operation
from weft.capture.library.numbers.symbolic_numbers import operand
from weft.shapes.algebra import functions
from weft.shapes.algebra.atoms import IntFunction
from weft.shapes.algebra.floats import OPERATIONS, rounded_down
from weft.shapes.algebra.relation import ge
from weft.shapes.number_calls import number_call
from weft.shapes.symnode import expr_of, float_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_OF_INTS: Final[Mapping[Any, IntFunction]] = {
    math.gcd: functions.GCD, math.lcm: functions.LCM, math.isqrt: functions.ISQRT,
    math.comb: functions.COMB,
}
_ROUNDED: Final = {math.floor: math.floor, math.ceil: math.ceil, math.trunc: torch.sym_int}
_OF_FLOATS: Final[Mapping[Any, str]] = {
    math.pow: "pow",
    **{getattr(math, op): op for op, (_, spelling) in OPERATIONS.items()
       if spelling.startswith("math.")},
}


def converts(function: object) -> bool:
    """Whether the function calls `__float__` of its arguments."""
    return function in _OF_FLOATS or function in (math.log, math.floor, math.ceil)


def math_of_number(tx: Interpreter, function: object, args: Args, kwargs: Kwargs
                   ) -> SymbolicValue | None:
    """The symbolic result of `math.sqrt(x.shape[0])` and the like; None for other calls."""
    numbers = [operand(arg) for arg in args]
    symbolic = [n for n in numbers if isinstance(n, torch.SymInt | torch.SymFloat)]
    if kwargs or not symbolic or None in numbers:
        return None
    if function in _OF_INTS:
        return _of_ints(tx, _OF_INTS[function], numbers)
    if function in _ROUNDED and len(numbers) == 1:
        return _rounded(tx, function, args[0], symbolic[0])
    if function is math.log and len(numbers) == 2:
        over, under = (float_operation(tx, "log", number) for number in numbers)
        return None if over is None or under is None else tx.binary("truediv", over, under)
    op = _OF_FLOATS.get(function)
    if op is None or len(numbers) != _ARITY.get(op, 1):
        return None
    return float_operation(tx, op, *map(torch.sym_float, numbers) if op == "pow" else numbers)


_ARITY: Final = dict.fromkeys(("pow", "atan2", "fmod", "hypot", "copysign", "remainder"), 2)


def _rounded(tx: Interpreter, function: Any, value: SymbolicValue, number: Any
             ) -> SymbolicValue | None:
    if isinstance(number, torch.SymInt):
        return value
    if not number.node.has_hint() and rounded_down(float_of(number)) is None:
        return None
    return tx.wrap_new(evaluate(tx, lambda: _ROUNDED[function](number)))


def _of_ints(tx: Interpreter, function: IntFunction, numbers: list[Any]) -> SymbolicValue | None:
    """The result for ints, where Python gives one."""
    if not all(type(n) is int or isinstance(n, torch.SymInt) for n in numbers):
        return None
    call = number_call(function)
    if function in (functions.GCD, functions.LCM):
        return tx.wrap_new(evaluate(tx, lambda: functools.reduce(call, numbers)))
    if not all(tx.shapes.truth(ge(expr_of(n), 0)) for n in numbers):
        return None
    return tx.wrap_new(evaluate(tx, lambda: call(*numbers)))
