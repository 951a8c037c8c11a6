"""Building, extending and unpacking containers; f-strings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import constant
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.classes.attributes import is_iterable
from weft.capture.library.containers.mapping import DictValue, is_mapping_object
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.containers.sets import SetValue
from weft.capture.library.functions.builtin_rules import format_value
from weft.capture.library.texts.symbolic_texts import TextValue, join_texts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@opcode("BUILD_TUPLE")
def build_tuple(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(TupleValue(frame.popn(ins.arg)))


@opcode("BUILD_LIST")
def build_list(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(ListValue(frame.popn(ins.arg)))


@opcode("BUILD_SET")
def build_set(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(SetValue.of(tx, frame.popn(ins.arg)))


@opcode("BUILD_MAP")
def build_map(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    items = frame.popn(2 * ins.arg)
    dictionary = DictValue()
    for key, value in zip(items[::2], items[1::2], strict=True):
        dictionary.setitem(tx, key, value)
    frame.push(dictionary)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    keys = frame.pop().constant()
    dictionary = DictValue()
    for key, value in zip(keys, frame.popn(ins.arg), strict=True):
        dictionary.setitem(tx, tx.wrap_new(key), value)
    frame.push(dictionary)


@opcode("LIST_TO_TUPLE")
def list_to_tuple(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(TupleValue(tx.unpack(frame.pop())))


# -- growing one that lies deeper in the stack ----------------------------------------------------


@opcode("LIST_APPEND")
def list_append(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    item = frame.pop()
    frame.stack[-ins.arg].method(tx, "append", [item], {})


@opcode("SET_ADD")
def set_add(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    item = frame.pop()
    frame.stack[-ins.arg].method(tx, "add", [item], {})


@opcode("MAP_ADD")
def map_add(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    key, value = frame.popn(2)
    frame.stack[-ins.arg].setitem(tx, key, value)


@opcode("LIST_EXTEND")
def list_extend(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    items = frame.pop()
    if not is_iterable(tx, items):
        kind = tx.force(items).python_type().__name__
        raise tx.error(TypeError, f"Value after * must be an iterable, not {kind}")
    frame.stack[-ins.arg].method(tx, "extend", [items], {})


@opcode("SET_UPDATE", "DICT_UPDATE")
def update(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    items = frame.pop()
    if ins.name == "DICT_UPDATE" and not is_mapping_object(tx.force(items)):
        raise tx.error(TypeError, f"'{items.python_type().__name__}' object is not a mapping")
    frame.stack[-ins.arg].method(tx, "update", [items], {})


# -- unpacking ------------------------------------------------------------------------------------


def _items_of(tx: Interpreter, value: SymbolicValue) -> Iterable[SymbolicValue]:
    if not is_iterable(tx, value):
        kind = tx.force(value).python_type()
        raise tx.error(TypeError, f"cannot unpack non-iterable {kind.__name__} object")
    return value.iterate(tx)


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    count = ins.arg
    items = list(islice(_items_of(tx, frame.pop()), count + 1))
    if len(items) < count:
        text = f"not enough values to unpack (expected {count}, got {len(items)})"
        raise tx.error(ValueError, text)
    if len(items) > count:
        raise tx.error(ValueError, f"too many values to unpack (expected {count})")
    frame.stack.extend(tx.force(item) for item in reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """`first, *rest, last = ...`: the low byte counts the targets before the star."""
    before, after = ins.arg & 255, ins.arg >> 8
    items = [tx.force(item) for item in _items_of(tx, frame.pop())]
    if len(items) < before + after:
        text = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise tx.error(ValueError, text)
    end = len(items) - after
    parts = [*items[:before], ListValue(items[before:end]), *items[end:]]
    frame.stack.extend(reversed(parts))


# -- f-strings ------------------------------------------------------------------------------------

_CONVERSIONS: Final[dict[int, Any]] = {1: str, 2: repr, 3: ascii}


def convert(tx: Interpreter, value: SymbolicValue, how: int) -> SymbolicValue:
    """`{value!s}`, `{value!r}`, `{value!a}`; 0 converts nothing."""
    function = _CONVERSIONS.get(how)
    if function is None:
        return value
    return tx.call(tx.wrap_fixed(function, function.__name__), [value])


@opcode("FORMAT_VALUE")
def format_value_opcode(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    spec = frame.pop() if ins.arg & 4 else constant("")
    frame.push(format_value(tx, convert(tx, frame.pop(), ins.arg & 3), spec))


@opcode("CONVERT_VALUE")
def convert_value(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(convert(tx, frame.pop(), ins.arg))


@opcode("FORMAT_SIMPLE")
def format_simple(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(format_value(tx, frame.pop(), constant("")))


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value, spec = frame.popn(2)
    frame.push(format_value(tx, value, spec))


@opcode("BUILD_STRING")
def build_string(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    parts = frame.popn(ins.arg)
    if any(isinstance(part, TextValue) for part in parts):
        frame.push(join_texts(tx, parts))
        return
    texts = tx.constants(parts)
    if texts is None:
        raise graph_break("unknown-operation", "a string of values that are not constants")
    frame.push(constant("".join(texts)))
