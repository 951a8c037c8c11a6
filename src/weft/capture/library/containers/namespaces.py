"""types.SimpleNamespace: an object that has attributes and nothing else.

Place in the pipeline: rules for its constructor and for the methods written in C.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, NOT_IMPLEMENTED, boolean, constant
from weft.capture.library.classes.classes import constructor
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.functions.builtins import EXTERNAL_METHODS

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@constructor(types.SimpleNamespace)
def _make(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    made = ObjectValue(cls)
    _init(tx, [made, *args], kwargs)
    return made


def _init(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    target, *others = args
    if others or not isinstance(target, ObjectValue):
        raise graph_break("unknown-operation", "arguments of a SimpleNamespace")
    for name, value in kwargs.items():
        target.attributes.setitem(tx, constant(name), value)
    return NONE


def _eq(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    left, right = args
    if not (isinstance(left, ObjectValue) and isinstance(right, ObjectValue)
            and issubclass(right.cls, types.SimpleNamespace)):
        return NOT_IMPLEMENTED
    return boolean(tx.equal(left.attributes, right.attributes))


def _repr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    value = args[0]
    assert isinstance(value, ObjectValue)
    parts = [f"{key.constant()}={tx.call_python(repr, [item]).constant()}"
             for key, item in value.attributes.pairs(tx)]
    name = "namespace" if value.cls is types.SimpleNamespace else value.cls.__name__
    return constant(f"{name}({', '.join(parts)})")


EXTERNAL_METHODS[(types.SimpleNamespace, "__init__")] = _init
EXTERNAL_METHODS[(types.SimpleNamespace, "__eq__")] = _eq
EXTERNAL_METHODS[(types.SimpleNamespace, "__repr__")] = _repr
