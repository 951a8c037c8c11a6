"""Instances of subclasses of str, int, float, bytes and tuple that are made inside.

Place in the pipeline: `ObjectValue`s whose `contents` is the plain value: a constant, a number or a
tuple. Methods of the base are those of the contents (`BuiltinValue`); what the class defines is
interpreted::

    class Metres(float):
        def __add__(self, other): return Metres(float(self) + other)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture.breaks import graph_break
from weft.capture.values.attributes import type_lookup
from weft.capture.values.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.values.containers.named_tuples import NamedTupleValue
from weft.capture.values.containers.sequences import TupleValue
from weft.capture.values.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.values.objects.classes import CONSTRUCTORS
from weft.capture.values.objects.functions import rule
from weft.capture.values.objects.instances import container_base, new_object

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@rule(str.__new__, int.__new__, float.__new__, bytes.__new__, tuple.__new__)
def _new(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    cls, *given = args
    base = container_base(cls.constant())
    contents = tx.force(CONSTRUCTORS[base](tx, base, given, kwargs))
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
