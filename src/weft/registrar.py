"""Decorators that put functions into tables.

Place in the pipeline: the bottom. Dispatch goes through tables from a key (an operator, a type, an
instruction) to the function that knows what to do; the key stands above the function::

    OPCODES: dict[str, Handler] = {}
    opcode = registrar(OPCODES)

    @opcode("GET_ITER")
    def get_iter(tx, frame, ins): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
F = TypeVar("F")


def registrar(table: dict[K, F]) -> Callable[..., Callable[[F], F]]:
    """The decorator, called with the keys, that enters a function in `table` under each of them."""

    def of(*keys: K) -> Callable[[F], F]:
        def enter(function: F) -> F:
            table.update(dict.fromkeys(keys, function))
            return function

        return enter

    return of
