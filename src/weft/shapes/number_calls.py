"""Opaque functions as nodes of captured graphs: on plain and on symbolic ints.

Place in the pipeline: capture adds them to graphs for sizes such as ``int(n * 0.3)``; the graph
runs them on ints, aot on symbols::

    number_call(GCD)(12, 8)         # 4
    number_call(GCD)(s0, 8)         # the SymInt math.gcd(s0, 8)
    float_call("exp")(r0)           # the SymFloat math.exp(r0)
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable

import torch

from weft.shapes.algebra.atoms import IntFunction
from weft.shapes.algebra.expr import applied
from weft.shapes.algebra.floats import OPERATIONS, Number, apply
from weft.shapes.symnode import expr_of, float_of


@functools.cache
def number_call(function: IntFunction) -> Callable[..., object]:
    """The function on numbers; always the same object."""

    def call(*args: int | torch.SymInt) -> int | torch.SymInt:
        symbolic = next((arg for arg in args if isinstance(arg, torch.SymInt)), None)
        if symbolic is None:
            return function.compute(*args)
        number: int | torch.SymInt = symbolic.node.shape_env.as_int(
            applied(function, *map(expr_of, args)))
        return number

    call.__name__ = call.__qualname__ = f"size_{zlib.crc32(function.text.encode()):08x}"
    call.__doc__ = function.text
    globals()[call.__name__] = call  # where the text of a graph module finds it
    return call


@functools.cache
def float_call(op: str) -> Callable[..., object]:
    """The operation of `floats.OPERATIONS` on numbers; always the same object."""

    def call(*args: float | torch.SymInt | torch.SymFloat) -> float | torch.SymFloat:
        symbolic = next((a for a in args if isinstance(a, torch.SymInt | torch.SymFloat)), None)
        if symbolic is None:
            return OPERATIONS[op][0](*args)
        return torch.SymFloat(symbolic.node.shape_env.float_node(apply(op, *map(number_of, args))))

    call.__name__ = call.__qualname__ = f"float_{op}"
    globals()[call.__name__] = call
    return call


def number_of(number: float | torch.SymInt | torch.SymFloat) -> Number:
    """The expression of a plain or symbolic number."""
    return float_of(number) if isinstance(number, float | torch.SymFloat) else expr_of(number)
