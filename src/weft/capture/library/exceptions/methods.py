"""Rules for the C methods of exceptions: `super().__init__(...)`, `with_traceback`, `add_note`.

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Final

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant
from weft.capture.core.rules import RuleFunction
from weft.capture.library.containers.constructors import text_of
from weft.capture.library.containers.sequences import ListValue
from weft.capture.library.exceptions import group_polyfills
from weft.capture.library.exceptions.exceptions import ExceptionValue
from weft.capture.library.functions.builtins import method_rule
from weft.capture.library.functions.functions import python_rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _checked(target: SymbolicValue) -> ExceptionValue:
    if not isinstance(target, ExceptionValue):
        raise graph_break("unknown-operation", "a method of an exception of something else")
    return target


def _init(tx: Interpreter, target: SymbolicValue, /, *args: SymbolicValue,
          **kwargs: SymbolicValue) -> SymbolicValue:
    _checked(target).initialise(tx, [*args], kwargs)
    return NONE


def _with_traceback(tx: Interpreter, target: SymbolicValue, traceback: SymbolicValue, /
                    ) -> SymbolicValue:
    error = _checked(target)
    error.generic_setattr(tx, "__traceback__", traceback)
    return error


def _add_note(tx: Interpreter, target: SymbolicValue, note: SymbolicValue, /) -> SymbolicValue:
    if note.python_type() is not str:
        raise graph_break("unknown-operation", "a note that is no string")
    attributes = _checked(target).attributes
    notes = attributes.lookup(tx, "__notes__")
    if notes is None:
        notes = ListValue([])
        attributes.setitem(tx, constant("__notes__"), notes)
    if not isinstance(notes, ListValue):
        raise graph_break("unknown-operation", "notes that are no list")
    return notes.method(tx, "append", [note], {})


def _str(tx: Interpreter, target: SymbolicValue, /) -> SymbolicValue:
    return text_of(tx, _checked(target))


def _repr(tx: Interpreter, target: SymbolicValue, /) -> SymbolicValue:
    error = _checked(target)
    parts = [tx.call_python(repr, [arg]).constant() for arg in error.args]
    return constant(f"{error.cls.__name__}({', '.join(parts)})")


_METHODS: Final[dict[str, RuleFunction]] = {"__init__": _init, "__str__": _str, "__repr__": _repr,
                            "with_traceback": _with_traceback, "add_note": _add_note}


for _function in (group_polyfills.split, group_polyfills.subgroup, group_polyfills.derive):
    method_rule((BaseExceptionGroup, _function.__name__))(python_rule(_function))

for _kind in vars(builtins).values():
    if isinstance(_kind, type) and issubclass(_kind, BaseException):
        for _name, _rule in _METHODS.items():
            if _name in vars(_kind):
                method_rule((_kind, _name))(_rule)
