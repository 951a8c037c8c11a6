"""Functions that one file calls and another one, which imports it, defines.

Place in the pipeline: under all of `library/`. Families of values need each other, but imports
point one way. So the lower file declares a function, and the higher one defines it::

    int_of_data: Declared[[Interpreter, SymbolicNumberValue], SymbolicValue] = Declared()
    '''`int` of a float that depends on data.'''        # numbers/symbolic_numbers.py

    @int_of_data.define
    def _truncated(tx, number): ...                     # library/numbers/numbers_from_tensors.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, final

P = ParamSpec("P")
R = TypeVar("R")


@final
class Declared(Generic[P, R]):
    """A function without a body until `define`."""

    __slots__ = ("_function",)

    _function: Callable[P, R]

    def define(self, function: Callable[P, R]) -> Callable[P, R]:
        """Give it its body; a decorator."""
        self._function = function
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)
