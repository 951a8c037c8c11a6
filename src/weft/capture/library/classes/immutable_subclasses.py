"""Instances of subclasses of str, int, float, bytes, tuple and partial that are made inside.

Place in the pipeline: `ObjectValue`s whose `contents` is the plain value: a constant, a number, a
tuple or a partial. Methods of the base are those of the contents (`BuiltinValue`); what the class
defines is interpreted::

    class Metres(float):
        def __add__(self, other): return Metres(float(self) + other)
"""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.capture.core.base import MISSING, SymbolicValue, is_heap_type
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import PLAIN, evaluate
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import CONSTRUCTORS
from weft.capture.library.classes.instances import new_object
from weft.capture.library.containers.named_tuples import NamedTupleValue
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _new(base: Any, tx: Interpreter, cls: SymbolicValue, /, *rest: SymbolicValue,
         **kwargs: SymbolicValue) -> SymbolicValue:
    """`base.__new__(cls, ...)`"""
    if not _makes(base, cls.constant()):
        evaluate(tx, lambda: base.__new__(cls.constant()))  # raises Python's error
    contents = tx.force(CONSTRUCTORS[base].call((tx, base), [*rest], kwargs))
    if cls.constant() is base:
        return contents
    if hasattr(cls.constant(), "_fields") and isinstance(contents, TupleValue):
        return NamedTupleValue(contents.items, None, cls.constant())
    known = contents.is_constant or isinstance(contents, (TupleValue, SymbolicNumberValue))
    if contents.python_type() is not base or not known:
        raise graph_break("unknown-operation", f"making a {cls.constant().__name__}")
    if type_lookup(cls.constant(), "__del__") is not MISSING:
        raise graph_break("unknown-operation", f"making {cls!r}, which has a __del__")
    return new_object(cls.constant(), contents)


for _base in PLAIN:
    rule(_base.__new__)(partial(_new, _base))


@rule(functools.partial.__new__)
def _new_partial(tx: Interpreter, cls: SymbolicValue, /, *rest: SymbolicValue,
                 **kwargs: SymbolicValue) -> SymbolicValue:
    """`partial.__new__(cls, function, ...)`"""
    kind = cls.constant()
    if not rest or not issubclass(kind, functools.partial) or (
            type_lookup(kind, "__del__") is not MISSING):
        raise graph_break("unknown-operation", f"making {cls!r}")
    contents = CONSTRUCTORS[functools.partial].call((tx, functools.partial), [*rest], kwargs)
    return contents if kind is functools.partial else new_object(kind, contents)


def _makes(base: type, cls: object) -> bool:
    """Whether `base.__new__` may make instances of `cls`: its nearest class in C has that method
    (`int.__new__(bool)` raises).
    """
    if not isinstance(cls, type) or not issubclass(cls, base):
        return False
    while is_heap_type(cls) and cls.__base__ is not None:
        cls = cls.__base__
    return cls.__new__ is base.__new__
