"""Operations that make a symbolic float, some of which are not defined for all numbers.

Place in the pipeline: under `symbolic_numbers` and `math_functions`. Before a power or an
exponential becomes part of a formula, a guard requires that it is defined
(`shapes/algebra/float_domains.py`). A later call with other numbers is captured again; there the
operation raises, as the program expects::

    math.exp(rate)      # the guard: is_real(lambda: math.exp(r0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import evaluate
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.float_domains import is_certain
from weft.shapes.algebra.floats import OPERATIONS, apply, compare, is_real, rounded_down
from weft.shapes.number_calls import float_call, number_of
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def float_operation(tx: Interpreter, op: str, *numbers: object) -> SymbolicValue | None:
    """The symbolic result, or None if the operation is not defined for the numbers of this call."""
    if not _has_value(tx, op, numbers):
        return None
    call = _floor_division if op == "floordiv" else float_call(op)
    return tx.wrap_new(evaluate(tx, lambda: call(*numbers)))


def _has_value(tx: Interpreter, op: str, numbers: tuple[Any, ...]) -> bool:
    values = [number_of(number) for number in numbers]
    if all(isinstance(value, int | float) for value in values):
        return is_real(lambda: OPERATIONS[op][0](*values))
    if is_certain(op, *values) or not all(map(is_hinted, numbers)):
        return True
    return tx.shapes.evaluate(compare("is_real", apply(op, *values), 0))


def _floor_division(number: Any, divisor: Any) -> object:
    """The integer quotient of sizes, if the division is known to be exact."""
    whole = rounded_down(apply("truediv", number_of(number), number_of(divisor)))
    if not isinstance(whole, Expr):
        return float_call("floordiv")(number, divisor)
    symbolic = next(n for n in (number, divisor) if isinstance(n, torch.SymInt | torch.SymFloat))
    return torch.sym_float(symbolic.node.shape_env.sym_int(whole))
