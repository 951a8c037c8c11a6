"""Names in class bodies, whose variables are the namespace of the new class.

Place in the pipeline: opcode handlers; `library/classes/made_classes.py` interprets the bodies.
What a body binds is in `frame.locals`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture.core.base import NULL, SymbolicValue
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.containers.mapping import DictValue
from weft.capture.opcodes.variables import load_deref, read_global

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _own(tx: Interpreter, frame: Frame, name: str) -> SymbolicValue | None:
    value = frame.locals.get(name)
    return None if value is None else tx.force(value)


@opcode("LOAD_NAME")
def load_name(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = _own(tx, frame, ins.argval)
    frame.push(read_global(tx, frame, ins.argval) if value is None else value)


@opcode("STORE_NAME")
def store_name(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.locals[ins.argval] = frame.pop()


@opcode("DELETE_NAME")
def delete_name(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if frame.locals.pop(ins.argval, None) is None:
        raise tx.error(NameError, f"name '{ins.argval}' is not defined")


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.locals.setdefault("__annotations__", DictValue())


@opcode("LOAD_CLASSDEREF")
def load_class_deref(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = _own(tx, frame, ins.argval)
    if value is None:
        load_deref(tx, frame, ins)
    else:
        frame.push(value)


@opcode("LOAD_LOCALS")
def load_locals(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Push a placeholder for the namespace; the next instruction reads `frame.locals` itself."""
    frame.push(NULL)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.pop()
    load_class_deref(tx, frame, ins)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.pop()
    load_name(tx, frame, ins)
