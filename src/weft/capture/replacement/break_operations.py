"""Instructions as Python expressions: what a replacement does instead of one that capture could
not.

Place in the pipeline: used by `resumption`. A translator returns an `Operation` for an instruction:
an expression over the stack's items, how many items it takes, and what it pushes::

    CALL 1      on [.., NULL, print, x]   ->   Operation(taken=3, text="c0_print(v[0])")
    FOR_ITER    on [.., iterator]         ->   "next(t1, c2)", and where to go on in either case

An instruction without a translator can end the graph only if the rest of its frame may run as plain
byte code.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

from weft._frame import skip
from weft.capture.core.base import NullValue, SymbolicValue
from weft.capture.core.breaks import GraphBreak
from weft.capture.core.frame import Frame, Instruction
from weft.capture.core.operator_names import IN_PLACE
from weft.capture.core.protocols import Emitter
from weft.capture.core.tracebacks import hide, warn
from weft.capture.library.tensors.tensor import TensorValue
from weft.capture.opcodes.control import BEHIND_LOOP
from weft.capture.opcodes.operators import COMPARISONS, TO_BOOL
from weft.capture.replacement.checkpointing import Checkpointed, is_checkpoint
from weft.quoting import keyword, literal
from weft.registrar import registrar


@final
@dataclass(slots=True)
class Branch:
    """One way that a jump may go."""

    index: int
    keeps_top: bool = False
    """Whether the topmost item, which the operation takes, stays on the stack."""
    pushes: bool = False
    """Whether the operation's value is pushed."""


@final
@dataclass(slots=True)
class Operation:
    """An instruction as Python: how many stack items it takes, and what it does."""

    taken: int
    text: str
    """An expression."""
    pushes: int = 1
    """How many values it pushes; if several, the expression is a tuple of them."""
    null: bool = False
    """Whether the result is a callable with a NULL beside it."""
    branches: tuple[Branch, Branch] | None = None
    """For jumps: where to go if `test` holds for the value, and if not."""
    test: str = "{}"


Translator = Callable[[Emitter, Frame, Instruction], Operation]

TRANSLATORS: dict[str, Translator] = {}

_translates = registrar(TRANSLATORS)


def can_translate(name: str) -> bool:
    """Whether a continuation can follow a break at this opcode."""
    return name in TRANSLATORS


# -- operations -----------------------------------------------------------------------------------


def _top(emit: Emitter, frame: Frame, n: int) -> list[str]:
    return [emit.value(value) for value in frame.stack[len(frame.stack) - n :]]


def _call_text(
    emit: Emitter, function: SymbolicValue, args: list[SymbolicValue], names: tuple[str, ...]
) -> str:
    plain = len(args) - len(names)
    parts = [emit.value(arg) for arg in args[:plain]]
    parts += [keyword(name, emit.value(arg))
              for name, arg in zip(names, args[plain:], strict=True)]
    return f"{_callee(emit, function)}({', '.join(parts)})"


def _callee(emit: Emitter, function: SymbolicValue) -> str:
    """The function to call, of which `checkpoint` and `warnings.warn` have a way of their own."""
    real = emit.tx.force(function).real()
    if real is warnings.warn:
        return emit.constant(warn)
    if is_checkpoint(real):
        return emit.constant(Checkpointed(emit.tx.compiler.compiled_copy))
    return emit.value(function)


@_translates("CALL", "CALL_KW")
def _call(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    names: tuple[str, ...] = frame.kw_names
    taken = ins.arg + 2
    stack = frame.stack
    if ins.name == "CALL_KW":
        names = stack[-1].constant()
        stack = stack[:-1]
        taken += 1
    first, second, *args = stack[len(stack) - ins.arg - 2 :]
    if isinstance(first, NullValue) or isinstance(second, NullValue):
        function = _not_null(first, second)
    else:
        function, args = first, [second, *args]
    return Operation(taken, _call_text(emit, function, args, names))


def _not_null(first: SymbolicValue, second: SymbolicValue) -> SymbolicValue:
    """The callable next to a NULL, which is below it and from 3.13 on above it."""
    return first if isinstance(second, NullValue) else second


@_translates("CALL_FUNCTION_EX")
def _call_ex(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    taken = 3 + (ins.arg & 1)
    first, second, args, *kwargs = frame.stack[len(frame.stack) - taken :]
    text = f"{_callee(emit, _not_null(first, second))}(*{emit.value(args)}"
    text += f", **{emit.value(kwargs[0])})" if kwargs else ")"
    return Operation(taken, text)


_BINARY: Final = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")


@_translates("BINARY_OP")
def _binary(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    left, right = _top(emit, frame, 2)
    if ins.arg < len(_BINARY):
        return Operation(2, f"{left} {_BINARY[ins.arg]} {right}")
    function = getattr(operator, IN_PLACE[ins.arg - len(_BINARY)])
    return Operation(2, f"{emit.constant(function)}({left}, {right})")


@_translates("COMPARE_OP")
def _compare(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    if ins.arg & TO_BOOL:
        return _truth(frame, ins, 2, _compared(emit, frame, ins))
    left, right = _top(emit, frame, 2)
    return Operation(2, f"{left} {ins.argval} {right}")


def _compared(emit: Emitter, frame: Frame, ins: Instruction) -> str:
    """The comparison whose truth is needed; the graph compares tensors."""
    left, right = frame.stack[-2:]
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        with suppress(GraphBreak):
            return emit.value(emit.tx.binary(COMPARISONS[ins.argval], left, right))
    return f"{emit.value(left)} {ins.argval} {emit.value(right)}"


@_translates("CONTAINS_OP")
def _contains(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    left, right = _top(emit, frame, 2)
    return Operation(2, f"{left} {'not in' if ins.arg else 'in'} {right}")


_EXPRESSIONS: Final[dict[str, tuple[int, str, int]]] = {
    "BINARY_SUBSCR": (2, "{0}[{1}]", 1),
    "STORE_SUBSCR": (3, "{setitem}({1}, {2}, {0})", 0),
    "DELETE_SUBSCR": (2, "{delitem}({0}, {1})", 0),
    "BINARY_SLICE": (3, "{0}[slice({1}, {2})]", 1),
    "STORE_SLICE": (4, "{setitem}({1}, slice({2}, {3}), {0})", 0),
    "STORE_ATTR": (2, "setattr({1}, {name}, {0})", 0),
    "DELETE_ATTR": (1, "delattr({0}, {name})", 0),
    "UNARY_NEGATIVE": (1, "-{0}", 1),
    "UNARY_POSITIVE": (1, "+{0}", 1),
    "UNARY_INVERT": (1, "~{0}", 1),
    "UNARY_NOT": (1, "not {0}", 1),
    "GET_ITER": (1, "iter({0})", 1),
    "FORMAT_SIMPLE": (1, "format({0})", 1),
    "FORMAT_WITH_SPEC": (2, "format({0}, {1})", 1),
}
"""Opcodes that are one expression: how many items it takes, its text, and how many it pushes."""


@_translates(*_EXPRESSIONS)
def _expression(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    taken, text, pushes = _EXPRESSIONS[ins.name]
    items = _top(emit, frame, taken)
    functions = {name: emit.constant(getattr(operator, name))
                 for name in ("setitem", "delitem") if f"{{{name}}}" in text}
    return Operation(taken, text.format(*items, name=literal(str(ins.argval)), **functions), pushes)


@_translates("LOAD_ATTR", "LOAD_METHOD")
def _load_attribute(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (owner,) = _top(emit, frame, 1)
    null = ins.name == "LOAD_METHOD" or bool(ins.flags & 1)
    return Operation(1, f"getattr({owner}, {literal(ins.argval)})", null=null)


@_translates("TO_BOOL")
def _to_bool(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return _truth(frame, ins, 1, _top(emit, frame, 1)[0])


def _truth(frame: Frame, ins: Instruction, taken: int, text: str) -> Operation:
    """The value as a bool, together with the jump behind it: each side of it has its own
    continuation."""
    jump = frame.program.instructions[ins.index + 1]
    if jump.name in (*_JUMP_IF_TRUE, *_JUMP_IF_FALSE):
        return _test(text, taken, *_branches(jump))
    return Operation(taken, f"bool({text})")


@_translates("FORMAT_VALUE")
def _format_value(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    taken = 2 if ins.arg & 4 else 1
    value, *spec = _top(emit, frame, taken)
    convert = (None, str, repr, ascii)[ins.arg & 3]
    if convert is not None:
        value = f"{emit.constant(convert)}({value})"
    return Operation(taken, f"format({value}, {spec[0] if spec else repr('')})")


@_translates("CONVERT_VALUE")
def _convert(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    convert = (None, str, repr, ascii)[ins.arg]
    return Operation(1, f"{emit.constant(convert)}({_top(emit, frame, 1)[0]})")


@_translates("IMPORT_NAME")
def _import(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    level, names = _top(emit, frame, 2)
    space = emit.value(frame.globals)
    return Operation(2, f"__import__({literal(ins.argval)}, {space}, None, {names}, {level})")


@_translates("POP_TOP")
def _pop(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    """The popped object is freed with the replacement, before the rest of the frame runs."""
    return Operation(1, "None", 0)


# -- containers -----------------------------------------------------------------------------------


@cache
def _unpacking(targets: str) -> Callable[[Any], tuple[object, ...]]:
    """A function that returns what `targets = value` assigns, last first, as the instruction pushes
    it."""
    space: dict[str, Any] = {}
    names = ", ".join(reversed(targets.replace("*", "").rstrip(",").split(", ")))
    exec(f"def unpack(value):\n    {targets} = value\n    return ({names},)", space)
    unpack: Callable[[object], tuple[object, ...]] = space["unpack"]
    skip(unpack.__code__)
    hide(unpack.__code__)
    return unpack


@_translates("UNPACK_SEQUENCE")
def _unpack_sequence(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    targets = ", ".join(f"item{n}" for n in range(ins.arg))
    return _unpack(emit, frame, targets, ins.arg)


@_translates("UNPACK_EX")
def _unpack_ex(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    before, after = ins.arg & 255, ins.arg >> 8
    names = [f"item{n}" for n in range(before)] + ["*rest"]
    names += [f"last{n}" for n in range(after)]
    return _unpack(emit, frame, ", ".join(names), len(names))


def _unpack(emit: Emitter, frame: Frame, targets: str, count: int) -> Operation:
    function = emit.constant(_unpacking(f"{targets}," if targets else "[]"))
    (value,) = _top(emit, frame, 1)
    # One value is passed as it is, and none not at all.
    text = f"{function}({value})" + "[0]" * (count == 1)
    return Operation(1, text, count)


_GROWING: Final[dict[str, Any]] = {
    "LIST_EXTEND": list.extend,
    "SET_UPDATE": set.update,
    "DICT_UPDATE": dict.update,
    "LIST_APPEND": list.append,
    "SET_ADD": set.add,
}


@_translates(*_GROWING)
def _grow(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    target = emit.value(frame.stack[-1 - ins.arg])
    (added,) = _top(emit, frame, 1)
    return Operation(1, f"{emit.constant(_GROWING[ins.name])}({target}, {added})", 0)


@_translates("BUILD_SET")
def _set(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return Operation(ins.arg, f"{{{', '.join(_top(emit, frame, ins.arg))}}}")


@_translates("BUILD_MAP")
def _map(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    items = iter(_top(emit, frame, 2 * ins.arg))
    pairs = [f"{key}: {value}" for key, value in zip(items, items, strict=True)]
    return Operation(2 * ins.arg, f"{{{', '.join(pairs)}}}")


@_translates("MAP_ADD")
def _map_add(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    target = emit.value(frame.stack[-2 - ins.arg])
    key, value = _top(emit, frame, 2)
    return Operation(2, f"{emit.constant(operator.setitem)}({target}, {key}, {value})", 0)


# -- with -----------------------------------------------------------------------------------------


def _call_enter(manager: Any) -> tuple[object, object]:
    """What BEFORE_WITH pushes."""
    with_exit = type(manager).__exit__.__get__(manager, type(manager))
    return with_exit, type(manager).__enter__(manager)


hide(_call_enter.__code__)


@_translates("BEFORE_WITH")
def _before_with(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (manager,) = _top(emit, frame, 1)
    return Operation(1, f"{emit.constant(_call_enter)}({manager})", 2)


def _call_exit(leave: Any, error: BaseException) -> object:
    """What WITH_EXCEPT_START pushes: the result of `__exit__` for the exception."""
    return leave(type(error), error, error.__traceback__)


hide(_call_exit.__code__)


@_translates("WITH_EXCEPT_START")
def _with_except_start(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    leave, error = emit.value(frame.stack[-4]), emit.value(frame.stack[-1])
    return Operation(0, f"{emit.constant(_call_exit)}({leave}, {error})")


# -- jumps ----------------------------------------------------------------------------------------

_JUMP_IF_TRUE: Final = ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE")
_JUMP_IF_FALSE: Final = tuple(name.replace("TRUE", "FALSE") for name in _JUMP_IF_TRUE)


def _test(text: str, taken: int, true: Branch, false: Branch) -> Operation:
    return Operation(taken, f"True if {text} else False", 0, branches=(true, false))


def _branches(ins: Instruction) -> tuple[Branch, Branch]:
    jump, stay = Branch(ins.target), Branch(ins.index + 1)
    return (jump, stay) if ins.name in _JUMP_IF_TRUE else (stay, jump)


@_translates(*_JUMP_IF_TRUE, *_JUMP_IF_FALSE)
def _pop_jump(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return _test(_top(emit, frame, 1)[0], 1, *_branches(ins))


@_translates("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    stay = Branch(ins.index + 1)
    return _test(_top(emit, frame, 1)[0], 1, Branch(ins.target, keeps_top=True), stay)


@_translates("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    stay = Branch(ins.index + 1)
    return _test(_top(emit, frame, 1)[0], 1, stay, Branch(ins.target, keeps_top=True))


_END: Final = object()


@_translates("FOR_ITER")
def _for_iter(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (iterator,) = _top(emit, frame, 1)
    end = emit.constant(_END)
    item = Branch(ins.index + 1, keeps_top=True, pushes=True)
    return Operation(1, f"next({iterator}, {end})", 0, test=f"{{}} is not {end}",
                     branches=(item, Branch(ins.target + BEHIND_LOOP)))
