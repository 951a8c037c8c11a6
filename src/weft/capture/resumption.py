"""What follows a graph break: the operation in plain Python, then the continuations.

Place in the pipeline: called by the compiler when an interpretation ended at a break. The frame
that broke does its operation; it and each caller go on in a continuation, innermost first::

    t0 = print(v[0])                  # the operation
    t1 = f_inner_resumed(t0, x)       # the rest of the inner frame
    return f_resumed(t1)              # the rest of the outer one
"""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from weft import _frame
from weft.capture.breaks import graph_break
from weft.capture.bytecode.liveness import live_locals
from weft.capture.checkpointing import Checkpointed, is_checkpoint
from weft.capture.continuation import HANDLED, comes_round_again, resume_function
from weft.capture.continuation import NULL as NULL_ITEM
from weft.capture.frame import Frame, Instruction
from weft.capture.opcodes.exceptions import HandledMarker
from weft.capture.opcodes.operators import TO_BOOL
from weft.capture.replacement import Emitter
from weft.capture.values.base import NULL, NullValue, SymbolicValue
from weft.capture.values.cell import CellValue
from weft.capture.values.constant import ConstantValue
from weft.markers import disable, is_disabled

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

MakeContinuation = Callable[[types.FunctionType], Any]


@final
@dataclass(slots=True)
class Operation:
    """An instruction as Python: how many stack items it takes, and what it does."""

    taken: int
    text: str = ""
    """An expression, whose value is pushed if `pushes`."""
    pushes: bool = True
    branches: tuple[tuple[int, int], tuple[int, int]] | None = None
    """For jumps: (instruction index, stack items kept beyond `taken`) if true, if false."""
    null_below: bool = False
    """Whether a NULL goes below the result (LOAD_METHOD)."""


Translator = Callable[[Emitter, Frame, Instruction], Operation]

_TRANSLATORS: dict[str, Translator] = {}


def _translates(*names: str) -> Callable[[Translator], Translator]:
    def register(function: Translator) -> Translator:
        for name in names:
            _TRANSLATORS[name] = function
        return function

    return register


def can_translate(name: str) -> bool:
    """Whether a break at the opcode can be followed by a continuation after it."""
    return name in _TRANSLATORS


# -- operations -----------------------------------------------------------------------------------


def _top(emit: Emitter, frame: Frame, n: int) -> list[str]:
    return [emit.value(value) for value in frame.stack[len(frame.stack) - n :]]


def _call_text(
    emit: Emitter, function: SymbolicValue, args: list[SymbolicValue], names: tuple[str, ...]
) -> str:
    plain = len(args) - len(names)
    parts = [emit.value(arg) for arg in args[:plain]]
    parts += [f"{name}={emit.value(arg)}" for name, arg in zip(names, args[plain:], strict=True)]
    return f"{_callee(emit, function)}({', '.join(parts)})"


def _callee(emit: Emitter, function: SymbolicValue) -> str:
    """A function marked as not to be captured is called with the frame hook off."""
    real = function.real()
    if is_checkpoint(real):
        return emit.constant(Checkpointed(emit.tx.compiled_copy))
    return emit.constant(disable(real)) if is_disabled(real) else emit.value(function)


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
    if isinstance(second, NullValue):
        function = first
    elif isinstance(first, NullValue):
        function = second
    else:
        function, args = first, [second, *args]
    return Operation(taken, _call_text(emit, function, args, names))


@_translates("CALL_FUNCTION_EX")
def _call_ex(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    n = 2 + (ins.arg & 1)
    function, args, *kwargs = frame.stack[len(frame.stack) - n :]
    below = frame.stack[-n - 1 : -n]
    has_null = bool(below) and isinstance(below[0], NullValue)
    if isinstance(args, NullValue):  # 3.13: callable, NULL, args, kwargs
        raise graph_break("unknown-opcode", "CALL_FUNCTION_EX in this form")
    text = f"{_callee(emit, function)}(*{emit.value(args)}"
    text += f", **{emit.value(kwargs[0])})" if kwargs else ")"
    return Operation(n + has_null, text)


_BINARY: Final = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
_INPLACE: Final = (
    "iadd",
    "iand",
    "ifloordiv",
    "ilshift",
    "imatmul",
    "imul",
    "imod",
    "ior",
    "ipow",
    "irshift",
    "isub",
    "itruediv",
    "ixor",
)


@_translates("BINARY_OP")
def _binary(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    left, right = _top(emit, frame, 2)
    if ins.arg < len(_BINARY):
        return Operation(2, f"{left} {_BINARY[ins.arg]} {right}")
    function = getattr(operator, _INPLACE[ins.arg - len(_BINARY)])
    return Operation(2, f"{emit.constant(function)}({left}, {right})")


@_translates("COMPARE_OP")
def _compare(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    left, right = _top(emit, frame, 2)
    text = f"{left} {ins.argval} {right}"
    return Operation(2, f"bool({text})" if ins.arg & TO_BOOL else text)


@_translates("CONTAINS_OP")
def _contains(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    left, right = _top(emit, frame, 2)
    return Operation(2, f"{left} {'not in' if ins.arg else 'in'} {right}")


@_translates("BINARY_SUBSCR")
def _subscript(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    owner, key = _top(emit, frame, 2)
    return Operation(2, f"{owner}[{key}]")


@_translates("STORE_SUBSCR")
def _store_subscript(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    value, owner, key = _top(emit, frame, 3)
    return Operation(3, f"{emit.constant(operator.setitem)}({owner}, {key}, {value})", pushes=False)


@_translates("DELETE_SUBSCR")
def _delete_subscript(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    owner, key = _top(emit, frame, 2)
    return Operation(2, f"{emit.constant(operator.delitem)}({owner}, {key})", pushes=False)


@_translates("BINARY_SLICE")
def _binary_slice(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    owner, start, stop = _top(emit, frame, 3)
    return Operation(3, f"{owner}[slice({start}, {stop})]")


@_translates("STORE_SLICE")
def _store_slice(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    value, owner, start, stop = _top(emit, frame, 4)
    setter = emit.constant(operator.setitem)
    return Operation(4, f"{setter}({owner}, slice({start}, {stop}), {value})", pushes=False)


@_translates("LOAD_ATTR")
def _load_attribute(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (owner,) = _top(emit, frame, 1)
    operation = Operation(1, f"getattr({owner}, {ins.argval!r})")
    if METHOD_BIT_IN_LOAD_ATTR and ins.arg & 1:
        operation.null_below = True
    return operation


METHOD_BIT_IN_LOAD_ATTR: Final = "LOAD_METHOD" not in __import__("dis").opmap or __import__(
    "sys"
).version_info >= (3, 12)


@_translates("LOAD_METHOD")
def _load_method(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (owner,) = _top(emit, frame, 1)
    return Operation(1, f"getattr({owner}, {ins.argval!r})", null_below=True)


@_translates("STORE_ATTR")
def _store_attribute(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    value, owner = _top(emit, frame, 2)
    return Operation(2, f"setattr({owner}, {ins.argval!r}, {value})", pushes=False)


@_translates("DELETE_ATTR")
def _delete_attribute(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (owner,) = _top(emit, frame, 1)
    return Operation(1, f"delattr({owner}, {ins.argval!r})", pushes=False)


_UNARY: Final = {
    "UNARY_NEGATIVE": "-",
    "UNARY_POSITIVE": "+",
    "UNARY_INVERT": "~",
    "UNARY_NOT": "not ",
}


@_translates(*_UNARY)
def _unary(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return Operation(1, f"{_UNARY[ins.name]}{_top(emit, frame, 1)[0]}")


@_translates("TO_BOOL")
def _to_bool(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return Operation(1, f"bool({_top(emit, frame, 1)[0]})")


@_translates("GET_ITER")
def _get_iter(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return Operation(1, f"iter({_top(emit, frame, 1)[0]})")


@_translates("FORMAT_VALUE")
def _format_value(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    taken = 2 if ins.arg & 4 else 1
    value, *spec = _top(emit, frame, taken)
    convert = (None, str, repr, ascii)[ins.arg & 3]
    if convert is not None:
        value = f"{emit.constant(convert)}({value})"
    return Operation(taken, f"format({value}, {spec[0] if spec else repr('')})")


@_translates("FORMAT_SIMPLE")
def _format_simple(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    return Operation(1, f"format({_top(emit, frame, 1)[0]})")


@_translates("CONVERT_VALUE")
def _convert(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    convert = (None, str, repr, ascii)[ins.arg]
    return Operation(1, f"{emit.constant(convert)}({_top(emit, frame, 1)[0]})")


@_translates("FORMAT_WITH_SPEC")
def _format_spec(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    value, spec = _top(emit, frame, 2)
    return Operation(2, f"format({value}, {spec})")


@_translates("IMPORT_NAME")
def _import(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    level, names = _top(emit, frame, 2)
    space = emit.value(frame.globals)
    return Operation(2, f"__import__({ins.argval!r}, {space}, None, {names}, {level})")


_JUMP_IF_TRUE: Final = ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE")
_JUMP_IF_FALSE: Final = (
    "POP_JUMP_IF_FALSE",
    "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_FALSE",
)


@_translates(*_JUMP_IF_TRUE)
def _jump_if_true(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (value,) = _top(emit, frame, 1)
    return Operation(1, value, False, ((ins.target, 0), (ins.index + 1, 0)))


@_translates(*_JUMP_IF_FALSE)
def _jump_if_false(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (value,) = _top(emit, frame, 1)
    return Operation(1, value, False, ((ins.index + 1, 0), (ins.target, 0)))


@_translates("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (value,) = _top(emit, frame, 1)
    return Operation(1, value, False, ((ins.target, 1), (ins.index + 1, 0)))


@_translates("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(emit: Emitter, frame: Frame, ins: Instruction) -> Operation:
    (value,) = _top(emit, frame, 1)
    return Operation(1, value, False, ((ins.index + 1, 0), (ins.target, 1)))


# -- continuations --------------------------------------------------------------------------------


@final
@dataclass(slots=True)
class Step:
    """What one frame still does, in two parts that emit statements: `attempt` may raise into the
    frame's exception handler and gives the name of its result; `resume` goes on with that."""

    attempt: Callable[[], str]
    resume: Callable[[str], str]


#: The kinds of stack item of `resume_function`; all others are "v".
_KINDS: Final[dict[type, str]] = {NullValue: NULL_ITEM, HandledMarker: HANDLED}


@final
class Resumption:
    """Emits everything from a break on."""

    def __init__(self, tx: Interpreter, emit: Emitter, make: MakeContinuation) -> None:
        self.tx = tx
        self.emit = emit
        self.make = make

    def write(self, frame: Frame) -> None:
        """The operation of `frame`, then the rest of it and of its callers."""
        eager = frame.handled or self._comes_round(frame) or not can_translate(frame.current.name)
        step = self._eager(frame) if eager else self._operation(frame)
        outer = frame.caller
        while outer is not None:
            step = self._protected(outer, self._link(outer, step))
            outer = outer.caller
        self.tx.effects.replay(self.emit)
        self.emit.line(f"return {step.resume(step.attempt())}")

    def _comes_round(self, frame: Frame) -> bool:
        """Whether a loop broke before: from its second break on it runs uncompiled (what it calls
        is still compiled). Inside of a call, the break moves out to the loop's own frame."""
        root = frame
        while root.caller is not None:
            root = root.caller
        if not comes_round_again(root.code, root.current.offset):
            return False
        if root is not frame:
            raise graph_break("unknown-operation", "a break in a call from a loop that broke")
        return True

    def _operation(self, frame: Frame) -> Step:
        """The operation of the broken frame, then its continuation."""
        ins = frame.current
        operation = _TRANSLATORS[ins.name](self.emit, frame, ins)
        stack = frame.stack[: len(frame.stack) - operation.taken]
        if operation.branches is None:
            step = self._plain(frame, stack, operation)
        else:
            step = self._branch(frame, stack, operation)
        return self._protected(frame, step)

    def _eager(self, frame: Frame) -> Step:
        """The operation and the rest of the frame as a continuation that is not compiled: while an
        exception is handled (the operation may ask which), in a loop that broke before, and for
        an instruction that is not known as Python."""
        call = self._continuation(frame, frame.current.index, frame.stack, "", eager=True)
        return Step(lambda: "", lambda _: self.emit.temporary(call("")))

    def _plain(self, frame: Frame, stack: list[SymbolicValue], operation: Operation) -> Step:
        index = frame.current.index + 1
        extra = [NULL] if operation.null_below else []
        call = self._continuation(frame, index, [*stack, *extra], "v" * operation.pushes)

        def attempt() -> str:
            if operation.pushes:
                return self.emit.temporary(operation.text)
            self.emit.line(operation.text)
            return ""

        return Step(attempt, lambda result: self.emit.temporary(call(result)))

    def _branch(self, frame: Frame, stack: list[SymbolicValue], operation: Operation) -> Step:
        assert operation.branches is not None
        kept = frame.stack[-1:]
        calls = [
            self._continuation(frame, index, [*stack, *kept[:keep]], "")
            for index, keep in operation.branches
        ]

        def resume(condition: str) -> str:
            return self.emit.temporary(f"{calls[0]('')} if {condition} else {calls[1]('')}")

        return Step(lambda: self.emit.temporary(f"True if {operation.text} else False"), resume)

    def _link(self, frame: Frame, inner: Step) -> Step:
        """The caller's step: all that the inner frame still does, then the rest of the caller."""
        call = self._continuation(frame, frame.current.index + 1, frame.stack, "v")
        return Step(
            lambda: inner.resume(inner.attempt()), lambda result: self.emit.temporary(call(result))
        )

    def _protected(self, frame: Frame, step: Step) -> Step:
        """What the step attempts, under the exception handler of the frame's instruction: an error
        is kept, and after the `try` (so that it is not being handled any more) goes on where
        the handler begins."""
        row = frame.program.handler_of(frame.current.index)
        if row is None:
            return step
        suffix = "l" * row.lasti + "v"
        handle = self._continuation(frame, row.target, frame.stack[: row.depth], suffix)
        emit = self.emit
        raised = ""

        def attempt() -> str:
            nonlocal raised
            raised = emit.temporary("[]")
            with emit.block("try:"):
                result = step.attempt()
            with emit.block("except BaseException as error:"):
                emit.line(f"{raised}.append(error)")
            return result

        def resume(result: str) -> str:
            name = emit.temporary("None")
            with emit.block(f"if {raised}:"):
                emit.line(f"{name} = {handle(f'{raised}.pop()')}")
            with emit.block("else:"):
                emit.line(f"{name} = {step.resume(result)}")
            return name

        return Step(attempt, resume)

    def _continuation(
        self,
        frame: Frame,
        index: int,
        stack: list[SymbolicValue],
        suffix: str,
        *,
        eager: bool = False,
    ) -> Callable[[str], str]:
        """The call of the rest of `frame`, given the text of what is pushed; `suffix` is the stack
        kinds of that: "" for nothing, "v" for a value, "lv" for an exception at a handler that
        wants to know the raising instruction."""
        if frame.generator is not None:
            raise graph_break("unknown-operation", "a break inside a generator")
        code = self.tx.own_code(frame.code)
        offset = frame.program.instructions[index].offset
        shape = "".join(_KINDS.get(type(value), "v") for value in stack)
        if frame.handled and not eager:
            raise graph_break("unknown-operation", "a break while a caller handles an exception")
        names = self._live(frame, code, offset)
        boxes = [name for name in names if name in frame.cells and name in code.co_cellvars]
        plain = [name for name in names if name not in boxes]
        before = [
            self.emit.value(v.exception if isinstance(v, HandledMarker) else v)
            for v in stack
            if not isinstance(v, NullValue)
        ]
        after = [self.emit.value(frame.locals[n]) for n in plain]
        after += [self.emit.value(frame.cells[n]) for n in boxes]
        make = None if eager else self.make
        target = self._callable(frame, code, offset, shape + suffix, plain, boxes, make)

        def call(pushed: str) -> str:
            parts = [*before, *([pushed] if pushed else []), *after]
            return f"{target}({', '.join(parts)})"

        return call

    def _live(self, frame: Frame, code: types.CodeType, offset: int) -> list[str]:
        live = live_locals(code, offset)
        order = (*code.co_varnames, *code.co_cellvars)
        names = dict.fromkeys(n for n in order if n in live)
        return [n for n in names if n in frame.locals or n in frame.cells]

    def _callable(
        self,
        frame: Frame,
        code: types.CodeType,
        offset: int,
        shape: str,
        plain: list[str],
        boxes: list[str],
        compiled: MakeContinuation | None,
    ) -> str:
        globals = frame.globals.original
        closure = tuple(types.CellType() for _ in code.co_freevars)
        function = resume_function(
            code, offset, shape, plain, boxes, globals=globals, closure=closure or None
        )
        if compiled is None:  # on code of its own: the shared one may have compiled entries
            function.__code__ = function.__code__.replace()
            _frame.skip(function.__code__)
        if not closure:
            return self.emit.constant(compiled(function) if compiled else function)
        if compiled:
            self.emit.constant(compiled(function))  # entries live as long as one function of it
        cells = "".join(f"{self.emit.value(self._cell(frame, n))}, " for n in code.co_freevars)
        make = self.emit.constant(types.FunctionType)
        parts = (
            f"{make}({self.emit.constant(function.__code__)}, {self.emit.constant(globals)}, "
            f"{function.__name__!r}, None, ({cells}))"
        )
        text = f"{self.emit.constant(compiled)}({parts})" if compiled else parts
        return self.emit.temporary(text)

    def _cell(self, frame: Frame, name: str) -> CellValue:
        return frame.cells[name]


__all__ = ["ConstantValue", "Operation", "Resumption", "builtins", "can_translate"]
