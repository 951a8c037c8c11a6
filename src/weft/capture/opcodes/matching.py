"""The `match` statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weft.capture.breaks import ObservedException
from weft.capture.frame import Frame, Instruction, opcode
from weft.capture.values.base import SymbolicValue
from weft.capture.values.classes import ClassValue
from weft.capture.values.constant import NONE, boolean
from weft.capture.values.sequences import TupleValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

#: Bits of `type.__flags__` (CPython's Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING): what counts is
#: the first base class that has one of them.
_SEQUENCE: Final = 1 << 5
_MAPPING: Final = 1 << 6
#: Classes that a class pattern's only positional sub-pattern matches as a whole.
_SELF_MATCHING = (
    bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple,
)  # fmt: skip


@opcode("MATCH_MAPPING")
def match_mapping(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(boolean(bool(frame.stack[-1].python_type().__flags__ & _MAPPING)))


@opcode("MATCH_SEQUENCE")
def match_sequence(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(boolean(bool(frame.stack[-1].python_type().__flags__ & _SEQUENCE)))


@opcode("MATCH_KEYS")
def match_keys(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Stack: the mapping, a tuple of keys; pushes the tuple of values, or None."""
    subject, keys = frame.stack[-2:]
    found = []
    for key in tx.unpack(keys):
        if not subject.contains(tx, key):
            frame.push(NONE)
            return
        found.append(subject.getitem(tx, key))
    frame.push(TupleValue(found))


@opcode("MATCH_CLASS")
def match_class(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Stack: the subject, the class, the names of the keyword patterns."""
    subject, cls, names = frame.popn(3)
    if not isinstance(cls, ClassValue):
        raise tx.error(TypeError, "called match pattern must be a class")
    if not issubclass(subject.python_type(), cls.cls):
        frame.push(NONE)
        return
    found = _attributes(tx, subject, cls, ins.arg, names.constant())
    frame.push(NONE if found is None else TupleValue(found))


def _attributes(
    tx: Interpreter, subject: SymbolicValue, cls: ClassValue, count: int, names: tuple[str, ...]
) -> list[SymbolicValue] | None:
    own: tuple[str, ...] = ()
    found: list[SymbolicValue] = []
    if count:
        own = getattr(cls.cls, "__match_args__", ())
        if type(own) is not tuple:
            raise tx.error(TypeError, f"{cls.cls.__name__}.__match_args__ must be a tuple (got "
                                      f"{type(own).__name__})")
        if not own and issubclass(cls.cls, _SELF_MATCHING):
            own, count = (), 0
            found.append(subject)
        if len(own) < count:
            name = cls.cls.__name__
            text = f"{name}() accepts {len(own)} positional sub-patterns ({count} given)"
            raise tx.error(TypeError, text)
    for name in (*own[:count], *names):
        try:
            found.append(tx.force(subject.getattr(tx, name)))
        except ObservedException as error:
            if issubclass(error.value.python_type(), AttributeError):
                return None
            raise
    return found
