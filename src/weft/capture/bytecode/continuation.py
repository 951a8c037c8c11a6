"""Continuations: functions that run the rest of a frame.

Where capture meets something that it cannot capture, it ends the graph, lets Python do that
operation, and goes on in a *continuation* made from the rest of the byte code::

    def f(x):                         def f_resumed(stack0, y):
        y = x.relu()                      # stack0 is what g() returned
        return y + g()        ->          return y + stack0
               # break ^

The parameters are the live stack items from bottom to top, then the live locals, then the cells. A
prologue puts them where the original frame had them and jumps to the resume point. Only reachable
instructions are copied, with their lines, exception handlers and loops. Code and function are
ordinary: a continuation is itself captured, guarded, cached, and broken again.

`resume_function` is the whole interface. Continuations are cached on the code that they come from.
One made from another continuation is made from the original code, so the same place in the source
always leads to the same code object, which carries the compiled entries.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType
from typing import Any, Final, final

from .assemble import assemble
from .disassemble import disassemble, slot_names
from .instruction import Bytecode, ExceptionEntry, Instruction, Positions
from .liveness import live_locals, needed_cells
from .percode import PerCode
from .stacksize import stack_depths
from .tables import KIND, OPMAP, SLOT, SLOT_PAIR
from .version import TERMINATORS

#: The kinds of stack item, one letter each in `resume_function(stack=...)`.
VALUE: Final = "v"
#: The NULL that CALL expects beside a callable (or a cleared comprehension variable).
NULL: Final = "n"
#: What PUSH_EXC_INFO saved; passed is the exception that is being handled above it.
HANDLED: Final = "e"
#: Where the exception was raised, as handlers of `with` and `finally` want it; takes no argument.
LASTI: Final = "l"

#: The code unit of a prologue's RESUME, without and with a COPY_FREE_VARS before it.
_RESUME_AT: Final = (0, 1)
_WITHOUT_ARGUMENT: Final = frozenset({NULL, LASTI})

_GENERATOR_FLAGS: Final = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
_ARGUMENT_FLAGS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class CannotResumeError(ValueError):
    """The requested state cannot be restored; `str(error)` says why."""


@final
@dataclass(frozen=True, slots=True)
class _State:
    """The shape of a frame's state at a resume point; with the code, the cache key."""

    offset: int
    stack: str
    locals_present: tuple[str, ...]
    cells: tuple[str, ...]
    suspended: bool = False
    """Whether the code is a generator's, to be resumed behind a `yield`."""
    iterated: bool = False
    """Whether the arguments come in one iterator, so that no caller refers to them."""


@final
@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a continuation's code came from."""

    code: weakref.ref[CodeType]
    #: Offset in the continuation → offset in the original code.
    offsets: Mapping[int, int]
    #: Offset in the original code where the continuation begins.
    start: int


_CONTINUATIONS: PerCode[dict[_State, CodeType]] = PerCode()
_COPIES: Final[PerCode[CodeType]] = PerCode()
_ORIGINS: PerCode[_Origin] = PerCode()


def resume_function(
    code: CodeType, offset: int, stack: str | int, locals_present: Sequence[str],
    cells: Sequence[str] = (), *, globals: dict[str, Any],
    closure: tuple[CellType, ...] | None = None, name: str | None = None, iterated: bool = False,
) -> FunctionType:
    """The function that continues `code` at the instruction at byte `offset`.

    It takes positional arguments only: the stack items from bottom to top (`stack` names their
    kinds; "n" and "l" take no argument; a number means that many values), the values of
    `locals_present` in that order, then the cell objects of `cells` in that order. Other locals are
    unbound. `closure` is that of the function that `code` belongs to. With `iterated`, the function
    takes one iterator over the arguments instead, so that its caller does not hold them.

    Raises CannotResumeError if the frame cannot be resumed there.
    """
    shape = VALUE * stack if isinstance(stack, int) else stack
    arguments = not _WITHOUT_ARGUMENT.issuperset(shape) or locals_present or cells
    state = _State(offset, shape, tuple(locals_present), tuple(cells),
                   iterated=iterated and bool(arguments))
    code, state = _original(code, state)
    resumed = resume_code(code, state)
    return FunctionType(resumed, globals, name or resumed.co_name, None, closure)


def resume_generator(
    code: CodeType, offset: int, stack: str, locals_present: Sequence[str], cells: Sequence[str], *,
    globals: dict[str, Any], closure: tuple[CellType, ...] | None,
) -> FunctionType:
    """The function that makes a generator suspended behind the `yield` before `offset`.

    Arguments as for `resume_function`. Send None to the generator once: it then waits where the
    original did, under the original's exception handlers.
    """
    state = _State(offset, stack, tuple(locals_present), tuple(cells), suspended=True)
    return FunctionType(resume_code(code, state), globals, code.co_name, None, closure)


def original_position(code: CodeType, offset: int) -> tuple[CodeType, int]:
    """The place in the user's code that a place in a continuation comes from; for other code the
    same place."""
    origin = _ORIGINS.get(code)
    root = origin.code() if origin is not None else None
    if origin is None or root is None or offset not in origin.offsets:
        return code, offset
    return root, origin.offsets[offset]


def own_copy(code: CodeType) -> CodeType:
    """An equal code of a continuation that has no compiled entries."""
    copy = code.replace()
    _COPIES[copy] = code
    return copy


def copied_from(code: CodeType) -> CodeType | None:
    """The continuation's code that `own_copy` has made this one of."""
    return _COPIES.get(code)


def original_code(code: CodeType) -> CodeType:
    """The user's code that a continuation goes on with; other code itself."""
    origin = _ORIGINS.get(code)
    root = origin.code() if origin is not None else None
    return code if root is None else root


def is_continuation(code: CodeType) -> bool:
    """Whether the code was made by `resume_function`."""
    origin = _ORIGINS.get(code)
    return origin is not None and origin.code() is not None


Place = tuple[int, str, tuple[str, ...], tuple[str, ...], bool, bool]
"""Where a continuation begins and what it gets, as plain data."""


def place_of(code: CodeType) -> tuple[CodeType, Place] | None:
    """The code that a continuation goes on with, and where; None for other code."""
    origin = _ORIGINS.get(code)
    root = None if origin is None else origin.code()
    if root is None:
        return None
    for state, continuation in (_CONTINUATIONS.get(root) or {}).items():
        if continuation is code:
            return root, (state.offset, state.stack, state.locals_present, state.cells,
                          state.suspended, state.iterated)
    return None


def continuation_at(code: CodeType, place: Place) -> CodeType:
    """The continuation of the code at such a place."""
    return resume_code(code, _State(*place))


def _original(code: CodeType, state: _State) -> tuple[CodeType, _State]:
    root, offset = original_position(code, state.offset)
    return root, replace(state, offset=offset)


def resume_code(code: CodeType, state: _State) -> CodeType:
    """The continuation's code object; cached by code and state."""
    known = _CONTINUATIONS.get(code)
    if known is None:
        known = _CONTINUATIONS[code] = {}
    continuation = known.get(state)
    if continuation is None:
        continuation = known[state] = _build(code, state)
    return continuation


def _line(body: Bytecode, start: Instruction) -> int | None:
    """The line of an instruction; jumps that end loops may have none, but those before them do."""
    before = reversed(body.instructions[: start.index + 1])
    return next((i.line for i in before if i.line is not None), None)


def _build(code: CodeType, state: _State) -> CodeType:
    body = disassemble(code)
    _check(code, body, state)
    start = body.at(state.offset)
    slots = _Slots(code, state)
    prologue = _prologue(code, state, slots, start)
    kept = _reachable(body, start)
    copies = _copy_body(body, kept, slots)
    jump = _make("JUMP_FORWARD", positions=start.positions)
    jump.target = copies[start.index][0]
    instructions = [*prologue, jump]
    for index in sorted(copies):
        instructions += copies[index]
    exceptions = _copy_exceptions(body, kept, copies)
    if state.suspended:
        exceptions = _protect_waiting(body, start, prologue, copies) + exceptions
    result = assemble(
        instructions,
        exceptions,
        code,
        co_argcount=1 if state.iterated else len(slots.parameters),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_varnames=slots.varnames,
        co_nlocals=len(slots.varnames),
        co_consts=(*code.co_consts, _RESUME_AT[bool(code.co_freevars)]),
        co_flags=code.co_flags & ~_ARGUMENT_FLAGS,
        co_qualname=f"{code.co_qualname}.<resumed at line {_line(body, start)}>",
    )
    _remember_origin(result, code, start, copies)
    return result


def _check(code: CodeType, body: Bytecode, state: _State) -> None:
    """Refuse a state that would crash the interpreter or silently change the program's meaning."""
    if code.co_flags & _GENERATOR_FLAGS and not state.suspended:
        raise CannotResumeError(f"{code.co_qualname} is a generator or coroutine")
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise CannotResumeError(f"{code.co_qualname} is not the body of a function")
    depth = stack_depths(body.instructions, body.exceptions)[body.at(state.offset).index]
    if depth != len(state.stack) + state.suspended:
        raise CannotResumeError(
            f"{code.co_qualname} has {depth} stack items at {state.offset}, not {len(state.stack)}"
        )
    rest = body.instructions[body.at(state.offset).index + 1 :]
    if not state.suspended and any(i.opname == "RESUME" for i in rest):
        raise CannotResumeError(f"{code.co_qualname} has not begun at {state.offset}")
    if not set(state.stack) <= {VALUE, *_WITHOUT_ARGUMENT, HANDLED}:
        raise CannotResumeError(f"unknown kind of stack item in {state.stack!r}")
    passed = state.locals_present + state.cells
    unknown = set(passed) - set(code.co_varnames) - set(code.co_cellvars)
    if unknown or len(set(passed)) < len(passed):
        raise CannotResumeError(f"unknown or repeated variables: {sorted(unknown or passed)}")
    missing = needed_cells(code, state.offset) - set(state.cells)
    if missing:
        raise CannotResumeError(f"the cells of {sorted(missing)} are needed")


@final
class _Slots:
    """The continuation's local slots: its parameters first, then the original's other variables.

    `super()` without arguments looks for its object in slot 0 of the frame, so code that may call
    it keeps its first parameter there, under its name; an argument that is passed in slot 0 is
    moved away.
    """

    def __init__(self, code: CodeType, state: _State) -> None:
        self.parameters = [
            _stack_name(n, state.locals_present)
            for n, k in enumerate(state.stack)
            if k not in _WITHOUT_ARGUMENT
        ]
        self.first_local = len(self.parameters)
        self.parameters += state.locals_present
        self.first_cell = len(self.parameters)
        self.parameters += [f".cell.{name}" for name in state.cells]
        self._keep_first_slot(code)
        known = set(self.parameters)
        self.varnames = (*self.parameters, *(v for v in code.co_varnames if v not in known))
        self._renumber(code)
        passed = {*state.locals_present, *state.cells}
        #: New slots that may be unbound where the original's compiler knew them to be bound.
        self.unsure = {self.of[v] for v in live_locals(code, state.offset) - passed}

    def _keep_first_slot(self, code: CodeType) -> None:
        if "__class__" not in code.co_freevars or not code.co_argcount or not self.parameters:
            return
        first = code.co_varnames[0]
        if first in self.parameters:
            self.parameters[self.parameters.index(first)] = ".first"
        self.parameters[0] = first

    def _renumber(self, code: CodeType) -> None:
        """`number[old slot]` is the new slot; `of[name]` that of a local or cell variable."""
        local = {name: n for n, name in enumerate(self.varnames)}
        cells = [name for name in code.co_cellvars if name not in local]
        self.of = local | {name: len(local) + n for n, name in enumerate(cells)}
        own = slot_names(code)[: -len(code.co_freevars) or None]
        first_free = len(self.of)
        self.number = [self.of[name] for name in own]
        self.number += range(first_free, first_free + len(code.co_freevars))


def _stack_name(position: int, others: Sequence[str]) -> str:
    """A name for a stack item that differs from `others`: a continuation of a continuation has such
    names already."""
    name = f".stack{position}"
    while name in others:
        name = f".{name}"
    return name


def _prologue(
    code: CodeType, state: _State, slots: _Slots, start: Instruction
) -> list[Instruction]:
    """The instructions that restore the state: free variables, then the stack, then locals and
    cells."""
    prologue = _Prologue(code, state, slots, start)
    prologue.begin()
    prologue.push_stack()
    prologue.store_variables()
    prologue.go_on()
    return prologue.out


@final
class _Prologue:
    """Writes the instructions of a prologue, in order."""

    def __init__(self, code: CodeType, state: _State, slots: _Slots, start: Instruction) -> None:
        self.code = code
        self.state = state
        self.slots = slots
        self.start = start
        self.out: list[Instruction] = []

    def emit(self, opname: str, arg: int = 0) -> None:
        self.out.append(_make(opname, arg, None, self.start.positions))

    def take(self, parameter: int) -> None:
        """Push a parameter and clear its slot, so that it lives no longer than the original's
        value."""
        if "LOAD_FAST_AND_CLEAR" in OPMAP:
            self.emit("LOAD_FAST_AND_CLEAR", parameter)
        else:
            self.emit("LOAD_FAST", parameter)
            self.emit("DELETE_FAST", parameter)

    def begin(self) -> None:
        if self.code.co_freevars:
            self.emit("COPY_FREE_VARS", len(self.code.co_freevars))
        if self.state.suspended:
            self.emit("RETURN_GENERATOR")
            self.emit("POP_TOP")
        self.emit("RESUME")
        if self.state.iterated:
            self.take(0)
            self.emit("UNPACK_SEQUENCE", len(self.slots.parameters))
            for parameter in range(len(self.slots.parameters)):
                self.emit("STORE_FAST", parameter)

    def push_stack(self) -> None:
        parameter = 0
        for kind in self.state.stack:
            if kind == NULL:
                self.emit("PUSH_NULL")
                continue
            if kind == LASTI:
                # The place is the RESUME above: it has the line of the resume point.
                self.emit("LOAD_CONST", len(self.code.co_consts))
                continue
            self.take(parameter)
            parameter += 1
            if kind == HANDLED:
                self.emit("PUSH_EXC_INFO")
                self.emit("POP_TOP")

    def store_variables(self) -> None:
        slots = self.slots
        for parameter, name in enumerate(self.state.locals_present, slots.first_local):
            if slots.of[name] != parameter:
                self.take(parameter)
                self.emit("STORE_FAST", slots.of[name])
        for parameter, name in enumerate(self.state.cells, slots.first_cell):
            # MAKE_CELL tells f_locals that the slot holds a cell; the shared cell replaces its.
            self.take(parameter)
            self.emit("MAKE_CELL", slots.of[name])
            self.emit("STORE_FAST", slots.of[name])

    def go_on(self) -> None:
        """Push what else the instruction at the resume point expects."""
        pending = _pending_keywords(self.code, self.start)
        if pending is not None:
            self.emit("KW_NAMES", pending.arg)
        if self.state.suspended:
            self.emit("LOAD_CONST", self.code.co_consts.index(None))
            self.out += [replace(i) for i in _waiting(self.code, self.start)]


def _waiting(code: CodeType, start: Instruction) -> list[Instruction]:
    """The `yield` before a resume point and the RESUME after it."""
    return disassemble(code).instructions[start.index - 1 : start.index + 1]


def _protect_waiting(
    body: Bytecode, start: Instruction, prologue: list[Instruction],
    copies: dict[int, list[Instruction]],
) -> list[ExceptionEntry]:
    """The exception entry that takes what is thrown into a generator waiting in its prologue to the
    original's handler."""
    row = body.handler_of(start)
    if row is None:
        return []
    target = copies[row.target.index][0]
    return [replace(row, start=prologue[-2], end=prologue[-1], target=target)]


def _pending_keywords(code: CodeType, start: Instruction) -> Instruction | None:
    """The KW_NAMES whose CALL comes after the resume point, or None: it sets a register, which the
    prologue must set again."""
    if "KW_NAMES" not in OPMAP or start.opname not in ("PRECALL", "CALL"):
        return None
    before = disassemble(code).instructions[: start.index]
    while before and before[-1].opname == "PRECALL":
        before.pop()
    return before[-1] if before and before[-1].opname == "KW_NAMES" else None


def _reachable(body: Bytecode, start: Instruction) -> set[int]:
    """Indices of the instructions that may run from `start` on."""
    kept: set[int] = set()
    work = [start.index]
    while work:
        index = work.pop()
        if index in kept:
            continue
        kept.add(index)
        instruction = body.instructions[index]
        if instruction.target is not None:
            work.append(instruction.target.index)
        if instruction.opname not in TERMINATORS:
            work.append(index + 1)
        handler = body.handler_of(instruction)
        if handler is not None:
            work.append(handler.target.index)
    return kept


def _copy_body(body: Bytecode, kept: set[int], slots: _Slots) -> dict[int, list[Instruction]]:
    """Index → copies of the instruction with the new slots (two if a pair of slots no longer fits
    in one)."""
    copies = {index: _copy(body.instructions[index], slots) for index in kept}
    for index, copy in copies.items():
        target = body.instructions[index].target
        if target is not None:
            copy[0].target = copies[target.index][0]
    return copies


def _copy(instruction: Instruction, slots: _Slots) -> list[Instruction]:
    kind = KIND[instruction.opcode]
    if kind == SLOT:
        slot = slots.number[instruction.arg]
        return [_load_or_store(instruction, instruction.opname, slot, slots)]
    if kind != SLOT_PAIR:
        return [replace(instruction)]
    pair = slots.number[instruction.arg >> 4], slots.number[instruction.arg & 15]
    if max(pair) < 16 and slots.unsure.isdisjoint(pair):
        return [replace(instruction, arg=pair[0] << 4 | pair[1])]
    names = _PAIR_PARTS[instruction.opname]
    return [
        _load_or_store(instruction, opname, slot, slots)
        for opname, slot in zip(names, pair, strict=True)
    ]


def _load_or_store(instruction: Instruction, opname: str, slot: int, slots: _Slots) -> Instruction:
    """The instruction for another slot; if that may be unbound, with a check, which LOAD_FAST lacks
    since 3.12."""
    if opname == "LOAD_FAST" and slot in slots.unsure and "LOAD_FAST_CHECK" in OPMAP:
        opname = "LOAD_FAST_CHECK"
    return replace(instruction, opcode=OPMAP[opname], opname=opname, arg=slot)


_PAIR_PARTS: Final = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


def _copy_exceptions(
    body: Bytecode, kept: set[int], copies: dict[int, list[Instruction]]
) -> list[ExceptionEntry]:
    """The exception entries that still protect something. Order is preserved, so the rest is
    contiguous."""
    entries = []
    for entry in body.exceptions:
        inside = [n for n in range(entry.start.index, entry.end.index + 1) if n in kept]
        if inside:
            target = copies[entry.target.index][0]
            start, end = copies[inside[0]][0], copies[inside[-1]][-1]
            entries.append(replace(entry, start=start, end=end, target=target))
    return entries


def _remember_origin(
    result: CodeType, code: CodeType, start: Instruction, copies: dict[int, list[Instruction]]
) -> None:
    """Note which original instruction each of the continuation's last instructions is."""
    body = disassemble(code)
    sources = [(n, k) for n in sorted(copies) for k in range(len(copies[n]))]
    tail = disassemble(result).instructions[-len(sources) :]
    offsets = {
        copy.offset: body.instructions[n].offset
        for copy, (n, k) in zip(tail, sources, strict=True)
        if k == 0
    }
    _ORIGINS[result] = _Origin(weakref.ref(code), offsets, start.offset)


def _make(
    opname: str, arg: int = 0, argval: object = None, positions: Positions = (None,) * 4
) -> Instruction:
    return Instruction(OPMAP[opname], opname, arg, argval, positions=positions)


def _handle(error: BaseException, operation: Callable[[], object]) -> object:
    try:
        raise error
    except:  # noqa: E722  its code begins right behind the instruction that notes the exception
        return operation()


def _handling_from() -> int:
    """The offset in `_handle` at which the exception has just become the handled one."""
    body = disassemble(_handle.__code__).instructions
    return next(body[i.index + 1].offset for i in body if i.opname == "PUSH_EXC_INFO")


#: `run_handling(error, error, operation)` is `operation()` while `error` is being handled.
run_handling: Final = resume_function(
    _handle.__code__, _handling_from(), HANDLED + VALUE, ["operation"], globals=globals(),
    name="run_handling",
)
