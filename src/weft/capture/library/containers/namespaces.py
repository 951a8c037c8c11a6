"""types.SimpleNamespace: an object that has attributes and nothing else.

Place in the pipeline: rules for its constructor and for the methods written in C.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, NOT_IMPLEMENTED, boolean, constant
from weft.capture.library.classes.classes import constructor
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.functions.builtins import method_rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@constructor(types.SimpleNamespace)
def _make(tx: Interpreter, cls: type, /, **kwargs: SymbolicValue) -> SymbolicValue:
    namespace = ObjectValue(cls)
    _init(tx, namespace, **kwargs)
    return namespace


@method_rule((types.SimpleNamespace, "__init__"))
def _init(tx: Interpreter, target: SymbolicValue, /, **kwargs: SymbolicValue) -> SymbolicValue:
    if not isinstance(target, ObjectValue):
        raise graph_break("unknown-operation", "arguments of a SimpleNamespace")
    for name, value in kwargs.items():
        target.attributes.setitem(tx, constant(name), value)
    return NONE


@method_rule((types.SimpleNamespace, "__eq__"))
def _eq(tx: Interpreter, left: SymbolicValue, right: SymbolicValue, /) -> SymbolicValue:
    if not (isinstance(left, ObjectValue) and isinstance(right, ObjectValue)
            and issubclass(right.cls, types.SimpleNamespace)):
        return NOT_IMPLEMENTED
    return boolean(tx.equal(left.attributes, right.attributes))


@method_rule((types.SimpleNamespace, "__repr__"))
def _repr(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    assert isinstance(value, ObjectValue)
    parts = [f"{key.constant()}={tx.call_python(repr, [item]).constant()}"
             for key, item in value.attributes.pairs(tx)]
    name = "namespace" if value.cls is types.SimpleNamespace else value.cls.__name__
    return constant(f"{name}({', '.join(parts)})")
