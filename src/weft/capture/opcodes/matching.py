"""The `match` statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, boolean, constant
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.classes.classes import ClassValue
from weft.capture.library.classes.instances import new_object
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.functions.builtin_rules import attribute_or_none

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

#: Bits of `type.__flags__` (CPython's Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING): what counts is
#: the first base class that has one of them.
_SEQUENCE: Final = 1 << 5
_MAPPING: Final = 1 << 6
#: The flag of classes that a class pattern's only positional sub-pattern matches as a whole.
_MATCHES_ITSELF: Final = 1 << 22


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
    names = tx.unpack(keys)
    _check_distinct(tx, names)
    values = []
    for key in names:
        value = _value_of(tx, subject, key)
        if value is None:
            frame.push(NONE)
            return
        values.append(tx.force(value))
    frame.push(TupleValue(values))


def _check_distinct(tx: Interpreter, keys: list[SymbolicValue]) -> None:
    seen: dict[Any, None] = {}
    for key in keys:
        name = key.dict_key(tx)
        if name in seen:
            shown = repr(key.constant()) if key.is_constant else None
            if shown is None:
                raise graph_break("unknown-operation", "a mapping pattern with a key twice")
            raise tx.error(ValueError, f"mapping pattern checks duplicate key ({shown})")
        seen[name] = None


def _value_of(tx: Interpreter, subject: SymbolicValue, key: SymbolicValue) -> SymbolicValue | None:
    """`subject.get(key)`, which does not create missing items."""
    if isinstance(subject, DictValue):
        return tx.force(subject.getitem(tx, key)) if subject.contains(tx, key) else None
    nothing = new_object(object)
    value = tx.force(subject.method(tx, "get", [key, nothing], {}))
    return None if value is nothing else value


@opcode("MATCH_CLASS")
def match_class(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Stack: the subject, the class, the names of the keyword patterns."""
    subject, cls, names = frame.popn(3)
    if not isinstance(cls, ClassValue):
        raise tx.error(TypeError, "called match pattern must be a class")
    if not tx.call(tx.wrap_fixed(isinstance, "isinstance"), [subject, cls]).truth(tx):
        frame.push(NONE)
        return
    attributes = _attributes(tx, subject, cls, ins.arg, names.constant())
    frame.push(NONE if attributes is None else TupleValue(attributes))


def _attributes(
    tx: Interpreter, subject: SymbolicValue, cls: ClassValue, count: int, names: tuple[str, ...]
) -> list[SymbolicValue] | None:
    attributes: list[SymbolicValue] = []
    own: list[SymbolicValue] = []
    if count:
        places = _match_args(tx, cls)
        if places is None and cls.cls.__flags__ & _MATCHES_ITSELF:
            attributes.append(subject)
            allowed = 1
        else:
            own = places or []
            allowed = len(own)
        if allowed < count:
            plural = "" if allowed == 1 else "s"
            text = f"{cls.cls.__name__}() accepts {allowed} positional sub-pattern{plural}"
            raise tx.error(TypeError, f"{text} ({count} given)")
    seen: set[str] = set()
    for place in (*own[:count], *map(constant, names)):
        name = _attribute_name(tx, cls, place, seen)
        value = attribute_or_none(tx, subject, name)
        if value is None:
            return None
        attributes.append(tx.force(value))
    return attributes


def _match_args(tx: Interpreter, cls: ClassValue) -> list[SymbolicValue] | None:
    """The items of the class's `__match_args__`, or None."""
    names = attribute_or_none(tx, cls, "__match_args__")
    if names is None:
        return None
    if names.python_type() is not tuple:
        raise tx.error(TypeError, f"{cls.cls.__name__}.__match_args__ must be a tuple (got "
                                  f"{names.python_type().__name__})")
    return tx.unpack(names)


def _attribute_name(tx: Interpreter, cls: ClassValue, place: SymbolicValue, seen: set[str]) -> str:
    """The name of an attribute that a class pattern reads; each may be read once only."""
    if place.python_type() is not str:
        kind = place.python_type().__name__
        raise tx.error(TypeError, f"__match_args__ elements must be strings (got {kind})")
    name: str = place.constant()
    if name in seen:
        raise tx.error(TypeError, f"{cls.cls.__name__}() got multiple sub-patterns for attribute "
                                  f"{name!r}")
    seen.add(name)
    return name
