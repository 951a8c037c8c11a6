"""Rules for the C methods of exceptions: `super().__init__(...)`, `with_traceback`, `add_note`.

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant
from weft.capture.library.containers.constructors import text_of
from weft.capture.library.containers.sequences import ListValue
from weft.capture.library.exceptions import group_polyfills
from weft.capture.library.exceptions.exceptions import ExceptionValue
from weft.capture.library.functions.builtins import EXTERNAL_METHODS
from weft.capture.library.functions.functions import python_rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _target(args: Args) -> ExceptionValue:
    if not args or not isinstance(args[0], ExceptionValue):
        raise graph_break("unknown-operation", "a method of an exception of something else")
    return args[0]


def _init(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    _target(args).initialise(tx, args[1:], kwargs)
    return NONE


def _with_traceback(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    error = _target(args)
    error.generic_setattr(tx, "__traceback__", args[1])
    return error


def _add_note(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if args[1].python_type() is not str:
        raise graph_break("unknown-operation", "a note that is no string")
    attributes = _target(args).attributes
    notes = attributes.lookup(tx, "__notes__")
    if notes is None:
        notes = ListValue([])
        attributes.setitem(tx, constant("__notes__"), notes)
    if not isinstance(notes, ListValue):
        raise graph_break("unknown-operation", "notes that are no list")
    return notes.method(tx, "append", [args[1]], {})


def _str(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return text_of(tx, _target(args))


def _repr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    error = _target(args)
    parts = [tx.call_python(repr, [arg]).constant() for arg in error.args]
    return constant(f"{error.cls.__name__}({', '.join(parts)})")


_METHODS: dict[str, Any] = {"__init__": _init, "__str__": _str, "__repr__": _repr,
                            "with_traceback": _with_traceback, "add_note": _add_note}


for _function in (group_polyfills.split, group_polyfills.subgroup, group_polyfills.derive):
    EXTERNAL_METHODS[(BaseExceptionGroup, _function.__name__)] = python_rule(_function)

for _kind in vars(builtins).values():
    if isinstance(_kind, type) and issubclass(_kind, BaseException):
        for _name, _rule in _METHODS.items():
            if _name in vars(_kind):
                EXTERNAL_METHODS[(_kind, _name)] = _rule
